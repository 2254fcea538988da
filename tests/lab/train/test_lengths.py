"""More steps, as a branch or in the same folder: the run that was planned so from its first step; or one line."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from ...rows import each
from ..conftest import same, summary, without

WARM = ["--optim.warmup_steps", 2, "--evaluation.every", 2]
WSD = [*WARM, "--optim.schedule", "wsd", "--optim.cooldown", 0.4]
CONSTANT = [*WARM, "--optim.schedule", "constant"]
SHARE = ["--optim.schedule", "wsd", "--optim.warmup", 0.2]
ENDS = ("status", "steps", "tokens", "val_loss", "train_loss", "val_loss_average")


def assert_one_run(losses: Any, run: Path, planned: Path, steps: int) -> None:
    """Weights, optimizer, losses, geometry and summary, bit for bit."""
    assert losses(run) == losses(planned) and same(run, planned, steps)
    for name in ("trace.jsonl", "norms.jsonl"):
        assert (run / name).read_text() == (planned / name).read_text()
    assert [summary(run).get(key) for key in ENDS] == [summary(planned).get(key) for key in ENDS]


def contents(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    "options",
    [
        ["--scheme", "geonorm(learn=gain)", "--optim.name", "muon"],
        ["--scheme", "ngpt", "--recipe", "own", "--evaluation.average", 0.2],
        ["--scheme", "pre", "--evaluation.average", 0.6],
    ],
)
def test_a_branch_equals_the_run_that_was_planned_so(
    train: Any, losses: Any, after: Any, tmp_path: Path, options: list[Any]
) -> None:
    """Longer than its prefix, and shorter: the prefix's own checkpoint, or one on the way. One that is stopped goes on
    when the prefix is there no more, and one that is killed before its first record begins again."""
    short, long, grown, back = (tmp_path / name for name in ("short", "long", "grown", "back"))
    assert train(short, *WSD, "--checkpoint.keep", 1, "--checkpoint.every", 4, *options, "--steps", 10).status == 0
    assert sorted(path.name for path in (short / "checkpoints").iterdir()) == ["step-10", "step-6"]
    assert train(long, *WSD, *options, "--steps", 20, "--checkpoint.every", 2, "--checkpoint.keep", 9).status == 0
    with after(9):
        first = train(grown, *WSD, *options, "--steps", 20, "--branch", short)
    assert first.status == 130 and f"resuming {grown} at step 6 of 20" in first.out
    moved = short.rename(tmp_path / "moved")
    assert "at step 9 of 20" in train(grown, *WSD, *options, "--steps", 20, "--branch", short).out
    assert_one_run(losses, grown, long, 20)
    again = train(back, *WSD, *options, "--steps", 10, "--branch", long)
    assert again.status == 0 and f"resuming {back} at step {4 if 0.6 in options else 6} of 10" in again.out
    later = shutil.ignore_patterns("environment.json", "summary.json", "checkpoints")
    (begun := shutil.copytree(back, tmp_path / "begun", ignore=later)).joinpath("tokenizer.json").write_text("{")
    assert train(begun, *WSD, *options, "--steps", 10, "--branch", long).status == 0
    assert (begun / "tokenizer.json").read_text() == (long / "tokenizer.json").read_text()
    assert losses(back) == losses(moved) and same(back, moved, 10)


@each(
    "branch, first, then, message",
    [
        (True, WSD, ["--scheme", "post"], "a run with scheme geonorm, not post"),
        (True, WSD, ["--branch", "nowhere"], "there is no run nowhere"),
        (True, SHARE, [], "another learning rate at step 1; give both the same --optim.warmup-steps"),
        (False, [], [], "steps 10, not 20, which would have had other rates: a wsd or constant schedule"),
        (False, SHARE, [], "a wsd or constant schedule with --optim.warmup-steps 2 can be extended"),
        (False, CONSTANT, ["--optim.warmup_steps", 3], "with --optim.warmup-steps 2 can be extended"),
        (False, CONSTANT, ["--resume", "never"], "already holds a run"),
        (False, [*CONSTANT, "--evaluation.average", 0.8], [], "none of its checkpoints is of the first 4, which"),
    ],
)
def test_what_cannot_be_longer_is_refused_in_a_line(
    train: Any, tmp_path: Path, branch: bool, first: list[Any], then: list[Any], message: str
) -> None:
    run = tmp_path / "run"
    assert train(run, *first, "--steps", 10).status == 0
    before = contents(tmp_path)
    words, out = ([*first, "--branch", run], tmp_path / "grown") if branch else (first, run)
    refused = train(out, *without(words, then), *then, "--steps", 20)
    assert refused.status == 2 and message in refused.err and refused.err.count("\n") == 1, refused
    assert contents(tmp_path) == before
