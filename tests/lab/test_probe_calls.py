"""geonorm.probe in Python: what cannot be probed is refused in one line, before or after it ran."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import geonorm
from geonorm.errors import ConfigError
from geonorm.measure.anatomy import Stack
from geonorm.measure.config import ProbeConfig
from geonorm.models.decoder import Decoder

from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


@each(
    "asked, said",
    [
        ({"gradients": True}, "has no sites"),
        ({"ablate_blocks": True}, "has no sites"),
        ({"stacks": [Stack.by_hand("layers", ["attn:branch=self_attn"])]}, "has no sites"),
    ],
)
def test_norms_alone_have_no_sites(asked: dict[str, Any], said: str, tiny_model: Tiny) -> None:
    """In Python as on the command line."""
    model, inputs = tiny_model("llama")
    assert geonorm.probe(model, inputs["input_ids"], sites=False).norms
    with pytest.raises(ConfigError, match=said) as python:
        geonorm.probe(model, inputs["input_ids"], sites=False, **asked)
    if "stacks" in asked:
        asked = {"blocks": "layers", "sublayers": ["attn:branch=self_attn"]}
    with pytest.raises(ConfigError) as typed:
        ProbeConfig(["m"], norms_only=True, **asked)
    assert str(python.value) == str(typed.value)


@each(
    "data, said",
    [
        (torch.arange(8), "data of ids is (batch, tokens) of integers, not (8,) of int64"),
        (torch.zeros(0, 8).long(), "data of ids is (batch, tokens) of integers, not (0, 8) of int64"),
        (torch.rand(2, 8), "data of ids is (batch, tokens) of integers, not (2, 8) of float32"),
        (torch.tensor([[1, 67]]), "data has ids from 1 to 67, and the model knows 0 to 66"),
        ({"input_ids": torch.tensor([[-1, 6]])}, "data has ids from -1 to 6, and the model knows 0 to 66"),
        (torch.ones(1, 65).long(), "GPT2LMHeadModel cannot read the data (IndexError: "),
        ({"input_ids": [[1, 2, 3]]}, "GPT2LMHeadModel cannot read the data (TypeError: "),
        (None, "data is text, a tensor of ids"),
        ([1, 2, 3], "data is text, a tensor of ids"),
        ([[1, 2, 3]], "data is text, a tensor of ids"),
    ],
)
def test_data_that_cannot_be_read(data: Any, said: str, tiny_model: Tiny) -> None:
    with pytest.raises(ConfigError) as caught:
        geonorm.probe(tiny_model("gpt2")[0], data)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [torch.arange(8), torch.rand(2, 8), torch.full((2, 8), 31), torch.ones(2, 0).long()])
def test_data_that_our_models_cannot_read(data: torch.Tensor) -> None:
    model = Decoder(geonorm.DecoderConfig(layers=1, width=16, heads=2, vocab_size=31, context=16))
    assert geonorm.probe(model, torch.ones(2, 8, dtype=torch.int32)).sites
    with pytest.raises(ConfigError, match=r"data of ids is|data has ids from"):
        geonorm.probe(model, data)


def test_models_that_cannot_be_probed(tiny_model: Tiny) -> None:
    model, inputs = tiny_model("gpt2")
    with pytest.raises(ConfigError, match="not NoneType"):
        geonorm.probe(None, inputs["input_ids"])  # type: ignore[arg-type]
    frozen = copy.deepcopy(model).requires_grad_(False)
    with pytest.raises(ConfigError, match="gradients of a frozen model"):
        geonorm.probe(frozen, inputs["input_ids"], gradients=True)
    for labels in (torch.ones(2, 8), torch.full((2, 9), 67)):
        with pytest.raises(ConfigError, match=r"labels of shape|labels are -100, or 0 to 66"):
            geonorm.probe(model, {**inputs, "labels": labels.long()}, ablate_blocks=True)


def test_failures_of_measuring_are_not_the_datas(tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geonorm.measure.accumulate.SiteMeasure.update", lambda *given: {}["nothing"])
    with pytest.raises(KeyError, match="nothing"):
        geonorm.probe(*(tiny_model("gpt2")[0], tiny_model("gpt2")[1]["input_ids"]))


@pytest.mark.parametrize("case", ["gpt2", "ours"])
def test_text_is_cut_into_windows_that_the_model_can_read(case: str, tiny_model: Tiny, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 40)
    ours = geonorm.DecoderConfig(layers=1, width=16, heads=2, vocab_size=31, context=16)
    model = Decoder(ours) if case == "ours" else tiny_model("gpt2")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geonorm.lab.probe.encode_running", lambda _, text: [ord(c) - 90 for c in text])
        found = geonorm.probe(model, str(tmp_path / "text.txt"), tokenizer=object(), tokens=128)
    assert found.tokens == 128


@pytest.mark.parametrize("asked", ["gradients", "ablate_blocks"])
def test_a_probe_of_nothing(asked: str, tiny_model: Tiny) -> None:
    """No token that counts; nothing to predict, where losses are asked for."""
    model, inputs = tiny_model("gpt2")
    ids, none = inputs["input_ids"], torch.full((2, 9), -100)
    with pytest.raises(ConfigError, match="no token is counted"):
        geonorm.probe(model, {"input_ids": ids, "attention_mask": torch.zeros_like(ids)})
    assert geonorm.probe(model, ids[:, :1]).tokens == 2
    for data in (ids[:, :1], {"input_ids": ids, "labels": none}):
        with pytest.raises(ConfigError, match="nothing is to be predicted"):
            geonorm.probe(model, data, **{asked: True})
