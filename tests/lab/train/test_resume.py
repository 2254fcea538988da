"""Stopped and resumed equals uninterrupted, bit for bit; signals; killed processes; damaged checkpoints."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from geonorm.lab.data.batches import Batches
from geonorm.lab.open import open_run
from geonorm.lab.storage import saved_steps
from geonorm.lab.train import loop
from geonorm.norms import TaperNorm

from ..conftest import rows, same, summary


def test_a_run_that_was_copied_goes_on_in_its_own_folder(
    train: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.yaml names the folder that it was copied from, by a path that means another place elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert train(Path("run"), "--steps", 2, "--optim.schedule", "constant").status == 0
    shutil.copytree("run", "copy")
    (tmp_path / "elsewhere").mkdir()
    for place, steps in (("copy/config.yaml", 4), ("../copy/config.yaml", 6)):
        assert call("train", "--config", Path(place), "--steps", steps).status == 0
        made = [len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) for name in ("run", "copy")]
        assert made == [2, steps]
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_steps_read_their_batch_at_each_roles_rate(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, at = list[int](), Batches.at
    monkeypatch.setattr(Batches, "at", lambda batches, step, rows: numbers.append(step) or at(batches, step, rows))
    options = ["--steps", 3, "--checkpoint.every", 1, "--optim.rates", "embed=1e-9"]
    assert train(tmp_path / "run", *options).status == 0 and numbers == [0, 1, 2]
    second, third = (load_file(tmp_path / f"run/checkpoints/step-{step}/model.safetensors") for step in (2, 3))
    moved = {name for name in third if not torch.allclose(second[name], third[name], atol=1e-6)}
    assert "model.embed.weight" not in moved and "model.head.weight" in moved, "the rate of a role holds in the loop"


def test_a_checkpoint_by_the_clock(train: Any, losses: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights in it are those that the scheme constrains."""
    for name, steps in (("long", [4]), ("short", [1, 2, 3, 4])):
        words = ["--scheme", "ngpt", "--lr", 0.05, "--checkpoint.every", 99, "--checkpoint.keep", 9]
        train(tmp_path / name, "--steps", 4, *words)
        assert saved_steps(tmp_path / name / "checkpoints") == steps
        monkeypatch.setattr(loop, "LONGEST_UNSAVED", 1e-9)
    assert losses(tmp_path / "long") == losses(tmp_path / "short")
    for role, weight, _, _ in open_run(tmp_path / "short").model.weights():
        lengths = weight.norm(dim=0 if role in ("o", "down") else -1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), msg=role)


def test_a_taper_that_was_stopped_and_resumed_is_uninterrupted(
    train: Any, after: Any, losses: Any, tmp_path: Path
) -> None:
    """Within its warm-up and within its cosine, bit for bit."""
    options = "--scheme peri --steps 8 --model.norm taper --model.taper_from 3 --model.taper_to 7".split()
    assert train(tmp_path / "whole", *options).status == 0
    for step in (2, 5):
        with after(step, lambda: time.sleep(1) or signal.raise_signal(signal.SIGINT)):
            assert train(tmp_path / str(step), *options).status == 130
        assert train(tmp_path / str(step), *options).status == 0
        assert same(tmp_path / "whole", tmp_path / str(step), 8)
        assert losses(tmp_path / "whole") == losses(tmp_path / str(step))
        seconds = [row["seconds"] for row in rows(tmp_path / str(step) / "metrics.jsonl")]
        assert seconds == sorted(seconds) and summary(tmp_path / str(step))["wall_seconds"] > 1
    model = open_run(tmp_path / "whole").model
    assert {m.gate.item() for m in model.modules() if isinstance(m, TaperNorm)} == {0.0}
