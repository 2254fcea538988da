"""Token classification and question answering on our models: what they compute, and that they are found and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers")

from geonorm import hf  # noqa: E402

from ..rows import each  # noqa: E402

BOTH = each("causal", [True, False])


def make(kind: str, build: Any, causal: bool, **fields: Any) -> Any:
    config = build("geonorm").config
    config.update({"pad_token_id": 0, "is_causal": causal, **fields})
    torch.manual_seed(1)
    return getattr(hf, f"GeoNormFor{kind}")(config).eval()


@BOTH
def test_every_token_has_its_label(build: Any, ids: Any, causal: bool) -> None:
    model = make("TokenClassification", build, causal, num_labels=5)
    labels = torch.arange(18).view(2, 9) % 5
    labels[0, :4] = -100  # parts of words, which have none
    found = model(ids, labels=labels)
    hidden = model.model(ids).last_hidden_state
    assert found.logits.shape == (2, 9, 5) and model.score.weight.std() > 0.05
    torch.testing.assert_close(found.logits, hidden @ model.score.weight.T + model.score.bias)
    torch.testing.assert_close(found.loss, F.cross_entropy(found.logits.flatten(0, 1), labels.flatten()))
    model.train()  # no dropout
    assert torch.equal(model(ids).logits, found.logits)
    later = ids.clone()
    later[:, -1] = (later[:, -1] + 1) % 60 + 1
    moved = (model(later).logits - found.logits).abs().amax(-1)[:, :-1]
    assert bool((moved == 0).all()) is causal  # of one side only: a later token changes nothing


@BOTH
def test_where_an_answer_begins_and_ends(build: Any, ids: Any, causal: bool) -> None:
    model = make("QuestionAnswering", build, causal)
    starts, ends = torch.tensor([1, 3]), torch.tensor([4, 8])
    found = model(ids, start_positions=starts, end_positions=ends)
    logits = model.model(ids).last_hidden_state @ model.qa_outputs.weight.T + model.qa_outputs.bias
    torch.testing.assert_close(torch.stack((found.start_logits, found.end_logits), -1), logits)
    wanted = (F.cross_entropy(found.start_logits, starts) + F.cross_entropy(found.end_logits, ends)) / 2
    torch.testing.assert_close(found.loss, wanted)


@pytest.mark.parametrize("kind", ["TokenClassification", "QuestionAnswering"])
def test_auto_classes_load_them_and_take_the_body_of_a_language_model(
    build: Any, ids: Any, tmp_path: Path, kind: str
) -> None:
    model = make(kind, build, causal=True, num_labels=3 if kind == "TokenClassification" else 2)
    model.save_pretrained(tmp_path / "own")
    again = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path / "own")
    assert type(again) is type(model) and torch.equal(again(ids)[0], model(ids)[0])
    language = build("geonorm")
    language.save_pretrained(tmp_path / "language")
    body = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path / "language")
    assert torch.equal(body.model(ids).last_hidden_state, language.model(ids).last_hidden_state)


@pytest.mark.parametrize("kind", ["TokenClassification", "QuestionAnswering"])
def test_a_head_on_a_loaded_body_begins_without_bias(
    build: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory comes uninitialised."""
    build("geonorm").save_pretrained(tmp_path)
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args, **more: empty(*args, **more).fill_(7.0))
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path)
    head = model.score if kind == "TokenClassification" else model.qa_outputs
    assert bool((head.bias == 0).all()) and 0 < float(head.weight.detach().std()) < 1
