"""Nothing that happens around a run ends it unsaved or with status 0: closed pipes, lost terminals, killed parents,
removed folders."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geonorm.errors import CheckpointError
from geonorm.lab import checkpoint
from geonorm.lab.runs.folder import LOCK, lock_folder

from ..conftest import summary

STEPS = ["--steps", "9", "--checkpoint.every", "9", "--evaluation.every", "1"]


def stopped_early(run: Path) -> bool:
    ended, saved = summary(run), checkpoint.saved_steps(run / "checkpoints")
    return bool(ended["status"] == "interrupted" and saved == [ended["steps"]] and ended["steps"] < 9)


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
    assert checkpoint.saved_steps(tmp_path / "run" / "checkpoints") == [summary(tmp_path / "run")["steps"]]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("ignored", [False, True])
def test_lost_terminal(train: Any, after: Any, tmp_path: Path, number: signal.Signals, ignored: bool) -> None:
    """nohup, which ignores SIGHUP, is respected."""
    before = signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    with after(4, lambda: signal.raise_signal(number)):
        result = train(tmp_path / "run", *STEPS)
    assert signal.signal(number, before) is (signal.SIG_IGN if ignored else signal.SIG_DFL)
    goes_on = ignored and number == signal.SIGHUP
    assert result.status == (0 if goes_on else 130) and stopped_early(tmp_path / "run") is not goes_on
    assert goes_on or 0 < summary(tmp_path / "run")["stopped_within"] < 60


def test_removed_folder_does_not_grow_back(train: Any, after: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with after(4, lambda: shutil.rmtree(run)):
        result = train(run, *STEPS)
    assert result.status == 2 and "No such file or directory" in result.err
    assert len(result.err.splitlines()) == 1 and not run.exists()


def test_lock_holds_the_number_of_its_process_and_follows_no_link(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"):
        assert int((tmp_path / "run" / LOCK).read_text()) == os.getpid()
        with pytest.raises(CheckpointError, match="in use by another process; wait"), lock_folder(tmp_path / "run"):
            pass
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(CheckpointError, match="cannot write to"), lock_folder(tmp_path / "linked"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "mine"
