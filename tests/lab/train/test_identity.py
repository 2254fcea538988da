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


@pytest.fixture(scope="module")
def stopped(trained: Callable[..., Path]) -> Path:
    """A run of eight steps whose summary and last checkpoint are gone, as if it had been killed after step 4."""
    run = trained("--scheme", "pre", "--lr", 0.01, "--steps", 8, "--checkpoint.every", 4, "--optim.clip", 1.0)
    shutil.rmtree(run / "checkpoints" / "step-8")
    (run / "summary.json").unlink()
    return run


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
