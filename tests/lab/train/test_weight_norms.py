"""Angles between a matrix and itself one step later, checkpoints by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig
from geonorm.lab import checkpoint
from geonorm.lab.open import open_run
from geonorm.lab.runs.folder import read_rows
from geonorm.lab.train import loop
from geonorm.lab.train.weight_norms import copy_writers, measure_turns

from ...rows import each

SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}


def norms(model: Decoder) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for role, weight, _, _ in model.weights():
        found.setdefault(role, []).append(weight.norm().item())
    return found


def test_a_constraint_holds_after_every_step(train: Any, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--scheme", "ngpt", "--steps", 3, "--lr", 0.05).status == 0
    for role, weight, _, _ in open_run(tmp_path / "run").model.weights():
        lengths = weight.norm(dim=0 if role in ("o", "down") else -1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), msg=role)


@each("angle", [0.0, 1e-5, 0.3, 2.0])
def test_the_angle_of_a_step(angle: float) -> None:
    model = Decoder(DecoderConfig(**SHAPE)).double()
    before = copy_writers(model)
    for role, weight, _, _ in model.weights():
        if role == "o":
            across = torch.randn_like(weight)
            across -= (across * weight).sum() / weight.square().sum() * weight
            across *= weight.norm() / across.norm()
            with torch.no_grad():
                weight.copy_(3 * (torch.cos(torch.tensor(angle)) * weight + torch.sin(torch.tensor(angle)) * across))
    row = measure_turns(before)
    assert row["angle_o"] == pytest.approx(angle, rel=1e-4, abs=1e-7) and row["angle_down"] == pytest.approx(
        0, abs=1e-7
    )
    assert row["norm_o"] == pytest.approx(sum(norms(model)["o"]) / 2)


def test_a_checkpoint_by_the_clock(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, steps in (("long", [4]), ("short", [1, 2, 3, 4])):
        run = tmp_path / name
        train(run, "--steps", 4, "--checkpoint.every", 99, "--checkpoint.keep", 9)
        assert checkpoint.saved_steps(run / "checkpoints") == steps
        monkeypatch.setattr(loop, "LONGEST_UNSAVED", 1e-9)
    losses = [[row["loss"] for row in read_rows(tmp_path / name / "metrics.jsonl")] for name in ("long", "short")]
    assert losses[0] == losses[1]
