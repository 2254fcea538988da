"""Measures against planted geometry in fp64: every number is known before it is measured."""

from __future__ import annotations

from math import acos, cos, pi, sin, sqrt

import pytest
import torch
from torch import Tensor

from geonorm.measure import SiteMoments, step_measures
from geonorm.measure.metrics import null_directions, pair_cosine

from ..rows import each

DIM, BATCH, TOKENS = 24, 3, 7


def frame(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Three orthonormal directions per token, (batch, tokens, dim) each, in fp64."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(BATCH, TOKENS, DIM, 3, generator=generator, dtype=torch.float64)
    a, b, c = torch.linalg.qr(raw).Q.unbind(-1)
    return a, b, c


def close(value: float | None, wanted: float, tolerance: float = 1e-12) -> bool:
    return value is not None and abs(value - wanted) < tolerance


@each("angle", [0.0, 1e-7, 0.3, pi / 2, 3.0])
def test_planted_rotation(angle: float) -> None:
    x, side, _ = frame()
    radius = 5.0
    after = radius * (cos(angle) * x + sin(angle) * side)
    row = step_measures(radius * x, after, u=2.0 * x + 3.0 * side)
    assert close(row["angle"], angle) and close(row["radius"], radius) and close(row["radius_cv"], 0.0)
    assert close(row["radial"], radius * (cos(angle) - 1)) and close(row["tangential"], radius * sin(angle))
    assert close(row["ratio"], sin(angle)) and close(row["ratio_p99"], sin(angle))
    assert close(row["step_norm"], 2 * radius * sin(angle / 2))
    assert close(row["off_plane"], 0.0) and close(row["update_norm"], sqrt(13.0))


@pytest.mark.parametrize("lift", [0.0, 0.25, 2.0])
def test_planted_part_outside_the_plane(lift: float) -> None:
    x, side, off = frame()
    after = 2.0 * x + 1.0 * side + lift * off
    row = step_measures(3.0 * x, after, u=0.5 * side - 4.0 * x)
    assert close(row["off_plane"], lift / sqrt(5 + lift**2))
    assert close(row["radial"], -1.0) and close(row["tangential"], sqrt(1 + lift**2))
    assert close(row["ratio"], sqrt(1 + lift**2) / 3)


def test_update_that_is_not_seen_is_unknown() -> None:
    x, side, _ = frame()
    row = step_measures(x, x + side)
    assert row["off_plane"] is None and row["update_norm"] is None


def test_spread_of_radii_and_of_ratios() -> None:
    x, side, _ = frame()
    scale = torch.ones(BATCH, TOKENS, 1, dtype=torch.float64)
    scale[0, 0] = 3.0
    mean = 1 + 2 / (BATCH * TOKENS)
    variance = (1 / 21) * (3 - mean) ** 2 + (20 / 21) * (1 - mean) ** 2
    row = step_measures(scale * x, scale * x + side)
    assert close(row["radius_cv"], sqrt(variance) / mean)
    assert close(row["ratio"], (20 + 1 / 3) / 21)
    assert close(row["ratio_p99"], 1.0)


@each("cosine", [-1.0, -0.4, 0.0, 0.7, 1.0])
def test_angle_to_the_uniform_vector(cosine: float) -> None:
    _, side, _ = frame()
    ones = torch.full((BATCH, TOKENS, DIM), DIM**-0.5, dtype=torch.float64)
    side = side - (side * ones).sum(-1, keepdim=True) * ones
    side = side / side.norm(dim=-1, keepdim=True)
    x = 7.0 * (cosine * ones + sqrt(1 - cosine**2) * side)
    row = step_measures(x, x)
    assert close(row["cos_ones"], abs(cosine)) and close(row["angle_ones"], acos(cosine), 1e-7)


@pytest.mark.parametrize("cosine", [0.0, 0.3, 1.0])
def test_cosine_between_tokens_of_one_sequence(cosine: float) -> None:
    basis = torch.eye(DIM, dtype=torch.float64)
    shared, own = basis[0], basis[1 : TOKENS + 1]
    x = sqrt(cosine) * shared + sqrt(1 - cosine) * own  # every pair of tokens has this cosine
    batch = torch.stack((x, -4.0 * x, 0.1 * x))  # signs and radii of whole sequences do not matter
    assert close(step_measures(batch, batch)["cos_pair"], cosine)


def test_one_token_has_no_pair() -> None:
    assert pair_cosine(torch.ones(2, 1, 4, dtype=torch.float64) / 2).tolist() == [0.0, 0.0]


def test_null_is_what_chance_gives() -> None:
    """E|cos| to a random direction is sqrt(2 / (pi d)) for large d."""
    dim = 512
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 64, dim, generator=generator, dtype=torch.float64)
    row = step_measures(x, x)
    assert row["cos_null"] == pytest.approx(sqrt(2 / (pi * dim)), rel=0.03)
    assert row["cos_ones"] == pytest.approx(sqrt(2 / (pi * dim)), rel=0.15)
    lengths = null_directions(dim, x.device, x.dtype).norm(dim=0)
    assert torch.allclose(lengths, torch.ones(64, dtype=torch.float64))


def test_low_precision_is_measured_in_high() -> None:
    x, side, _ = frame()
    x, side = x.float(), side.float()
    after = x + 1e-6 * side
    row = step_measures(x.bfloat16().float(), x.bfloat16().float() + 1e-3 * side, side.bfloat16())
    assert row["angle"] == pytest.approx(1e-3, rel=0.01)
    assert step_measures(x, after)["angle"] == pytest.approx(1e-6, rel=0.05)


def test_what_is_not_finite_is_unknown_and_zero_is_fine() -> None:
    x, side, _ = frame()
    broken = x.clone()
    broken[0, 0, 0] = float("nan")
    assert step_measures(broken, broken)["radius"] is None
    row = step_measures(torch.zeros_like(x), side, side)
    assert row["radius"] == 0 and row["ratio"] == 0 and row["cos_pair"] == 0 and row["radius_cv"] is None


def test_moments_find_what_a_diagnosis_names() -> None:
    x, side, _ = frame()
    x[1, 2] *= 1e-3
    u = side.clone()
    u[0, 0] *= 50
    moments = SiteMoments.of(x, u, x)
    assert moments.largest_update == pytest.approx(50) and moments.smallest_radius == pytest.approx(1e-3)
    assert moments.finite and not SiteMoments.of(x, u, x / 0).finite
