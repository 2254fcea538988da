"""Measures against planted geometry in fp64: every number is known before it is measured."""

from math import cos, pi, sin, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm.measure.accumulate import SiteMeasure
from geonorm.measure.metrics import effective_ranks, null_directions, pool_spreads, principal, sample_measures

from ..rows import each

DIM, BATCH, TOKENS = 24, 3, 7


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def frame() -> tuple[Tensor, Tensor, Tensor]:
    """Three orthonormal directions per token, (batch, tokens, dim) each, in fp64."""
    a, b, c = torch.linalg.qr(draw(BATCH, TOKENS, DIM, 3)).Q.unbind(-1)
    return a, b, c


def measured(x: Tensor, after: Tensor, u: Tensor | None = None) -> dict[str, Any]:
    measure = SiteMeasure()
    measure.update(x, after, u)
    return measure.row()


def agree(row: dict[str, Any], tolerance: float = 1e-12, **wanted: float) -> None:
    assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=0, abs=tolerance)


@each("angle", [0.0, 1e-7, 0.3, pi / 2, 3.0])
def test_planted_rotation(angle: float) -> None:
    x, side, _ = frame()
    row = measured(5.0 * x, 5.0 * (cos(angle) * x + sin(angle) * side), u=2.0 * x + 3.0 * side)
    agree(row, angle=angle, radius=5.0, radius_cv=0.0, radius_after=5.0, off_plane=0.0, update_norm=sqrt(13.0))
    agree(row, radial=5 * (cos(angle) - 1), tangential=5 * sin(angle), step_norm=10 * sin(angle / 2), ratio=sin(angle))
    agree(row, tolerance=0.01 * sin(angle) + 1e-12, ratio_p99=sin(angle))


@each("lift", [0.0, 0.25, 2.0])
def test_planted_part_outside_the_plane(lift: float) -> None:
    x, side, off = frame()
    row = measured(3.0 * x, 2.0 * x + 1.0 * side + lift * off, u=0.5 * side - 4.0 * x)
    agree(row, off_plane=lift / sqrt(5 + lift**2), radial=-1.0, tangential=sqrt(1 + lift**2))
    agree(row, ratio=sqrt(1 + lift**2) / 3)
    row = measured(x, x + side)
    assert row["off_plane"] is None and row["update_norm"] is None  # the update is unknown


def test_spread_of_radii_and_of_ratios() -> None:
    x, side, _ = frame()
    scale = torch.ones(BATCH, TOKENS, 1, dtype=torch.float64)
    scale[0, 0] = 3.0
    mean = 1 + 2 / (BATCH * TOKENS)
    variance = (1 / 21) * (3 - mean) ** 2 + (20 / 21) * (1 - mean) ** 2
    agree(measured(scale * x, scale * x + side), radius_cv=sqrt(variance) / mean, ratio=(20 + 1 / 3) / 21)


def test_the_null_is_that_of_chance() -> None:
    """E|cos| to a random direction is sqrt(2 / (pi d)) for large d."""
    x, chance = draw(4, 64, 512), sqrt(2 / (pi * 512))
    row = measured(x, x)
    assert row["cos_null"] == pytest.approx(chance, rel=0.03)
    assert row["cos_ones"] == pytest.approx(chance, rel=0.15)
    lengths = null_directions(512, x.device, x.dtype).norm(dim=0)
    assert torch.allclose(lengths, torch.ones(64, dtype=torch.float64))


def test_low_precision_is_measured_in_high() -> None:
    x, side, _ = (part.float() for part in frame())
    row = measured(x.bfloat16().float(), x.bfloat16().float() + 1e-3 * side, side.bfloat16())
    assert row["angle"] == pytest.approx(1e-3, rel=0.01)
    assert measured(x, x + 1e-6 * side)["angle"] == pytest.approx(1e-6, rel=0.05)


@each("bad", [float("nan"), float("inf")])
def test_measures_that_are_not_finite_are_none_and_zero_is_fine(bad: float) -> None:
    x, side, _ = frame()
    row = measured(torch.zeros_like(x), side, side)
    assert row["radius"] == 0 and row["ratio"] == 0 and row["cos_pair"] == 0 and row["radius_cv"] is None
    x[0, 1, 2] = bad
    row = measured(x, x + 1)
    assert row["radius"] is None and row["effective_rank"] is None and not row["massive"]


def test_effective_ranks_are_those_of_the_singular_values_and_of_their_squares() -> None:
    u = torch.linalg.qr(torch.cat((torch.ones(50, 1, dtype=torch.float64), draw(50, 4)), 1)).Q[:, 1:]
    weights = torch.tensor([5.0, 3.0, 2.0, 0.0], dtype=torch.float64)
    shares = (weights[:3] / 10, weights[:3] ** 2 / 38)
    wanted = [float((-(share * share.log()).sum()).exp()) for share in shares]
    rows = (u * weights) @ torch.linalg.qr(draw(20, 4, seed=1)).Q.mT
    assert list(effective_ranks(rows).values()) == pytest.approx(wanted, rel=1e-6)
    assert list(effective_ranks(torch.ones(5, 3)).values()) == [0.0, 0.0]
    rows = draw(512, 64)
    long = torch.where(torch.arange(512)[:, None] == 7, 1e3, 1.0)
    assert min(effective_ranks(rows).values()) > 60  # isotropic; with one massive token:
    assert list(effective_ranks(long * rows).values()) == pytest.approx([2.7, 1.006], rel=0.01)


@each("tokens, dim", [(60, 90), (90, 60), (512, 768)])
def test_the_principal_direction_is_that_of_the_singular_values(tokens: int, dim: int) -> None:
    """Also where the largest two are close, as among directions without a common one."""
    rows = draw(tokens, dim, seed=3)
    unit = rows / rows.norm(dim=-1, keepdim=True)
    top = torch.linalg.svd(unit, full_matrices=False).Vh[0]
    row = principal(7 * rows)
    assert row["cos_principal"] == pytest.approx((unit @ top).abs().mean().item(), rel=1e-9)
    assert row["cos_ones_principal"] == pytest.approx(abs(top.sum().item()) / dim**0.5, rel=1e-7)
    massive = [sample_measures(size * rows, 2000 * size)["massive"] for size in (0.04, 40.0)]
    assert massive == [False, True]
    assert principal(torch.zeros(3, 5)) == {"cos_principal": 0.0, "cos_ones_principal": 0.0}


def test_spread_before_and_after_norms_is_pooled() -> None:
    """Geometric means; a norm behind which all lengths are one has no factor."""
    row = {"kind": "attn", "norm_before": 10.0, "norm_after": 5.0}
    stds = ((4.0, 0.1, "attn"), (1.0, 0.1, "attn"), (1.0, 1e-7, "attn"), (9.0, 1.0, None))
    rows = [row | {"norm_before_std": one, "norm_after_std": other, "kind": kind} for one, other, kind in stds]
    wanted = {"norms": 2, "before": 2.0, "after": 0.1, "factor": 20.0, "low": 10.0, "high": 40.0}
    assert pool_spreads(rows) == pytest.approx(wanted)
    assert pool_spreads(rows[2:]) is None and pool_spreads([]) is None
