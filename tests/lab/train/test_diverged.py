"""A loss that is not finite: diagnosis, summary, last good checkpoint, and what the same command says later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.lab import checkpoint
from geonorm.lab.runs.folder import read_rows
from geonorm.lab.train import loop, validation
from geonorm.lab.train.hooks import Hook

from ..conftest import add_hook, summary


class Poison(Hook):
    """After this step the model's MLP returns infinity."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, state: Any, row: Any) -> None:
        if state.step == self.step:
            with torch.no_grad():
                state.model.blocks[0].mlp.branch.down.weight.fill_(float("inf"))


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
