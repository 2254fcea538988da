"""Stopped and resumed equals uninterrupted, bit for bit; signals; killed processes; damaged checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from geonorm.lab.data.batches import Batches
from geonorm.lab.open import open_run
from geonorm.lab.storage import saved_steps
from geonorm.lab.train import loop

from .saved import same


@pytest.mark.parametrize(
    ("scheme", "optimizer", "accumulate"),
    [
        ("pre", "muon", 2),
        ("geonorm(learn=gain)", "muon", 1),
        ("ngpt", "adamw", 2),
    ],
)
def test_ten_steps_equal_five_and_five(
    train: Any, losses: Any, after: Any, tmp_path: Path, scheme: str, optimizer: str, accumulate: int
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--scheme", scheme, "--optim.name", optimizer, "--runtime.accumulate", accumulate, "--steps", 10]
    assert train(whole, *options).status == 0
    with after(5):
        stopped = train(parts, *options)
    assert stopped.status == 130
    assert stopped.err == f"stopped at step 5 of 10; saved in {parts}; the same command goes on from there\n"
    assert json.loads((parts / "summary.json").read_text())["status"] == "interrupted"
    resumed = train(parts, *options)
    assert resumed.status == 0 and f"resuming {parts} at step 5 of 10" in resumed.out
    assert losses(whole) == losses(parts)
    assert same(whole, parts, 10)
    assert (whole / "trace.jsonl").read_text() == (parts / "trace.jsonl").read_text()


def test_a_last_step_that_is_interrupted_is_the_end(train: Any, after: Any, tmp_path: Path) -> None:
    with after(4):
        assert train(tmp_path / "run", "--steps", 4).status == 0


def flip(path: Path, at: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", None])
def test_damaged_newest_checkpoint_is_passed_over(
    train: Any, losses: Any, after: Any, tmp_path: Path, name: str | None
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    options = ["--steps", 10, "--checkpoint.every", 2]
    train(whole, *options)
    with after(8):
        train(run, *options)
    damaged = run / "checkpoints" / "step-8" / (name or "model.safetensors")
    if name is None:
        damaged.unlink()
    elif name == "state.json":
        damaged.write_text(damaged.read_text().replace('"step": 8', '"step": 9'))
    else:
        flip(damaged)
    resumed = train(run, *options)
    assert resumed.status == 0, resumed.err
    assert "step-8" in resumed.out and "falling back" in resumed.out and "at step 6 of 10" in resumed.out
    assert losses(run) == losses(whole)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-10", "step-8"]


def test_nothing_usable_is_one_line(train: Any, call: Any, after: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with after(4):
        train(run, "--steps", 6, "--checkpoint.every", 2)
    for folder in (run / "checkpoints").iterdir():
        flip(folder / "model.safetensors")
    before = (run / "metrics.jsonl").read_text()
    for result in (train(run, "--steps", 6, "--checkpoint.every", 2), call("generate", run, "--tokens", 2)):
        assert result.status == 2 and "no usable checkpoint" in result.err.splitlines()[-1]
        assert (result.out + result.err).count("falling back") == len(list((run / "checkpoints").iterdir())) - 1
    assert (run / "metrics.jsonl").read_text() == before


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
