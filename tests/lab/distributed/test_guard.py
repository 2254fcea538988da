"""Bad batches are skipped or rewound, spikes too, and the record says so; a lost or stuck rank ends the others."""

from pathlib import Path
from typing import Any

import pytest

from geonorm.lab import checkpoint, storage
from geonorm.lab.runs.folder import read_rows
from geonorm.lab.train import loop

from ...rows import each
from ..conftest import same, spoil, summary


def test_losses_read_seldom_leave_out_the_bad_batch_alone(train: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """On a GPU a loss is read every ten steps, and by then nine more have been made with weights that are NaN: the one
    that was bad first is gone back behind, and no good batch with it."""
    monkeypatch.setitem(loop.LOG_EVERY, "cpu", 10)
    spoil(monkeypatch, lambda _, batch: batch == 13)
    options = ["--checkpoint.every", 10, "--evaluation.every", 24, "--guard", "rewind"]
    assert train(tmp_path / "run", "--steps", 24, *options).status == 0
    expected = {"step": 13, "action": "rewind", "what": "loss is not finite", "loss": None, "to": 10}
    assert summary(tmp_path / "run")["events"] == [expected]
    state = storage.read_state(tmp_path / "run" / "checkpoints" / "step-24")
    assert state["batch_offset"] == 3


def test_a_bad_batch_is_left_out(train: Any, losses: Any, after: Any, tmp_path: Path) -> None:
    """Batch 7 of the data is bad: back to step 6, whose next batch is then 8, so that but for the learning rate the
    weights are those of a run that never saw it. Interrupted right after, the run comes to the same end."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--steps", 12, "--checkpoint.every", 3, "--evaluation.every", 12, "--guard", "rewind"]
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch, lambda _, batch: batch == 7)
        result = train(whole, *options)
        with after(8):
            assert train(parts, *options).status == 130
        resumed = train(parts, *options)
    assert result.status == 0 and "loss is not finite at step 7: back to step 6, and on with other data" in result.out
    rows = list(read_rows(whole / "metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, 13)) and None not in [row["loss"] for row in rows]
    expected = [{"step": 7, "action": "rewind", "what": "loss is not finite", "loss": None, "to": 6}]
    assert summary(whole)["events"] == summary(parts)["events"] == expected
    assert storage.read_state(whole / "checkpoints" / "step-12")["batch_offset"] == 1
    assert resumed.status == 0 and "at step 8 of 12" in resumed.out
    assert losses(parts) == losses(whole) and same(whole, parts, 12)


def test_rewound_data_is_what_follows_the_bad_batch(train: Any, tmp_path: Path) -> None:
    """The batches that steps see: 1 2 3 | 4 5(bad) | then from step 3 on 6 7 ...: nothing twice, the bad one never."""
    seen: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch, lambda _, batch: batch == 5)
        fetch_batch = loop.fetch_batch

        def note(state: Any, step: int) -> Any:
            seen.append((step, step + state.batch_offset))
            return fetch_batch(state, step)

        patch.setattr(loop, "fetch_batch", note)
        assert train(tmp_path / "run", "--steps", 6, "--checkpoint.every", 3, "--guard", "rewind").status == 0
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (4, 6), (5, 7), (6, 8)]


def test_too_often_is_the_end(train: Any, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch, lambda _, batch: batch >= 4)
        result = train(tmp_path / "run", "--steps", 30, "--guard", "rewind")
    assert result.status == 2 and "the run was rewound 10 times before" in result.err
    assert summary(tmp_path / "run")["status"] == "diverged" and len(summary(tmp_path / "run")["events"]) == 10


@each("setting", ["rewind", "spikes"])
def test_a_jump_of_the_loss(train: Any, tmp_path: Path, setting: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch, lambda _, batch: batch == 30, factor=100.0)
        result = train(tmp_path / "run", "--steps", 36, "--checkpoint.every", 8, "--guard", setting)
    ended = summary(tmp_path / "run")
    tail = [row["loss"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")][-3:]
    assert ended["train_loss"] == pytest.approx(sum(tail) / 3), "of the last tenth of the steps"
    assert result.status == 0 and ended["spikes"] == (setting == "rewind"), "a rewound step's row is written anew"
    events = [(event["step"], event["what"][:8], event["to"]) for event in ended["events"]]
    assert events == ([(30, "loss jum", 24)] if setting == "spikes" else [])


WORLD = ["--steps", 12, "--batch_size", 4, "--evaluation.every", 12, "--checkpoint.every", 3]


@pytest.fixture
def world(ranks: Any, tiny: list[str], tmp_path: Path) -> Any:
    def start(job: str, *job_arguments: Any, options: list[Any]) -> Any:
        command = ["train", *tiny, "--out", tmp_path / "run", *WORLD, "--runtime.parallel", "fsdp", *options]
        return ranks(job, 2, *job_arguments, *command)

    return start


@pytest.mark.parametrize("action", ["rewind", "stop"])
def test_ranks_decide_alike(world: Any, tmp_path: Path, action: str) -> None:
    """The rows of the second rank alone are bad; a run whose ranks went different ways would hang."""
    ended = world("spoilt", 1, 7, options=["--guard", action])
    found = summary(tmp_path / "run")
    if action == "stop":
        assert [r.status for r in ended] == [2, 2] and "loss is not finite at step 7" in ended[0].err
        assert found["status"] == "diverged" and ended[1].err == ""
    else:
        assert [r.status for r in ended] == [0, 0], ended
        assert [(e["step"], e["action"]) for e in found["events"]] == [(7, action)]


@pytest.mark.parametrize(
    ("bad", "how", "where"), [(0, "stopped", "reading the batch"), (1, "asleep", "preparing the data")]
)
def test_a_rank_that_does_not_answer_ends_the_others(
    world: Any, tmp_path: Path, bad: int, how: str, where: str
) -> None:
    """With TIMEOUT at 6 seconds. However long the machine takes: what is waited for is the end of the process."""
    running = world("stuck", bad, 5, how, where, options=[])
    healthy = running.processes[1 - bad]
    healthy.join()
    assert healthy.exitcode == 2, running.read("err")
    line = f"geonorm train: rank {1 - bad}: lost another rank, or waited 0.1 minutes for it; the same command goes on"
    assert running.read("err")[1 - bad].startswith(line)
    if where == "reading the batch":
        assert checkpoint.saved_steps(tmp_path / "run" / "checkpoints") == [3]
        assert not (tmp_path / "run" / "summary.json").exists()


LOST = "geonorm train: rank 0: lost another rank, or waited"


@pytest.mark.parametrize(
    ("how", "where", "statuses", "lines"),
    [
        ("out of memory", "reading the batch", [2, 2], [LOST, "geonorm train: rank 1: out of memory"]),
        ("dead", "preparing the data", [2, 9], [LOST, ""]),
        ("torch is out of memory", "preparing the data", [2, 2], ["rank 1: DefaultCPUAllocator: can't allocate", ""]),
    ],
)
def test_the_cause_is_on_record(world: Any, how: str, where: str, statuses: list[int], lines: list[str]) -> None:
    """The rank that failed says why, and the other one that it is lost."""
    ended = world("stuck", 1, 5, how, where, options=[]).wait()
    assert [r.status for r in ended] == statuses
    assert all(line in r.err and len(r.err.splitlines()) <= 1 for r, line in zip(ended, lines, strict=True)), ended
