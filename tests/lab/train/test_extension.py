"""More steps for a run that has ended or was stopped: the run that was planned so, bit for bit; or one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from geonorm.lab.train import branch

from ...rows import each
from .saved import same

WARM = ["--optim.warmup_steps", 2, "--evaluation.every", 2]
SCHEDULES = {"wsd": ["--optim.schedule", "wsd", "--optim.cooldown", 0.4], "constant": ["--optim.schedule", "constant"]}


@pytest.mark.parametrize(
    ("schedule", "stopped", "options"),
    [
        ("wsd", None, ["--scheme", "ngpt", "--recipe", "own", "--evaluation.average", 0.3]),
        ("wsd", 8, []),
        ("constant", None, ["--scheme", "geonorm(learn=gain)", "--optim.name", "muon"]),
        ("constant", 8, []),
    ],
)
def test_an_extended_run_is_the_one_that_was_planned_so(
    train: Any, losses: Any, after: Any, tmp_path: Path, schedule: str, stopped: int | None, options: list[Any]
) -> None:
    run, planned = tmp_path / "run", tmp_path / "planned"
    given = [*WARM, *SCHEDULES[schedule], *options]
    if stopped is None:
        assert train(run, *given, "--steps", 10).status == 0
    else:
        with after(stopped):
            assert train(run, *given, "--steps", 10).status == 130
    short = losses(run)
    longer = train(run, *given, "--steps", 20)
    assert longer.status == 0, longer
    begin = 6 if schedule == "wsd" else 10 if stopped is None else stopped
    assert f"resuming {run} at step {begin} of 20" in longer.out
    assert train(planned, *given, "--steps", 20).status == 0
    assert losses(run) == losses(planned) and same(run, planned, 20)
    assert losses(run)[:begin] == short[:begin] and (losses(run)[: len(short)] == short) is (schedule == "constant")
    for name in ("trace.jsonl", "norms.jsonl"):
        assert (run / name).read_text() == (planned / name).read_text()
    summaries = [json.loads((each / "summary.json").read_text()) for each in (run, planned)]
    for key in ("status", "steps", "tokens", "val_loss", "train_loss", "val_loss_average"):
        assert summaries[0].get(key) == summaries[1].get(key), key
    configs = [yaml.safe_load((each / "config.yaml").read_text()) for each in (run, planned)]
    assert {**configs[0], "out": None} == {**configs[1], "out": None}
    again = train(run, *given, "--steps", 20)
    assert again.status == 0 and "is already finished" in again.out
    shorter = train(run, *given, "--steps", 10)
    assert shorter.status == 2 and "holds a run with steps 20, not 10" in shorter.err


@pytest.mark.parametrize("moment", ["rmtree", "unlink", "write_settings"])
def test_cut_short_at_any_moment_it_goes_on(
    train: Any, losses: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The folder then holds the shorter run or the longer one; either goes on, and no cooled-down step is taken for one
    of the trunk."""
    run, planned = tmp_path / "run", tmp_path / "planned"
    given = [*WARM, *SCHEDULES["wsd"]]
    assert train(run, *given, "--steps", 10).status == 0

    def cut(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        if moment == "unlink":
            patch.setattr(Path, "unlink", cut)
        elif moment == "rmtree":
            patch.setattr(branch, "shutil", type("Cut", (), {"rmtree": staticmethod(cut)}))
        else:
            patch.setattr(branch, "write_settings", cut)
        failed = train(run, *given, "--steps", 20)
    assert failed.status == 2 and "Input/output error" in failed.err
    assert yaml.safe_load((run / "config.yaml").read_text())["steps"] == 10
    assert train(run, *given, "--steps", 10).status == 0
    assert train(run, *given, "--steps", 20).status == 0
    assert train(planned, *given, "--steps", 20).status == 0
    assert losses(run) == losses(planned) and same(run, planned, 20)


def kept(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


@each(
    "first, then, said",
    [
        ([], [], "holds a run with steps 10, not 20: under a cosine every rate after warm-up would have been another"),
        (SCHEDULES["wsd"], [], "add --optim.warmup-steps 1 to extend it"),
        (SCHEDULES["constant"], ["--lr", 1e-3], "holds a run with lr 0.005, not 0.001"),
        (SCHEDULES["constant"], ["--optim.warmup_steps", 3], "with 1 of warm-up: add --optim.warmup-steps 1"),
        (SCHEDULES["constant"], ["--resume", "never"], "already holds a run"),
    ],
)  # fmt: skip
def test_what_cannot_be_extended_is_refused_in_a_line(
    train: Any, tmp_path: Path, first: list[Any], then: list[Any], said: str
) -> None:
    run = tmp_path / "run"
    assert train(run, *first, "--steps", 10).status == 0
    before = kept(run)
    schedule = [] if not first else first[:2]
    cooldown = first[2:4] if "wsd" in first else []
    refused = train(run, *schedule, *cooldown, *then, "--steps", 20)
    assert refused.status == 2 and said in refused.err and refused.err.count("\n") == 1, refused
    assert kept(run) == before


def test_damaged_checkpoints_lose_nothing_more(train: Any, tmp_path: Path) -> None:
    """The only one of the trunk is damaged: what the shorter run found stays."""
    run = tmp_path / "run"
    given = [*WARM, *SCHEDULES["wsd"], "--checkpoint.keep", 1]
    assert train(run, *given, "--steps", 10).status == 0
    (run / "checkpoints" / "step-6" / "model.safetensors").write_bytes(b"x")
    before = kept(run)
    refused = train(run, *given, "--steps", 20)
    assert refused.status == 2 and "step-6" in refused.err and kept(run) == before


def test_a_diverged_run_is_not_extended(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = [*WARM, *SCHEDULES["constant"]]
    assert train(run, *given, "--steps", 10).status == 0
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "diverged"}))
    refused = train(run, *given, "--steps", 20)
    assert refused.status == 2 and "steps 10, not 20, that diverged" in refused.err


def test_a_finished_run_without_checkpoints_stays_as_it_is(train: Any, tmp_path: Path) -> None:
    run, given = tmp_path / "run", [*WARM, *SCHEDULES["constant"]]
    assert train(run, *given, "--steps", 10).status == 0
    shutil.rmtree(run / "checkpoints")
    before = (run / "metrics.jsonl").read_bytes()
    refused = train(run, *given, "--steps", 20)
    assert refused.status == 2 and "none of its checkpoints is of the first 10" in refused.err
    assert (run / "metrics.jsonl").read_bytes() == before and (run / "summary.json").exists()


def test_a_run_without_checkpoints_begins_anew(train: Any, losses: Any, tmp_path: Path) -> None:
    """Killed before its first save: there is nothing to lose."""
    run, planned = tmp_path / "run", tmp_path / "planned"
    given = [*WARM, *SCHEDULES["wsd"]]
    assert train(run, *given, "--steps", 10).status == 0
    shutil.rmtree(run / "checkpoints")
    (run / "summary.json").unlink()
    assert train(run, *given, "--steps", 20).status == 0 and train(planned, *given, "--steps", 20).status == 0
    assert losses(run) == losses(planned)
