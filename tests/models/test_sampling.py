"""Sampling: greedy, top k, temperature, and what is refused."""

from typing import Any

import pytest
import torch

from geonorm.errors import ConfigError
from geonorm.models import generate
from geonorm.models.sampling import sample
from geonorm.modes import evaluating

from .tiny import decoder, ids


def test_greedy_takes_the_most_likely_token() -> None:
    model = decoder()
    prompt = ids(tokens=4)
    tokens = torch.cat(list(generate(model, prompt, 3, temperature=0)), 1)
    text = torch.cat((prompt, tokens), 1)
    assert tokens.shape == (2, 3)
    assert torch.equal(model(text)[:, 3:-1].argmax(-1), tokens)
    assert torch.equal(torch.cat(list(generate(model, prompt, 3, top_k=1)), 1), tokens)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_left_as_it_was_also_where_sampling_ends_early(training: bool) -> None:
    model = decoder().train(training)
    walk: Any = generate(model, ids(), 3)
    next(walk)
    assert not model.training
    walk.close()
    assert model.training == training and model.exit.training == training
    list(generate(model, ids(), 3))
    assert model.training == training
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not model.training
        1 / 0  # noqa: B018
    assert model.training == training


def test_top_k_and_temperature() -> None:
    model, prompt = decoder(), ids(batch=1, tokens=4).expand(400, 4)

    def first(**kwargs: Any) -> set[int]:
        generator = torch.Generator().manual_seed(0)
        return set(next(generate(model, prompt, 1, generator=generator, **kwargs)).flatten().tolist())

    likely = set(model(prompt[:1])[0, -1].topk(5).indices.tolist())
    assert first(top_k=5, temperature=3.0) == likely
    assert len(first(temperature=5.0)) > 30
    assert first(top_k=5, temperature=1e40) == likely  # what is left out stays out at any temperature
    assert len(first(top_k=100)) == len(first())


def test_a_prompt_without_tokens_and_a_temperature_below_0_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        next(generate(decoder(), torch.zeros(1, 0, dtype=torch.long), tokens=1))
    with pytest.raises(ConfigError, match="temperature must be at least 0"):
        next(generate(decoder(), torch.zeros(1, 1, dtype=torch.long), tokens=1, temperature=-1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_shares_of_many_draws_are_the_softmax_at_that_temperature(temperature: float) -> None:
    logits, draws = torch.tensor([2.0, 1.0, 0.0, -1.0]), 200_000
    found = (
        sample(logits.expand(draws, 4), temperature, 3, torch.Generator().manual_seed(0))
        .flatten()
        .bincount(minlength=4)
    )
    share = (logits[:3] / temperature).exp() / (logits[:3] / temperature).exp().sum()
    assert found[3] == 0
    assert ((found[:3] / draws - share).abs() < 4 * (share * (1 - share) / draws).sqrt()).all()
