"""What holds whatever a text is trained for: stopped runs go on bit for bit, accumulated gradients are the batch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

OBJECTIVES = ["mlm", "denoise"]


def options(objective: str, steps: int, accumulate: int) -> list[Any]:
    return ["--objective", objective, "--model.vocab_size", 258, "--steps", steps, "--runtime.accumulate", accumulate]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ten_steps_equal_five_and_five(
    train: Any, losses: Any, after: Any, tmp_path: Path, accumulate: int, objective: str
) -> None:
    given = options(objective, 10, accumulate)
    assert train(tmp_path / "whole", *given).status == 0
    with after(5):
        assert train(tmp_path / "parts", *given).status == 130
    assert train(tmp_path / "parts", *given).status == 0
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    weights = [(tmp_path / part / "checkpoints/step-10/model.safetensors").read_bytes() for part in ("whole", "parts")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_accumulated_gradients_are_those_of_the_whole_batch(
    train: Any, losses: Any, tmp_path: Path, objective: str
) -> None:
    """Every row has as many targets as any other, so that the mean of means is the mean."""
    for accumulate in (1, 4):
        assert train(tmp_path / str(accumulate), *options(objective, 3, accumulate)).status == 0
    one, four = (losses(tmp_path / str(accumulate)) for accumulate in (1, 4))
    for a, b in zip(one, four, strict=True):
        assert a[2] == pytest.approx(b[2], rel=1e-5) and a[4] == pytest.approx(b[4], rel=1e-4)


@pytest.mark.parametrize("objective", ["causal", *OBJECTIVES])
@pytest.mark.parametrize("positions", ["rope", "none"])
def test_an_encoder_without_positions_says_so(train: Any, tmp_path: Path, objective: str, positions: str) -> None:
    """A decoder without any has its mask; without mask and positions a text is a bag of tokens, which may be meant."""
    given = options(objective, 1, 1) if objective != "causal" else ["--steps", 1]
    told = train(tmp_path / "run", *given, "--model.positions", positions)
    assert told.status == 0
    assert ("a bag of them" in told.out + told.err) == (positions == "none" and objective != "causal")
