"""Nothing that happens around a run ends it unsaved or with status 0: closed pipes, lost terminals, killed parents,
removed folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geonorm.errors import CheckpointError
from geonorm.lab import checkpoint
from geonorm.lab.runs.folder import LOCK, check_free, lock_folder
from geonorm.lab.train import loop, signals
from geonorm.lab.train.signals import PARENT

STEPS = ["--steps", "9", "--checkpoint.every", "9", "--evaluation.every", "1"]


def stopped_early(run: Path) -> bool:
    summary = json.loads((run / "summary.json").read_text())
    saved = checkpoint.saved_steps(run / "checkpoints")
    return summary["status"] == "interrupted" and saved == [summary["steps"]] and summary["steps"] < 9


def test_closed_pipe(tiny: list[str], tmp_path: Path) -> None:
    """geonorm train ... | head -3"""
    steps = ["--steps", "100000", "--checkpoint.every", "100000", "--evaluation.every", "5"]
    command = [sys.executable, "-m", "geonorm", "train", *tiny, *steps, "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        assert [running.stdout.readline() for _ in range(3)][-1].startswith("step 5/")
        running.stdout.close()
        err = running.stderr.read()
    assert running.returncode == 130 and "saved in" in err and len(err.splitlines()) == 1, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert checkpoint.saved_steps(tmp_path / "run" / "checkpoints") == [summary["steps"]]


def test_comparison_that_nobody_hears(tiny: list[str], tmp_path: Path) -> None:
    """geonorm compare ... | true: the first line that cannot be said stops it."""
    command = [sys.executable, "-m", "geonorm", "compare", *tiny, "--steps", "2", "--schemes", "pre", "--seeds", "2"]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*command, "--jobs", "1", "--out", tmp_path / "out"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert ended.returncode == 130 and b"every run is saved" in ended.stderr, ended


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_lost_terminal(train: Any, after: Any, tmp_path: Path, number: signal.Signals) -> None:
    ignored = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may have started them with nohup
    with after(4, lambda: signal.raise_signal(number)):
        result = train(tmp_path / "run", *STEPS)
    assert signal.signal(number, ignored) is signal.SIG_DFL and signal.getsignal(signal.SIGINT) is not None
    assert result.status == 130 and stopped_early(tmp_path / "run")


def test_the_record_of_a_stop_begins_with_its_signal(
    train: Any, after: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stopped_within is what is left of the step that the signal came in, and the save; by a clock of the test's own,
    which earlier steps move too."""
    now = 1000.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    def stop() -> None:
        signal.raise_signal(signal.SIGTERM)
        passes(3)

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(signals, "time", clock)
    save = loop.save_state

    def slow(*args: Any) -> None:
        save(*args)
        passes(7)

    monkeypatch.setattr(loop, "save_state", slow)
    with ExitStack() as acts:
        for step in range(1, 5):
            acts.enter_context(after(step, lambda: passes(50)))
        acts.enter_context(after(4, stop))
        assert train(tmp_path / "run", *STEPS).status == 130
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["stopped_within"]) == (4, 10.0)


def test_nohup_is_respected(train: Any, after: Any, tmp_path: Path) -> None:
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with after(4, lambda: signal.raise_signal(signal.SIGHUP)):
            assert train(tmp_path / "run", *STEPS).status == 0
    finally:
        signal.signal(signal.SIGHUP, old)


def test_killed_parent(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that started the run is not its parent any more: the run saves and ends."""
    monkeypatch.setenv(PARENT, "1" if os.getppid() != 1 else "2")
    result = train(tmp_path / "run", "--steps", "100000", "--checkpoint.every", "100000")
    assert result.status == 130 and PARENT not in os.environ
    assert checkpoint.saved_steps(tmp_path / "run" / "checkpoints")


def test_removed_folder_does_not_grow_back(train: Any, after: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with after(4, lambda: shutil.rmtree(run)):
        result = train(run, *STEPS)
    assert result.status == 2 and "No such file or directory" in result.err
    assert len(result.err.splitlines()) == 1 and not run.exists()


def test_lock_holds_the_number_of_its_process_and_follows_no_link(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"):
        assert int((tmp_path / "run" / LOCK).read_text()) == os.getpid()
        with pytest.raises(CheckpointError, match="in use by another process; wait"):
            check_free(tmp_path / "run", "wait")
    check_free(tmp_path / "run", "wait")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(CheckpointError, match="cannot write to"), lock_folder(tmp_path / "linked"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_others_may_read_what_a_run_leaves(train: Any, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--steps", "1").status == 0
    folder = tmp_path / "run" / "checkpoints" / "step-1"
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_rows_that_are_none_of_ours_are_dropped(train: Any, after: Any, tmp_path: Path) -> None:
    with after(4):
        assert train(tmp_path / "run", *STEPS).status == 130
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": "three"}\n{"loss": 1}\n{"step": 2, "loss": "low"}\n[1]\n' + "[" * 100_000 + "\n")
    assert train(tmp_path / "run", *STEPS).status == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 10))
