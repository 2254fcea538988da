"""The run directory of design section 8, its locks, and that config.yaml repeats the run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from geonorm.errors import CheckpointError
from geonorm.lab.config import TrainConfig
from geonorm.lab.data.batches import Batches
from geonorm.lab.open import open_run
from geonorm.lab.runs.folder import RunFolder
from geonorm.settings import to_dict

from ...rows import each

METRICS = {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_second", "seconds"}
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
    schemes step""".split()
)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_and_keys(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(run, "--steps", 4, "--evaluation.every", 2)
    assert result.status == 0 and result.err == ""
    assert {path.name for path in run.iterdir()} == {
        ".lock", "config.yaml", "environment.json", "tokenizer.json",
        "metrics.jsonl", "trace.jsonl", "norms.jsonl", "summary.json", "checkpoints",
    }  # fmt: skip
    metrics, trace = lines(run / "metrics.jsonl"), lines(run / "trace.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    measured = {"val_loss", "val_bpb", "angle_o", "angle_down", "norm_o", "norm_down"}
    assert all(set(row) == METRICS | (measured if row["step"] % 2 == 0 else set()) for row in metrics)
    assert all(math.isfinite(value) for row in metrics for value in row.values())
    assert [row["tokens"] for row in metrics] == [64, 128, 192, 256]
    assert [(row["step"], row["layer"], row["kind"], row["t"]) for row in trace] == [
        (step, 0, kind, 1) for step in (2, 4) for kind in ("attn", "mlp")
    ]
    assert all(set(row) >= TRACE for row in trace)
    norms = lines(run / "norms.jsonl")  # geonorm itself has norms at its ends alone
    assert [(row["step"], row["kind"], row["norm"]) for row in norms] == [
        (step, kind, "norm") for step in (2, 4) for kind in ("entry", "exit")
    ]
    assert all(set(row) >= NORMS for row in norms)
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) >= SUMMARY and summary["status"] == "finished" and summary["steps"] == 4
    assert summary["val_loss"] == metrics[-1]["val_loss"] and summary["tokens"] == 256
    (part,) = json.loads((run / "environment.json").read_text())
    assert set(part) == ENVIRONMENT and part["step"] == 0 and part["schemes"] == {}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step-3", "step-4"}


def test_stored_config_repeats_the_run(train: Any, call: Any, losses: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    options = [
        "--scheme",
        "geonorm(decay=sqrt, max_angle=pi/8)",
        "--optim.betas",
        0.8,
        0.9,
        "--model.tied",
        "--seed",
        3,
    ]
    assert train(first, "--steps", 4, *options).status == 0
    result = call("train", "--config", first / "config.yaml", "--out", second)
    assert result.status == 0, result.err
    assert losses(first) == losses(second)
    a, b = (yaml.safe_load((run / "config.yaml").read_text()) for run in (first, second))
    assert {**a, "out": None} == {**b, "out": None}
    assert a["optim"]["betas"] == [0.8, 0.9] and a["model"]["tied"] is True


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


def test_finished_run_is_not_run_again(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, "--steps", 2)
    before = (run / "metrics.jsonl").read_text()
    again = train(run, "--steps", 2)
    assert again.status == 0 and "already finished" in again.out
    assert (run / "metrics.jsonl").read_text() == before
    refused = train(run, "--steps", 2, "--resume", "never")
    assert refused.status == 2 and "already holds a run" in refused.err


@each(
    "make, said",
    [
        (lambda out: out.write_text("x"), "is a file"),
        (lambda out: (out.mkdir(), (out / "thesis.tex").write_text("x")), "is not empty and holds no run"),
        (lambda out: (out.mkdir(), (out / "config.yaml").write_text("[1")), "is not readable YAML"),
        (lambda out: (out.mkdir(), (out / "config.yaml").write_text("7")), "is not a mapping"),
        (
            lambda out: (out.mkdir(), (out / "config.yaml").write_text("steps: x")),
            "does not hold the settings of a run",
        ),
        (lambda out: (out.mkdir(), (out / "config.yaml").write_text("stepz: 1")), "did you mean 'steps'"),
    ],
)
def test_directories_that_are_refused(train: Any, tmp_path: Path, make: Any, said: str) -> None:
    out = tmp_path / "out"
    make(out)
    before = sorted(path.name for path in out.iterdir()) if out.is_dir() else out.read_text()
    result = train(out, "--steps", 2)
    assert result.status == 2 and said in result.err and len(result.err.splitlines()) == 1
    assert before == (sorted(path.name for path in out.iterdir()) if out.is_dir() else out.read_text())


def test_other_settings_are_refused_by_name(train: Any, tmp_path: Path) -> None:
    train(tmp_path / "run", "--steps", 2)
    result = train(tmp_path / "run", "--steps", 3)
    assert result.status == 2 and "holds a run with steps 2, not 3" in result.err
    result = train(tmp_path / "run", "--steps", 2, "--optim.clip", 2)
    assert "optim.clip 1.0, not 2.0" in result.err
    for setting, value in (("lr", 0.001), ("seed", 3), ("scheme", "pre"), ("batch_size", 2)):
        assert f"{setting} " in train(tmp_path / "run", "--steps", 2, f"--{setting}", value).err


def test_directory_in_use_is_refused(train: Any, tmp_path: Path) -> None:
    place = tmp_path / "run", to_dict(TrainConfig(out=str(tmp_path / "run")))
    with RunFolder.open(*place):
        result = train(tmp_path / "run")
        assert result.status == 2 and "holds a run with" in result.err  # other settings, seen before the lock
        with (
            pytest.raises(CheckpointError, match="in use by another process"),
            RunFolder.open(*place),
        ):
            pass
    with RunFolder.open(*place):
        pass


def test_crash_before_the_first_file_is_no_obstacle(train: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    assert train(tmp_path / "run", "--steps", 1).status == 0
