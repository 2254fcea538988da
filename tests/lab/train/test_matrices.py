"""Norms that are held, angles between a matrix and itself one step later, checkpoints by the clock."""

from __future__ import annotations

import json
from math import pi
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig
from geonorm.errors import ConfigError
from geonorm.lab.open import open_run
from geonorm.lab.runs.run import read_rows
from geonorm.lab.scale import checkpoint
from geonorm.lab.train import loop
from geonorm.lab.train.matrices import HeldNorms, Turning

from ...rows import each

SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}


def norms(model: Decoder) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for role, weight, _, _ in model.weights():
        found.setdefault(role, []).append(weight.norm().item())
    return found


def test_norms_are_held_and_others_are_free(train: Any, tmp_path: Path) -> None:
    held = ["--optim.hold_norms", "o", "down"]
    for name, options in (("free", []), ("held", held)):
        assert train(tmp_path / name, "--steps", 6, "--lr", 0.05, *options).status == 0
    torch.manual_seed(0)
    free = open_run(tmp_path / "free").model
    held = open_run(tmp_path / "held")
    kept, config = held.model, held.config
    begun = norms(Decoder(config.shape(config.scheme)))
    torch.manual_seed(0)
    begun = norms(Decoder(config.shape(config.scheme)))
    for role, values in norms(kept).items():
        if role in ("o", "down"):
            assert values == pytest.approx(begun[role], rel=1e-6)
            assert norms(free)[role] != pytest.approx(begun[role], rel=1e-3)
        else:
            assert values != pytest.approx(begun[role], rel=1e-3), role
    last = list(read_rows(tmp_path / "held" / "metrics.jsonl"))[-1]
    assert last["norm_o"] == pytest.approx(begun["o"][0]) and 0 < last["angle_o"] < pi


def test_a_resumed_run_holds_the_norms_of_the_start(train: Any, tmp_path: Path) -> None:
    options = ["--steps", 6, "--optim.hold_norms", "down", "--checkpoint.every", 2]
    train(tmp_path / "run", *options)
    for later in (4, 6):
        (tmp_path / "run" / "checkpoints" / f"step-{later}").rename(tmp_path / f"step-{later}")
    (tmp_path / "step-4").rename(tmp_path / "run" / "checkpoints" / "step-4")
    (tmp_path / "run" / "summary.json").unlink()
    whole = list(read_rows(tmp_path / "run" / "metrics.jsonl"))[-1]["val_loss"]
    assert "at step 4" in train(tmp_path / "run", *options).out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["val_loss"] == whole


def test_nothing_is_held_at_zero() -> None:
    with pytest.raises(ConfigError, match=r"begin at 0; choose another model.init"):
        HeldNorms(Decoder(DecoderConfig(init="zero", **SHAPE)), ["o"])


def test_a_role_that_the_model_has_no_matrix_of_is_refused() -> None:
    """It would be a run that holds nothing, compared with itself."""
    with pytest.raises(ConfigError, match="this model has no matrix gate"):
        HeldNorms(Decoder(DecoderConfig(mlp="gelu", **SHAPE)), ["o", "gate"])


def test_a_constraint_holds_after_every_step(train: Any, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--scheme", "ngpt", "--steps", 3, "--lr", 0.05).status == 0
    for role, weight, _, _ in open_run(tmp_path / "run").model.weights():
        lengths = weight.norm(dim=0 if role in ("o", "down") else -1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), msg=role)


@each("angle", [0.0, 1e-5, 0.3, 2.0])
def test_the_angle_of_a_step(angle: float) -> None:
    model = Decoder(DecoderConfig(**SHAPE)).double()
    turning = Turning(model)
    for role, weight, _, _ in model.weights():
        if role == "o":
            across = torch.randn_like(weight)
            across -= (across * weight).sum() / weight.square().sum() * weight
            across *= weight.norm() / across.norm()
            with torch.no_grad():
                weight.copy_(3 * (torch.cos(torch.tensor(angle)) * weight + torch.sin(torch.tensor(angle)) * across))
    row = turning.row()
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
