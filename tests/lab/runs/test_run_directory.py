"""The run directory of design section 8, its locks, and that config.yaml repeats the run."""

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from geonorm.lab.data.batches import Batches
from geonorm.lab.open import open_run
from geonorm.lab.runs.folder import read_summary

from ..conftest import rows

METRICS = set(
    "step tokens loss lr grad_norm tokens_per_second seconds batch_seconds model_seconds optimizer_seconds "
    "peak_memory_bytes".split()
)
TRACE = set(
    "step scheme layer kind t radius radius_cv step_norm radial tangential ratio ratio_p99 angle off_plane update_norm "
    "clamped cos_ones angle_ones cos_null rotation cos_pair grad_norm".split()
)
NORMS = set("step scheme layer kind t norm tokens norm_before norm_after rotation cos_ones_before".split())
SUMMARY = set(
    "status scheme seed steps tokens parameters matmul_parameters lr train_loss val_loss val_bpb spikes grad_spikes "
    "tokens_per_second peak_memory_bytes wall_seconds".split()
)
ENVIRONMENT = set(
    """geonorm commit python platform torch numpy tokenizers backend device cores threads data_sha256 tokenizer_sha256
    schemes step identity accepted""".split()
)


def test_files_and_keys(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(run, "--steps", 4, "--evaluation.every", 2, "--checkpoint.every", 2)
    assert result.status == 0 and result.err == ""
    assert {path.name for path in run.iterdir()} == {
        ".lock", "config.yaml", "environment.json", "tokenizer.json",
        "metrics.jsonl", "trace.jsonl", "norms.jsonl", "summary.json", "checkpoints",
    }  # fmt: skip
    metrics, trace = rows(run / "metrics.jsonl"), rows(run / "trace.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    evaluated = {"val_loss", "val_bpb", "evaluation_seconds"}
    for row in metrics:  # a checkpoint is saved behind the second step and the fourth
        more = (evaluated if row["step"] % 2 == 0 else set()) | ({"checkpoint_seconds"} if row["step"] == 3 else set())
        assert set(row) == METRICS | more
        parts = sum(row[f"{part}_seconds"] for part in ("batch", "model", "optimizer"))
        assert parts < 64 / row["tokens_per_second"]
    assert all(math.isfinite(value) for row in metrics for value in row.values())
    assert [row["tokens"] for row in metrics] == [64, 128, 192, 256]
    assert [(row["step"], row["layer"], row["kind"], row["t"]) for row in trace] == [
        (step, 0, kind, 1) for step in (2, 4) for kind in ("attn", "mlp")
    ]
    assert all(set(row) >= TRACE for row in trace)
    norms = rows(run / "norms.jsonl")  # geonorm itself has norms at its ends alone
    assert [(row["step"], row["kind"], row["norm"]) for row in norms] == [
        (step, kind, "norm") for step in (2, 4) for kind in ("entry", "exit")
    ]
    assert all(set(row) >= NORMS for row in norms)
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) >= SUMMARY and summary["status"] == "finished" and summary["steps"] == 4
    assert summary["val_loss"] == metrics[-1]["val_loss"] and summary["tokens"] == 256
    assert summary["tokens_per_second"] == median(row["tokens_per_second"] for row in metrics)
    for damaged in ({**summary, "val_loss": 1.0}, {key: summary[key] for key in summary if key != "parameters"}):
        (run / "summary.json").write_text(json.dumps(damaged))
        assert read_summary(run) is None
    (part,) = json.loads((run / "environment.json").read_text())
    assert set(part) == ENVIRONMENT and part["step"] == 0 and part["schemes"] == {}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step-2", "step-4"}


def test_the_seed_reaches_weights_and_data(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, ids, weights = Batches.at, {}, {}
    for seed in (0, 1):

        def note(batches: Batches, *place: Any, seed: int = seed) -> Any:
            ids[seed], targets = read(batches, *place)
            return ids[seed], targets

        monkeypatch.setattr(Batches, "at", note)
        assert train(tmp_path / f"{seed}", "--steps", 1, "--lr", 0, "--seed", seed).status == 0
        weights[seed] = list(open_run(tmp_path / f"{seed}").model.weights())
    assert not ids[0].equal(ids[1])
    assert not any(a.equal(b) for (_, a, *_), (_, b, *_) in zip(weights[0], weights[1], strict=True))
