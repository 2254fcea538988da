"""Nothing ends a run unsaved or with status 0: closed pipes, lost terminals, removed folders, losses not finite."""

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from geonorm import Decoder, DecoderConfig
from geonorm.errors import CheckpointError
from geonorm.lab import checkpoint
from geonorm.lab.runs.folder import LOCK, lock_folder, read_rows
from geonorm.lab.train import loop, validation
from geonorm.lab.train.diagnose import diagnose
from geonorm.lab.train.hooks import Hook

from ..conftest import add_hook, summary

STEPS = ["--steps", "9", "--checkpoint.every", "9", "--evaluation.every", "1"]


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
    ended, saved = summary(tmp_path / "run"), checkpoint.saved_steps(tmp_path / "run" / "checkpoints")
    assert (result.status, ended["status"]) == ((0, "finished") if goes_on else (130, "interrupted"))
    assert saved[-1] == ended["steps"] and (ended["steps"] == 9) is goes_on


def test_removed_folder_does_not_grow_back(train: Any, after: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with after(4, lambda: shutil.rmtree(run)):
        result = train(run, *STEPS)
    assert result.status == 2 and "No such file or directory" in result.err
    assert len(result.err.splitlines()) == 1 and not run.exists()


def test_lock_holds_the_number_of_its_process_and_follows_no_link(tmp_path: Path, monkeypatch: Any) -> None:
    with lock_folder(tmp_path / "run"):
        assert int((tmp_path / "run" / LOCK).read_text()) == os.getpid()
        with pytest.raises(CheckpointError, match="in use by another process; wait"), lock_folder(tmp_path / "run"):
            pass
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="No locks available"):
        patch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
        with lock_folder(tmp_path / "unlocked"):
            pass
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(CheckpointError, match="cannot write to"), lock_folder(tmp_path / "linked"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "mine"


class Poison(Hook):
    """After this step the model's MLP returns infinity."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, state: Any, row: Any) -> None:
        if state.step == self.step:
            with torch.no_grad():
                state.model.blocks[0].mlp.branch.down.weight.fill_(float("inf"))


def test_a_diagnosis_of_an_update_whose_square_overflows() -> None:
    """A norm behind the addition hides it: the stream is finite, and the length of the update no number."""
    model = Decoder(DecoderConfig("post", layers=2, width=16, heads=2, hidden=16, vocab_size=32))
    model.blocks[1].mlp.branch.down.weight.data *= 1e25
    assert "spike at layer 1 mlp: |u| = inf" in diagnose(model, torch.arange(8)[None], 5, "loss is not finite")


def test_diverged_run(train: Any, call: Any, monkeypatch: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    add_hook(monkeypatch, Poison(5))
    result = train(run, "--steps", 9, "--checkpoint.every", 2)
    assert result.status == 2 and len(result.err.splitlines()) == 1
    line = (
        r"geonorm train: loss is not finite at step 6; 1 parameters are not finite, first blocks\.0\.mlp\.branch\.down"
        r"\.weight; first sub-layer to overflow: decoder layer 0 mlp; clamp rate [\d.]+%; smallest \|x\| = [\d.]+; a"
    )
    assert re.match(line, result.err), result.err
    ended = summary(run)
    assert ended["status"] == "diverged" and ended["steps"] == 5 and ended["diagnosis"] in result.err
    assert checkpoint.saved_steps(run / "checkpoints") == [2, 4]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    again = train(run, "--steps", 9, "--checkpoint.every", 2)
    assert again.status == 2 and "has diverged and would again: loss is not finite at step 6" in again.err
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert call("generate", run, "--tokens", 2).status == 0  # from the last good checkpoint
    monkeypatch.setattr(Poison, "after_step", Hook.after_step)
    changed = train(run, "--steps", 9, "--checkpoint.every", 2, "--lr", 1e-4, "--accept-changed", "lr")
    assert changed.status == 0 and summary(run)["status"] == "finished"


def test_gradient_alone(train: Any, monkeypatch: Any, tmp_path: Path) -> None:
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args: clip(*args) * float("nan"))
    result = train(tmp_path / "run", "--steps", 3)
    assert result.status == 2 and "gradient norm is not finite at step 1" in result.err
    assert "largest update at layer 0" in result.err


def test_validation_loss_alone(train: Any, monkeypatch: Any, tmp_path: Path) -> None:
    nan = dict.fromkeys(("val_loss", "val_bpb", "tokens", "bytes"), float("nan"))
    monkeypatch.setattr(validation, "evaluate_held_out", lambda *_: nan)
    result = train(tmp_path / "run", "--steps", 6, "--evaluation.every", 3, "--checkpoint.every", 1)
    assert result.status == 2 and "validation loss is not finite at step 3" in result.err
    assert summary(tmp_path / "run")["status"] == "diverged"
    assert checkpoint.saved_steps(tmp_path / "run" / "checkpoints") == [1, 2]
    assert list(read_rows(tmp_path / "run" / "metrics.jsonl"))[-1]["val_loss"] is None


@pytest.mark.parametrize("saving", [3, 4])
def test_losses_read_seldom_still_keep_bad_steps_out(train: Any, monkeypatch: Any, tmp_path: Path, saving: int) -> None:
    """On a GPU losses are read every ten steps; before every checkpoint they are read as well."""
    monkeypatch.setitem(loop.LOG_EVERY, "cpu", 10)
    add_hook(monkeypatch, Poison(4))
    result = train(tmp_path / "run", "--steps", 30, "--checkpoint.every", saving, "--evaluation.every", 30)
    assert result.status == 2 and "is not finite at step" in result.err
    assert checkpoint.saved_steps(tmp_path / "run" / "checkpoints") == [saving]
    losses = [row["loss"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert None not in losses[:4] and None in losses[4:]
