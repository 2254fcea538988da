"""Several lengths from one trunk: a branch equals the run that was planned so from its first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geonorm.lab.config import TrainConfig
from geonorm.lab.resolve import resolve
from geonorm.lab.runs.folder import write_settings
from geonorm.lab.train.branch import find_shared_prefix
from geonorm.settings import from_dict

from ...rows import each
from .saved import same

WSD = ["--optim.schedule", "wsd", "--optim.warmup_steps", 2, "--optim.cooldown", 0.4, "--evaluation.every", 2]
TRUNK = ["--checkpoint.keep", 1]


@pytest.mark.parametrize(
    "options",
    [
        ["--scheme", "geonorm(learn=gain)", "--optim.name", "muon"],
        ["--scheme", "ngpt", "--recipe", "own", "--evaluation.average", 0.2],
        ["--scheme", "pre", "--evaluation.average", 0.6],
    ],
)
def test_a_branch_equals_the_run_that_was_planned_so(
    train: Any, losses: Any, tmp_path: Path, options: list[Any]
) -> None:
    """Longer than its trunk, and shorter: the trunk's own checkpoint, or one on the way."""
    short, long, branch, back = (tmp_path / name for name in ("short", "long", "branch", "back"))
    assert train(short, *WSD, *TRUNK, *options, "--steps", 10).status == 0
    kept = sorted(path.name for path in (short / "checkpoints").iterdir())
    assert kept == ["step-10", "step-6"]
    assert train(long, *WSD, *options, "--steps", 20, "--checkpoint.every", 4, "--checkpoint.keep", 9).status == 0
    grown = train(branch, *WSD, *options, "--steps", 20, "--branch", short)
    assert grown.status == 0 and f"resuming {branch} at step 6 of 20" in grown.out
    assert losses(branch) == losses(long) and same(branch, long, 20)
    for name in ("trace.jsonl", "norms.jsonl"):
        assert (branch / name).read_text() == (long / name).read_text()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (branch, long)]
    assert summaries[0]["val_loss"] == summaries[1]["val_loss"] and summaries[0]["steps"] == 20
    assert summaries[0].get("val_loss_average") == summaries[1].get("val_loss_average")
    again = train(back, *WSD, *options, "--steps", 10, "--branch", long)
    assert again.status == 0 and f"resuming {back} at step 4 of 10" in again.out
    assert losses(back) == losses(short) and same(back, short, 10)


def test_a_branch_that_is_stopped_goes_on_by_itself(train: Any, losses: Any, after: Any, tmp_path: Path) -> None:
    short, long, branch = tmp_path / "short", tmp_path / "long", tmp_path / "branch"
    train(short, *WSD, *TRUNK, "--steps", 10)
    train(long, *WSD, "--steps", 20)
    with after(9):
        assert train(branch, *WSD, "--steps", 20, "--branch", short).status == 130
    moved = tmp_path / "moved"  # only the beginning needs the trunk to be there
    resumed = train(branch, *WSD, "--steps", 20, "--branch", short.rename(moved).with_name("moved"))
    assert resumed.status == 0 and "at step 9 of 20" in resumed.out
    assert losses(branch) == losses(long) and same(branch, long, 20)


@each(
    "options, said",
    [
        (["--lr", 1e-3], "a run with lr 0.005, not 0.001"),
        (["--optim.warmup_steps", 3], "a run with optim.warmup_steps 2, not 3"),
        (["--scheme", "post"], "a run with scheme geonorm, not post"),
        (["--branch", "nowhere"], "there is no run nowhere"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(train: Any, tmp_path: Path, options: list[Any], said: str) -> None:
    short, branch = tmp_path / "short", tmp_path / "branch"
    train(short, *WSD, *TRUNK, "--steps", 10)
    given = dict(zip(WSD[::2], WSD[1::2], strict=True)) | {"--branch": short}
    given |= dict(zip(options[::2], options[1::2], strict=True))
    refused = train(branch, *(word for pair in given.items() for word in pair), "--steps", 20)
    assert refused.status == 2 and said in refused.err and refused.err.count("\n") == 1
    assert not branch.exists()


def test_a_warm_up_that_grows_with_the_length_shares_nothing(train: Any, tmp_path: Path) -> None:
    share = ["--optim.schedule", "wsd", "--optim.warmup", 0.2]
    assert train(tmp_path / "short", *share, "--steps", 10, *TRUNK).status == 0
    refused = train(tmp_path / "branch", *share, "--steps", 20, "--branch", tmp_path / "short")
    assert (
        refused.status == 2
        and "another learning rate at step 1; give both the same --optim.warmup-steps" in refused.err
    )


@each("average, last", [(0.0, 60), (0.2, 60), (0.8, 40)])
def test_what_is_shared_ends_where_weights_are_averaged(average: float, last: int, tmp_path: Path) -> None:
    """The mean over the last steps of a run is of its own steps, whichever trunk they lie in."""
    settings = {"optim": {"schedule": "wsd", "warmup_steps": 2, "cooldown": 0.4}, "evaluation": {"average": average}}
    write_settings(tmp_path / "config.yaml", {**settings, "steps": 100})
    setup = resolve(from_dict(TrainConfig, {**settings, "steps": 200, "branch": str(tmp_path)}))
    prefix = find_shared_prefix(setup.folder, setup.schedule)
    assert prefix is not None and prefix.last == last
