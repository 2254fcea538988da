"""Statistics that arrive in pieces are those of the whole."""

import pytest
import torch

from geonorm.measure.accumulate import QUANTILES, RELATIVE_ERROR, Moments, NormMeasure, Sample, SiteMeasure
from geonorm.measure.metrics import null_directions

from ..rows import each


def moments_of(values: torch.Tensor, *pieces: int) -> Moments:
    moments = Moments(tuple("ab"[: len(values)]), values.device)
    for piece in values.split(pieces, 1):
        moments.update(piece)
    return moments


@each("scale", [1e-6, 1.0, 1e5])
def test_moments_and_quantiles(scale: float) -> None:
    values = scale * torch.randn(2, 5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[1] = values[1].exp() if scale == 1 else values[1].abs()
    row = moments_of(values, 1, 1999, 3000).row()
    for name, one in zip("ab", values, strict=True):
        assert row[name] == pytest.approx(one.mean().item(), rel=1e-9, abs=1e-12 * scale)
        assert row[f"{name}_std"] == pytest.approx(one.std(correction=0).item(), rel=1e-9)
        for key, q in QUANTILES.items():
            low, high = sorted(torch.quantile(one, q, interpolation=end).item() for end in ("lower", "higher"))
            assert low - RELATIVE_ERROR * abs(low) <= row[f"{name}_{key}"] <= high + RELATIVE_ERROR * abs(high)


def test_a_spread_far_below_the_mean_survives() -> None:
    values = 1e3 + 1e-7 * torch.randn(1, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    row = moments_of(values, *[100] * 10).row()
    assert row["a_std"] == pytest.approx(values.std(correction=0).item(), rel=1e-4)


@each("bad", [float("nan"), float("inf")])
def test_a_quantity_that_is_not_finite_has_no_statistics(bad: float) -> None:
    moments = moments_of(torch.tensor([[1.0, bad], [1.0, 2.0]]), 2)
    row = moments.row()
    assert row["a"] is None and row["a_std"] is None and row["a_p50"] is None
    assert row["b"] == 1.5 and moments.row(short=("b",)).get("b_std") is None


def test_samples_hold_the_same_tokens_and_are_uniform() -> None:
    tokens = torch.arange(4000.0)[:, None]
    one, other = Sample(200), Sample(200)
    for piece in tokens.split(333):
        one.update(piece)
        other.update(piece, -piece)
    assert one.rows[0].shape == (200, 1) and one.rows[0].unique().numel() == 200
    assert torch.equal(one.rows[0], other.rows[0]) and torch.equal(other.rows[0], -other.rows[1])
    assert abs(one.rows[0].mean().item() - 2000) < 4 * 4000 / 12**0.5 / 200**0.5


@each("window", [16, 15])
def test_the_null_meets_every_position_of_a_window_alike(window: int) -> None:
    """A sink token at position 0 along one of the random directions, everything else across it."""
    dim, rows = 24, 256
    directions = null_directions(dim, torch.device("cpu"), torch.float64)
    sink, other = directions[:, 0], torch.linalg.svd(directions[:, :1].mT).Vh[1]
    x = other.expand(rows, window, dim).clone()
    x[:, 0] = sink
    site, norm, single = SiteMeasure(), NormMeasure(), SiteMeasure()
    for part in x.split(8):
        site.update(part, part)
        norm.update(part, part)
    every = (x.flatten(0, 1) @ directions).abs().mean().item()
    assert site.row()["cos_null"] == pytest.approx(every, rel=0.02)
    assert norm.row()["cos_null_before"] == pytest.approx(every, rel=0.02)
    single.update(x[:1, :1], x[:1, :1])
    assert single.row()["cos_null"] == pytest.approx((sink @ directions).abs().mean().item())  # one token is enough
