"""A checkpoint says what it was made from, and whoever reads it compares: settings, data, tokenizer, scheme."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geonorm.errors import ConfigError
from geonorm.lab.distributed.ranks import ALONE
from geonorm.lab.train.loop import check_ranks

from .test_lengths import contents

EDITS = [
    ("lr: 0.01", "lr: 0.05"),
    ("seed: 0", "seed: 1"),
    ("weight_decay: 0.1", "weight_decay: 0.2"),
    ("- 0.95", "- 0.99"),
    ("clip: 1.0", "clip: 2.0"),
    ("scheme: pre", "scheme: lns"),
    ("steps: 8", "steps: 12"),  # under a cosine every rate is another
]


@pytest.fixture(scope="module")
def stopped(trained: Callable[..., Path]) -> Path:
    """A run of eight steps whose summary and last checkpoint are gone, as if it had been killed after step 4."""
    run = trained("--scheme", "pre", "--lr", 0.01, "--steps", 8, "--checkpoint.every", 4, "--optim.clip", 1.0)
    shutil.rmtree(run / "checkpoints" / "step-8")
    (run / "summary.json").unlink()
    return run


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_an_edited_setting_is_refused_by_name(old: str, new: str, stopped: Path, call: Any, tmp_path: Path) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "run"))
    config = out / "config.yaml"
    text = config.read_text().replace(f"out: {stopped}", f"out: {out}")
    assert old in text
    config.write_text(text.replace(old, new, 1))
    before = contents(out)
    commands = [("train", "--config", config), ("generate", out, "--prompt", "a")]
    for command in commands[: 1 if "steps" in new else None]:
        status, _, error = call(*command)
        assert status == 2 and "was made with" in error and error.count("\n") <= 2, command
        assert (
            f"{old.split()[-1]}, not {new.split()[-1]}" in error or "optim.betas [0.9, 0.95], not [0.9, 0.99]" in error
        )
    assert contents(out) == before


def test_a_checkpoint_of_another_run_is_passed_over(
    stopped: Path, trained: Callable[..., Path], call: Any, tmp_path: Path
) -> None:
    other = trained("--scheme", "lns", "--lr", 0.01, "--steps", 8, "--checkpoint.every", 4, "--optim.clip", 1.0)
    out = Path(shutil.copytree(stopped, tmp_path / "run"))
    shutil.rmtree(out / "checkpoints")
    shutil.copytree(other / "checkpoints", out / "checkpoints")
    status, _, error = call("generate", out, "--prompt", "a")
    assert status == 2 and "was made with scheme lns, not pre" in error


def test_ranks_that_were_started_with_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = {"lr": 0.1, "GEONORM_BACKEND": "auto"}, {"lr": 0.1, "GEONORM_BACKEND": "reference"}
    check_ranks(ALONE, first)
    monkeypatch.setattr(type(ALONE), "gather", lambda world, value: [first, second])
    with pytest.raises(ConfigError, match=r"rank 1 differs .* GEONORM_BACKEND auto, not reference"):
        check_ranks(ALONE, first)


def test_another_backend_is_said(stopped: Path, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "run"))
    config = out / "config.yaml"
    config.write_text(config.read_text().replace(f"out: {stopped}", f"out: {out}"))
    monkeypatch.setenv("GEONORM_BACKEND", "reference")
    status, text, _ = call("train", "--config", config)
    assert status == 0 and "backend auto is now reference" in text
