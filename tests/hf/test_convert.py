"""`hf.convert`: the stock model's logits at the start, the target at the end, saved as what it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.errors import ConfigError
from geonorm.schemes import advance, settle

pytest.importorskip("transformers")

import transformers

import geonorm.hf

IDS = torch.arange(3, 27).view(2, 12)


@pytest.fixture
def stock(tiny_model: Callable[[str], Any]) -> Callable[[str], Any]:
    """A tiny model of a family, with gains that are not 1."""
    return lambda case: copy.deepcopy(tiny_model(case)[0])


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS).logits
    return found


@pytest.mark.parametrize("case", ["llama", "gpt2", "opt", "gpt_neox-sequential", "gptj", "phi3", "gemma"])
def test_it_begins_as_the_model_that_it_was_and_ends_as_the_target(case: str, stock: Any, tmp_path: Path) -> None:
    model, other = stock(case), stock(case)
    before = logits(model)
    conversion = geonorm.hf.convert(model, "geonorm", steps=2, course="layers")
    assert torch.equal(logits(model), before)
    with pytest.raises(ConfigError, match="has made 0 of the 2 steps of its way: train on"):
        conversion.finish()
    for _ in range(2):
        assert model.config.scheme.startswith("morph(")
        advance(model)
    geonorm.hf.apply(other, "geonorm")
    torch.testing.assert_close(logits(model), logits(other), rtol=1e-5, atol=1e-5)
    assert conversion.finish() is model and model.config.scheme == "geonorm"
    assert model.state_dict().keys() == other.state_dict().keys()
    torch.testing.assert_close(logits(model), logits(other), rtol=0, atol=0)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is type(model) and torch.equal(logits(again), logits(model))
    conversion.undo()
    assert torch.equal(logits(model), before)


def test_half_way_it_is_saved_with_the_steps_that_it_has_made(stock: Any, tmp_path: Path) -> None:
    model = stock("llama")
    geonorm.hf.convert(model, "post", steps=10)
    advance(model, 4)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    steps = {int(value) for name, value in again.state_dict().items() if name.endswith("progress.done")}
    assert steps == {4} and torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("way", ["abrupt", "match"])
def test_the_other_ways_are_those_of_apply(way: str, stock: Any) -> None:
    model, other = stock("llama"), stock("llama")
    probe = IDS if way == "match" else None
    conversion = geonorm.hf.convert(model, "geonorm", way=way, probe=probe)
    geonorm.hf.apply(other, "geonorm", init="match" if way == "match" else "keep", probe=probe)
    assert torch.equal(logits(conversion.finish()), logits(other))


@pytest.mark.parametrize(
    ("case", "scheme", "settings", "said"),
    [
        ("olmo2", "geonorm", {}, "is not Pre-Norm but olmo2: convert begins with a Pre-Norm model"),
        ("opt-post", "geonorm", {"way": "abrupt"}, "is not Pre-Norm but post"),
        ("llama", "geonrom", {}, "did you mean 'geonorm'?"),
        ("llama", "geonorm", {"way": "grdual"}, "did you mean 'gradual'?"),
        ("llama", "geonorm", {"course": "layer"}, "did you mean 'layers'?"),
        ("llama", "geonorm", {"way": "match", "course": "layer"}, "did you mean 'layers'?"),
        ("llama", "geonorm", {"way": "abrupt", "steps": -4}, "steps must be at least 1, got -4"),
        ("llama", "geonorm", {"probe": IDS}, 'a probe is what way="match" fits on: leave it out of the way gradual'),
        ("llama", "geonorm", {"way": "abrupt", "probe": IDS}, 'leave it out of the way abrupt, or say way="match"'),
        ("llama", "hyper", {}, "no gradual way leads from pre(entry=embedding) (one stream) to hyper"),
        ("llama", "nag", {}, "input is something else in each"),
        ("llama", "ngpt", {}, "it constrains weights"),
        ("gpt_neox", "geonorm", {}, "several norms before branches side by side"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    case: str, scheme: str, settings: dict[str, Any], said: str, stock: Any
) -> None:
    model = stock(case)
    before, kind, names = logits(model), type(model), model.state_dict().keys()
    with pytest.raises(ConfigError) as refused:
        geonorm.hf.convert(model, scheme, **settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert type(model) is kind and model.state_dict().keys() == names and torch.equal(logits(model), before)


def test_side_by_side_it_can_go_where_the_norm_stays(stock: Any) -> None:
    model = stock("gpt_neox")
    before = logits(model)
    conversion = geonorm.hf.convert(model, "geonorm(input=norm)", steps=1)
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    advance(model)
    after = logits(model)
    assert torch.isfinite(after).all() and torch.allclose(logits(conversion.finish()), after, rtol=1e-5, atol=1e-5)


def test_a_model_without_a_norm_at_its_end(stock: Any) -> None:
    """As the smallest OPT."""
    config = stock("opt").config
    config._remove_final_layer_norm = True
    torch.manual_seed(0)
    model = transformers.OPTForCausalLM(config).eval()
    before = logits(model)
    geonorm.hf.convert(model, "geonorm", steps=2)
    torch.testing.assert_close(logits(model), before)


def test_settled_models_of_ours_are_saved_as_their_target(tmp_path: Path) -> None:
    config = geonorm.hf.GeoNormConfig(
        scheme="morph(pre, geonorm, 2)", hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, vocab_size=32,
    )  # fmt: skip
    model = geonorm.hf.GeoNormForCausalLM(config).eval()
    advance(model, 2)
    settle(model)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert again.config.scheme == "geonorm" and torch.equal(logits(again), logits(model))
