"""Statistics that arrive in pieces are those of the whole."""

from __future__ import annotations

import pytest
import torch

from geonorm.measure.accumulate import NormMeasure, SiteMeasure
from geonorm.measure.metrics import null_directions
from geonorm.measure.sample import concentration, effective_rank, principal
from geonorm.measure.streaming import QUANTILES, RELATIVE_ERROR, Moments, Sample


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_moments_and_quantiles(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = scale * torch.randn(2, 5000, generator=generator, dtype=torch.float64)
    values[1] = values[1].exp() if scale == 1 else values[1].abs()
    moments = Moments(("a", "b"), values.device)
    for piece in values.split([1, 1999, 3000], 1):
        moments.update(piece)
    moments.update(values[:, :0])
    row = moments.row()
    for name, one in zip(("a", "b"), values, strict=True):
        assert row[name] == pytest.approx(one.mean().item(), rel=1e-9, abs=1e-12 * scale)
        assert row[f"{name}_std"] == pytest.approx(one.std(correction=0).item(), rel=1e-9)
        for key, q in QUANTILES.items():
            exact = torch.quantile(one, q, interpolation="lower").item()
            neighbour = torch.quantile(one, q, interpolation="higher").item()
            low, high = sorted((exact, neighbour))
            assert low - RELATIVE_ERROR * abs(low) <= row[f"{name}_{key}"] <= high + RELATIVE_ERROR * abs(high)


def test_a_spread_far_below_the_mean_survives() -> None:
    values = 1e3 + 1e-7 * torch.randn(1, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moments = Moments(("a",), values.device)
    for piece in values.split(100, 1):
        moments.update(piece)
    assert moments.row()["a_std"] == pytest.approx(values.std(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_none(bad: float) -> None:
    moments = Moments(("a", "b"), torch.device("cpu"))
    moments.update(torch.tensor([[1.0, bad], [1.0, 2.0]]))
    row = moments.row()
    assert row["a"] is None and row["a_std"] is None and row["a_p50"] is None
    assert row["b"] == 1.5 and moments.row(short=("b",)).get("b_std") is None
    x = torch.randn(1, 4, 8)
    x[0, 1, 2] = bad
    measure = SiteMeasure()
    measure.update(x, x + 1)
    found = measure.row()
    assert found["radius"] is None and found["effective_rank"] is None and not found["massive"]


def test_samples_hold_the_same_tokens_and_are_uniform() -> None:
    tokens = torch.arange(4000.0)[:, None]
    one, other = Sample(200), Sample(200)
    for piece in tokens.split(333):
        one.update(piece)
        other.update(piece, -piece)
    assert one.kept[0].shape == (200, 1)
    assert torch.equal(one.kept[0], other.kept[0]) and torch.equal(other.kept[0], -other.kept[1])
    assert one.kept[0].unique().numel() == 200
    assert abs(one.kept[0].mean().item() - 2000) < 4 * 4000 / 12**0.5 / 200**0.5


def test_effective_rank_of_planted_spectra() -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.linalg.qr(torch.randn(300, 20, generator=generator, dtype=torch.float64)).Q
    u = torch.linalg.qr(u - u.mean(0)).Q
    v = torch.linalg.qr(torch.randn(40, 20, generator=generator, dtype=torch.float64)).Q
    assert effective_rank(u @ v.mT + 5.0) == pytest.approx(20, rel=1e-6)
    weights = torch.tensor([8.0, 1.0, 1.0] + [0.0] * 17, dtype=torch.float64)
    share = weights[:3] / 10
    wanted = float((-(share * share.log()).sum()).exp())
    assert effective_rank((u * weights) @ v.mT) == pytest.approx(wanted, rel=1e-6)
    assert effective_rank(torch.ones(5, 3)) == 0.0


def test_principal_direction_and_concentration() -> None:
    generator = torch.Generator().manual_seed(0)
    ones = torch.ones(30, dtype=torch.float64) / 30**0.5
    rows = torch.randn(400, 30, generator=generator, dtype=torch.float64)
    rows = rows + 20 * torch.sign(torch.randn(400, 1, generator=generator, dtype=torch.float64)) * ones
    found = principal(rows)
    assert found["cos_ones_principal"] > 0.999 and found["cos_principal"] > 0.9
    assert principal(torch.empty(0, 3))["cos_principal"] is None
    # tokens drawn from von Mises-Fisher in 3 dimensions, where the law of cos is exp(kappa cos): kappa comes back
    kappa = 5.0
    share = torch.rand(40000, generator=generator, dtype=torch.float64)
    cosine = 1 + torch.log(share + (1 - share) * torch.exp(torch.tensor(-2 * kappa))) / kappa
    assert concentration(cosine.mean().item(), 3) == pytest.approx(kappa, rel=0.08)  # the approximation errs by 6 %
    assert concentration(1.0, 3) is None


@pytest.mark.parametrize(("tokens", "dim"), [(60, 90), (90, 60), (512, 768)])
def test_the_principal_direction_is_that_of_the_singular_values(tokens: int, dim: int) -> None:
    """Also where the largest two are close, as among directions without a common one."""
    rows = torch.randn(tokens, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    unit = rows / rows.norm(dim=-1, keepdim=True)
    top = torch.linalg.svd(unit, full_matrices=False).Vh[0]
    found = principal(7 * rows)
    assert found["cos_principal"] == pytest.approx((unit @ top).abs().mean().item(), rel=1e-9)
    assert found["cos_ones_principal"] == pytest.approx(abs(top.sum().item()) / dim**0.5, rel=1e-7)
    assert principal(torch.zeros(3, 5)) == {"cos_principal": 0.0, "cos_ones_principal": 0.0}


@pytest.mark.parametrize("window", [16, 15])
def test_the_null_meets_every_position_of_a_window_alike(window: int) -> None:
    """A sink token at position 0 along one of the random directions, everything else across it."""
    dim, rows = 24, 256
    directions = null_directions(dim, torch.device("cpu"), torch.float64)
    sink, other = directions[:, 0], torch.linalg.svd(directions[:, :1].mT).Vh[1]
    x = other.expand(rows, window, dim).clone()
    x[:, 0] = sink
    site, norm = SiteMeasure(), NormMeasure(False)
    for part in x.split(8):
        site.update(part, part)
        norm.update(part, part)
    every = (x.flatten(0, 1) @ directions).abs().mean().item()
    assert site.row()["cos_null"] == pytest.approx(every, rel=0.02)
    assert norm.row()["cos_null_before"] == pytest.approx(every, rel=0.02)
    site = SiteMeasure()
    site.update(x[:1, :1], x[:1, :1])
    assert site.row()["cos_null"] == pytest.approx((sink @ directions).abs().mean().item())  # one token is enough


def test_memory_does_not_grow_with_tokens() -> None:
    def size(measure: SiteMeasure | NormMeasure) -> int:
        assert measure.moments is not None
        tensors = [v for v in vars(measure.moments).values() if isinstance(v, torch.Tensor)]
        return sum(t.numel() for t in [*tensors, *measure.sample.kept, measure.sample.keys])

    sizes = []
    for batches in (2, 8):
        site, norm = SiteMeasure(), NormMeasure(False)
        for _ in range(batches):
            x = torch.randn(4, 128, 8)
            site.update(x, x + 0.1, torch.randn(4, 128, 8))
            norm.update(x, x)
        sizes.append((size(site), size(norm)))
    assert sizes[0] == sizes[1]


def test_the_removal_of_the_uniform_component_in_an_rms_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 30, 12, generator=generator, dtype=torch.float64) + 0.5
    gain = torch.rand(12, generator=generator, dtype=torch.float64) + 0.5
    y = torch.nn.functional.rms_norm(x, (12,), gain, eps=1e-300)
    other = torch.nn.functional.layer_norm(x, (12,), gain, eps=1e-300)
    angle = torch.nn.functional.cosine_similarity(y, other, dim=-1).acos()
    measure = NormMeasure(False)
    measure.update(x, y, gain)
    row = measure.row()
    assert row["removal"] == pytest.approx(angle.mean().item(), rel=1e-9) and row["rotation_plain"] == 0.0
    reverse = NormMeasure(True)
    reverse.update(x, other, gain)
    assert reverse.row()["removal"] == pytest.approx(row["removal"], rel=1e-9)
    neither = NormMeasure(None)
    neither.update(x, torch.tanh(x))
    assert neither.row()["removal"] is None and neither.row()["rotation"] > 0
