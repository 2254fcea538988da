"""Masked language modelling from the command line: training, resuming, comparing, what is measured, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import geonorm
from geonorm.errors import ConfigError
from geonorm.lab.config import TrainConfig
from geonorm.lab.data.batches import MaskedTokens
from geonorm.lab.open import Opened, open_run
from geonorm.lab.resolve import resolve
from geonorm.lab.runs.folder import read_rows
from geonorm.lab.train.held_out import evaluate_held_out
from geonorm.lab.train.text import load_text

from ..conftest import summary

MLM = ["--objective", "mlm", "--model.vocab_size", 258]


@pytest.fixture(scope="module")
def models(trained: Callable[..., Path]) -> Path:
    return trained(*MLM, "--steps", 40)


def test_a_run_learns_what_is_masked_and_says_how_often_it_is_right(models: Path) -> None:
    found = summary(models)
    first, last = (row for row in list(read_rows(models / "metrics.jsonl"))[::39])
    assert found["val_loss"] < first["loss"] - 1 and last["val_accuracy"] == found["val_accuracy"] > 0.1
    assert found["val_loss"] == pytest.approx(last["val_loss"])
    assert not open_run(models).model.config.causal and TrainConfig().objective == "causal"


@pytest.mark.parametrize("names", ["<|endoftext|> [SEP]", "[SEP]", "<stop>"])
def test_the_end_that_is_not_masked_is_the_one_that_text_is_stored_with(names: str) -> None:
    """ModernBERT's tokenizer has two; one that ours does not know by name is the tokenizer's own."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    ends = names.split()
    vocabulary = {token: number for number, token in enumerate(["a", "[MASK]", *reversed(ends)])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
    made.add_special_tokens(["[MASK]", *ends])
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=made, mask_token="[MASK]", sep_token=ends[-1])
    model: Any = SimpleNamespace(config=transformers.BertConfig(architectures=["BertForMaskedLM"]))
    opened = Opened("m", model, own, 16, torch.device("cpu"))
    assert opened.objective().end == opened.run_tokenizer.eos == vocabulary[ends[0]]


def test_measures_are_those_of_masked_tokens_by_hand(models: Path) -> None:
    opened = open_run(models)
    model, config = opened.model, opened.config
    text = load_text(resolve(config).text)
    assert isinstance(text.objective, MaskedTokens)
    validation = text.validation(config.evaluation, 4000, torch.device("cpu"))
    nats, right, bytes_, count = 0.0, 0, 0, 0
    for ids, targets in validation.part:
        assert ((targets != -100).sum(1) == 2).all() and (ids == text.objective.mask).any()
        logs = torch.log_softmax(model(ids).double(), -1)
        for row, column in (targets != -100).nonzero().tolist():
            token = int(targets[row, column])
            nats -= logs[row, column, token].item()
            right += int(logs[row, column].argmax()) == token
            bytes_, count = bytes_ + int(text.tokens.token_bytes[token]), count + 1
    found = evaluate_held_out(model, validation.part, text.tokens.token_bytes, torch.device("cpu"), accuracy=True)
    assert found["val_loss"] == pytest.approx(nats / count, rel=1e-5) and found["val_accuracy"] == right / count
    assert (found["tokens"], found["bytes"]) == (count, bytes_)
    whole = validation.measure_end(model)
    assert whole["val_tokens"] > count and 0 < whole["val_accuracy"] < 1


def test_eval_probe_and_generate(models: Path, call: Any, text: Path, tmp_path: Path) -> None:
    done = call("eval", models, "--data", text, "--tokens", 256)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    ended = summary(models)
    assert found["accuracy"] == ended["val_accuracy"] and found["part"] == "held-out"
    deeper = call(
        "probe", models, "--data", text, "--tokens", 256, "--gradients", "--ablate-blocks", "--out", tmp_path / "deeper"
    )
    assert deeper.status == 0, deeper.err
    (one,) = json.loads((tmp_path / "deeper/summary.json").read_text())["models"]
    assert one["loss"] == pytest.approx(ended["val_loss"], abs=0.5), "of masked tokens, as in training"
    opened = open_run(models)
    ids = torch.tensor([opened.encode(text.read_text()[:16])])
    with pytest.raises(ConfigError, match="needs labels: Decoder predicts masked tokens"):
        geonorm.probe(opened.model, ids, gradients=True)
    labels = torch.where(torch.arange(16) == 3, ids, -100)
    found = geonorm.probe(opened.model, {"": ids, "labels": labels}, ablate_blocks=True)
    assert found.loss == pytest.approx(opened.model.loss(ids, labels).item(), rel=1e-5)
    refused = call("generate", models)
    assert refused.status == 2 and refused.out == ""
    assert refused.err.startswith("geonorm generate: this model attends to both sides of a token (--objective mlm), so")
