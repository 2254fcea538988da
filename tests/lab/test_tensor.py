"""Ranks that share the matrices of every block compute what one rank computes; they keep and load the same state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.lab import checkpoint

from .test_distributed import STEPS, numbers, runs  # noqa: F401 a fixture

TENSOR = ["--runtime.tensor_size", 2]


@pytest.fixture
def both(runs: Any, tmp_path: Path) -> Any:  # noqa: F811
    """Trains alone and in a world, and compares all that a run writes: both(name, size, bound, options, more)."""

    def start(name: str, size: int, bound: float, options: list[Any], more: list[Any], dtype: str = "fp64") -> Any:
        alone, run = tmp_path / f"{name} alone", tmp_path / name
        assert [r.status for r in runs(alone.name, 1, *STEPS, *options, dtype=dtype).wait()] == [0]
        ended = runs(run.name, size, *STEPS, *options, *more, dtype=dtype).wait()
        assert [(r.status, r.err) for r in ended] == [(0, "")] * size, ended
        for key in ("loss", "val_loss", "val_bpb"):
            assert numbers(run, key) == pytest.approx(numbers(alone, key), rel=bound, abs=0), (name, key)
        assert numbers(run, "grad_norm") == pytest.approx(numbers(alone, "grad_norm"), rel=10 * bound)
        assert json.loads((run / "summary.json").read_text())["tensor_size"] == 2
        if dtype == "fp64":
            expected, found = (checkpoint.weights(path / "checkpoints" / "step-10") for path in (alone, run))
            assert set(found) == set(expected)
            for key, tensor in found.items():
                torch.testing.assert_close(tensor, expected[key], rtol=100 * bound, atol=10 * bound)
        return alone, run

    return start


@pytest.mark.parametrize("scheme", ["pre", "geonorm", "ngpt"])
@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-10), ("fp32", 1e-5)])
def test_two_ranks_share_the_matrices(both: Any, scheme: str, dtype: str, bound: float) -> None:
    both("run", 2, bound, ["--scheme", scheme], TENSOR, dtype)
