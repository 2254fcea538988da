"""--objective denoise: an encoder-decoder learns to fill in missing spans, with every command over it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import geonorm
from geonorm.lab.data.objectives import SpanCorruption
from geonorm.lab.open import open_run
from geonorm.lab.runs.run import read_rows
from geonorm.lab.tasks.fill import read_spans
from geonorm.lab.train.evaluate import evaluate_held_out
from geonorm.lab.train.text import load_text
from geonorm.lab.train.validation import Validation
from geonorm.nn.encoder_decoder import EncoderDecoder
from geonorm.nn.sampling import generate_answer

from ..conftest import summary

DENOISE = ["--objective", "denoise", "--model.vocab_size", 258]
SITES = [("encoder", "attn"), ("encoder", "mlp"), ("decoder", "attn"), ("decoder", "cross"), ("decoder", "mlp")]


@pytest.fixture(scope="module")
def models(trained: Callable[..., Path]) -> Path:
    return trained(*DENOISE, "--steps", 60, "--model.positions", "relative", "--model.mlp", "geglu")


def test_a_run_learns_and_says_how_often_it_is_right(models: Path) -> None:
    found = summary(models)
    first, last = (row for row in list(read_rows(models / "metrics.jsonl"))[::59])
    assert found["val_loss"] < first["loss"] - 1 and last["val_accuracy"] == found["val_accuracy"] > 0.1
    assert 0 <= found["val_span_accuracy"] < found["val_accuracy"], "marks are easier than text"
    assert found["val_span_loss"] > found["val_loss"]
    assert isinstance(open_run(models).model, EncoderDecoder)


def test_measures_are_those_by_hand(models: Path) -> None:
    opened = open_run(models)
    model, config = opened.model, opened.config
    text = load_text(config)
    assert isinstance(text.objective, SpanCorruption)
    validation = Validation(text.tokens, config, 16, torch.device("cpu"), objective=text.objective)
    all_nats, nats, hits, size = [], [], [], 0
    for ids, targets in validation.part:
        assert ids.shape[1] == 20 and targets.shape[1] == 4  # 14 left, sentinel, end; 2 missing, sentinel, end
        logs = torch.log_softmax(model(ids[:, :-4], ids[:, -4:]).double(), -1)
        for row in range(len(ids)):
            for column, token in enumerate(targets[row].tolist()):
                all_nats.append(-logs[row, column, token].item())
                if token < 256:
                    size += 1
                    nats.append(all_nats[-1])
                    hits.append(int(logs[row, column].argmax()) == token)
    device = torch.device("cpu")
    found = evaluate_held_out(model, validation.part, text.tokens.token_bytes, device, accuracy=True, spans=True)
    assert found["val_loss"] == pytest.approx(sum(all_nats) / len(all_nats), rel=1e-5)
    assert found["val_span_loss"] == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert found["val_span_accuracy"] == sum(hits) / len(hits) and found["bytes"] == size
    whole = validation.on_all(model)
    rows = whole["val_documents"]
    assert sum(row["tokens"] for row in rows) == whole["val_tokens"]
    assert whole["val_loss"] == pytest.approx(sum(r["tokens"] * r["loss"] for r in rows) / whole["val_tokens"])
    assert whole["val_span_loss"] > whole["val_loss"]


@pytest.mark.parametrize("scheme", "geonorm ngpt hyper attnres post siamese prores".split())
def test_every_kind_of_scheme_trains(scheme: str, train: Any, tmp_path: Path) -> None:
    done = train(tmp_path / "run", *DENOISE, "--steps", 2, "--scheme", scheme)
    assert done.status == 0, done.err
    rows = list(read_rows(tmp_path / "run/trace.jsonl"))
    last = [row for row in rows if row["step"] == 2]
    assert [(row["stack"], row["kind"]) for row in last] == SITES
    assert all(row["angle"] is not None and row["grad_norm"] is not None for row in last)


def test_norms_of_both_stacks_are_measured(models: Path) -> None:
    rows = [row for row in read_rows(models / "norms.jsonl") if row["step"] == 60]
    ends = [(row["stack"], row["kind"]) for row in rows if row["kind"] in ("entry", "exit")]
    assert ends == [("encoder", "entry"), ("encoder", "exit"), ("decoder", "entry"), ("decoder", "exit")]


def test_a_comparison_and_its_report(call: Any, tiny: list[str], tmp_path: Path) -> None:
    words = [word if word != "257" else "258" for word in tiny]
    out = tmp_path / "both"
    shared = ["--objective", "denoise", "--schemes", "pre", "geonorm", "--steps", 2, "--seeds", 1, "--jobs", 1]
    assert call("compare", *words, *shared, "--out", out).status == 0
    results = json.loads((out / "results.json").read_text())
    assert all(0 <= run["val_accuracy"] <= 1 for run in results["runs"])
    page = (out / "report.html").read_text()
    assert "losses of missing spans" in page and ": encoder" in page and ": decoder" in page


def test_eval_and_probe(models: Path, call: Any, text: Path, tmp_path: Path) -> None:
    done = call("eval", models, "--data", text)
    assert done.status == 0, done.err
    found, ended = json.loads(done.out), summary(models)
    assert found["part"] == "held-out" and found["loss"] == pytest.approx(ended["val_loss"], rel=1e-4)
    assert found["span_loss"] == pytest.approx(ended["val_span_loss"], rel=1e-4)
    done = call(
        "probe", models, "--data", text, "--tokens", 256, "--gradients", "--ablate-blocks", "--out", tmp_path / "probe"
    )
    assert done.status == 0, done.err
    (one,) = json.loads((tmp_path / "probe/summary.json").read_text())["models"]
    assert one["loss"] == pytest.approx(ended["val_loss"], abs=0.5)
    rows = list(read_rows(tmp_path / "probe/trace.jsonl"))
    assert [(row["stack"], row["kind"]) for row in rows] == SITES and all(row["grad_norm"] > 0 for row in rows)
    assert {row["stack"] for row in read_rows(tmp_path / "probe/ablation.jsonl")} == {"encoder", "decoder"}
    ids = torch.randint(256, (2, 12))
    halves = geonorm.probe(open_run(models).model, ids)
    assert [(row["stack"], row["kind"]) for row in halves.sites] == SITES


def test_missing_spans_are_filled_in(models: Path, call: Any) -> None:
    done = call("generate", models, "--prompt", "the cat <extra_id_0>on a mat", "--temperature", 0)
    assert done.status == 0, done.err
    assert done.out.startswith("the cat ") and done.out.rstrip("\n").endswith("on a mat")
    refused = call("generate", models, "--prompt", "the cat")
    assert refused.status == 2 and len(refused.err.splitlines()) == 1 and "<extra_id_0>" in refused.err
    opened = open_run(models)
    model, source = opened.model, torch.tensor([opened.encode("the cat sat")])
    assert isinstance(model, EncoderDecoder)
    slow, fast = (
        torch.cat(list(generate_answer(model, source, 256, 8, temperature=0, cached=cached)), 1)
        for cached in (False, True)
    )
    assert torch.equal(slow, fast)


def test_spans_of_an_answer() -> None:
    assert read_spans([9, 100, 1, 2, 101, 3, 100, 4], (100, 101)) == {100: [1, 2], 101: [3]}
    assert read_spans([], (100,)) == {}


REFUSED = {
    "a preset of two stacks": (["--preset", "nano-t5"], "makes an encoder-decoder: it needs --objective denoise"),
    "an encoder for masks": (
        ["--objective", "mlm", "--model.encoder_layers", 2], "makes an encoder-decoder: it needs --objective denoise",
    ),
    "no room for sentinels": (["--objective", "denoise"], "tokenizer has 258 ids but the model's vocabulary is 257"),
    "values of tokens": ([*DENOISE, "--model.values", "token"], "model.values token is not for encoder-decoders"),
    "side by side": ([*DENOISE, "--model.block", "parallel"], "model.block parallel is not for encoder-decoders"),
    "tasks": ([*DENOISE, "--evaluation.tasks", "x"], "need a model of the next token, not --objective denoise"),
    "relative positions": (["--model.positions", "relative"], "model.positions relative is for encoder-decoders"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_input_is_one_line_and_writes_nothing(what: str, train: Any, tmp_path: Path) -> None:
    words, said = REFUSED[what]
    refused = train(tmp_path / "run", *words)
    assert refused.status == 2 and said in refused.err and len(refused.err.splitlines()) == 1, refused.err
    assert not (tmp_path / "run").exists()


def test_what_is_for_others_is_refused(models: Path, call: Any, tmp_path: Path) -> None:
    for words in (
        ["eval", models, "--tasks", "x"],
        ["train", "--config", models / "config.yaml", "--objective", "mlm"],
    ):
        refused = call(*words)
        assert refused.status == 2 and len(refused.err.splitlines()) == 1, refused.err
