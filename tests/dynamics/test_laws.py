"""Measures of collapse against loops and closed forms; starting points; terminal laws."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components

from geonorm import dynamics as d, names
from geonorm.errors import ConfigError

from ..rows import each

F64 = torch.float64


def test_means_are_what_loops_give() -> None:
    theta = d.uniform(6, 4, seeds=(1, 2))
    measured = d.gap(theta), d.variance(theta), d.order_parameter(theta)
    for system, gap, variance, order in zip(theta, *measured, strict=True):
        pairs = [float(system[i] @ system[j]) for i in range(6) for j in range(6) if i != j]
        centre = system.mean(0)
        assert abs(gap - (1 - np.mean(pairs))) < 1e-14
        assert abs(variance - np.mean([float((t - centre) @ (t - centre)) for t in system])) < 1e-14
        assert abs(order - float(centre.norm())) < 1e-14


@pytest.mark.parametrize("angle", [1e-3, 1e-8, 1e-14])
def test_the_gap_is_accurate_where_subtraction_sees_nothing(angle: float) -> None:
    """Two particles an angle apart: 1 - cos = angle^2 / 2, 5e-29 for the last."""
    theta = torch.tensor([[1.0, 0.0, 0.0], [np.cos(angle), np.sin(angle), 0.0]], dtype=F64)
    assert abs(d.gap(theta).item() / (2 * np.sin(angle / 2) ** 2) - 1) < 1e-2


@each("scheme", names())
def test_the_rate_of_the_mean_cosine_is_its_derivative(scheme: str) -> None:
    flow = d.Flow(scheme, d.Attention(beta=1.5), 8)
    x = flow.start(d.uniform(5, 4, seeds=(1, 2)))
    h = 1e-4
    v = flow.velocity(x, 0.3)
    slope = (d.gap(flow.tokens(x - h * v)) - d.gap(flow.tokens(x + h * v))) / (2 * h)
    torch.testing.assert_close(d.cosine_rate(flow, x, 0.3), slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("angle", [0.05, 0.2, 0.35, 0.6])
def test_clusters_are_connected_components(angle: float) -> None:
    theta = d.uniform(60, 3, seeds=(1, 2, 3))
    near = torch.acos((theta @ theta.mT).clamp(-1, 1)) <= angle
    assert d.clusters(theta, angle).tolist() == [connected_components(links.numpy())[0] for links in near]


# starting points


@each("gamma", [-0.2, 0.0, 0.3, 0.999999, 1.0])
def test_equiangular_points(gamma: float) -> None:
    x = d.equiangular(6, 9, gamma, seeds=(0, 1))
    expected = torch.full((2, 6, 6), gamma, dtype=F64)
    expected.diagonal(dim1=1, dim2=2).fill_(1.0)
    torch.testing.assert_close(x @ x.mT, expected, rtol=0, atol=1e-14)
    assert gamma == 1.0 or not torch.allclose(x[0], x[1])


def test_cones_are_cones_and_the_rest_has_its_moments() -> None:
    for delta in (1e-6, 0.1, 1.9):
        x = d.cone(40, 5, delta, seeds=(0, 1))
        cosine = x @ x.mT
        assert cosine.min() >= 1 - delta - 1e-12 and cosine.min() < 1 - 0.3 * delta
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(2, 40, dtype=F64))
    narrow = d.cone(4000, 3, 0.01)[0]  # as in a flat disc, whose points are 2/3 from its middle
    away = (narrow - narrow.mean(0)).norm(dim=-1) / 0.005**0.5
    assert away.mean() == pytest.approx(2 / 3, rel=0.02)
    u, g = d.uniform(4000, 6), d.gaussian(4000, 6)
    assert (u.norm(dim=-1) - 1).abs().max() < 1e-14 and u.mean(1).norm() < 0.05
    assert abs(g.square().sum(-1).mean() - 1) < 0.05 and g.norm(dim=-1).std() > 0.2
    for make in d.STARTS.values():
        assert torch.equal(make(3, 4, seeds=(5,))[0], make(3, 4, seeds=(4, 5))[1])
        assert make(3, 4, dtype=torch.float32).dtype == torch.float32


@each(
    "make, message",
    [
        (lambda: d.equiangular(5, 4), "need dim >= 5, got 4"),
        (lambda: d.equiangular(4, 4, -0.5), "gamma must lie"),
        (lambda: d.equiangular(4, 4, 1.5), "gamma must lie"),
    ],
)
def test_starts_that_do_not_exist(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# laws


@each("seed", range(3))
def test_each_law_is_recognised_with_its_rate_inside_the_interval(seed: int) -> None:
    curves: dict[str, tuple[Any, Any, float]] = {
        "exponential": (np.linspace(1, 14, 800), lambda t: np.exp(-1.5 * t), 1.5),
        "polynomial": (np.geomspace(1, 1000, 200), lambda t: 3 * t**-2.0, 2.0),
        "stretched": (np.linspace(1, 50, 400), lambda t: np.exp(-4 * np.sqrt(t)), 4.0),
    }
    for kind, (t, curve, rate) in curves.items():
        noise = np.exp(0.01 * np.random.default_rng(seed).standard_normal(len(t)))
        law = d.terminal_law(t - 1, curve(t) * noise)
        assert law.kind == kind and law.rate == pytest.approx(rate, rel=0.05), kind
        assert law.low is not None and law.high is not None and law.low <= rate <= law.high


def test_no_law_where_there_is_none() -> None:
    t = np.linspace(0, 50, 100)
    for early in (np.full(100, 0.3), np.full(100, 9e-3), np.where(t < 49, 1.0, 1e-4), 0.1 * np.exp(-0.05 * t)):
        assert d.terminal_law(t, early) == d.Law("early")
    steps = np.where(t < 25, 5e-3, 1e-4) * np.exp(-1e-3 * t)
    assert d.terminal_law(t, steps) == d.Law("none")
    # rounding after the collapse is not fitted
    rounded = np.maximum(np.exp(-3 * t), 1e-31)
    assert d.terminal_law(t, rounded).rate == pytest.approx(3.0)


def slow_ways(end: float) -> dict[str, tuple[str, float, Any, Any]]:
    """(kind, rate at infinite time, t, 1 - cos) of what comes to its law slowly, and of what is at it, from t = 1."""
    t = np.geomspace(1, end, 60)
    line = np.linspace(1, 6 * np.log10(end), 60)
    log, over = np.log(t), range(2, 7)
    ways = {f"radius {c}": (1.0, 0.1 * (t**0.5 * (1 + c / np.maximum(log, 1)) / (1 + c)) ** -2) for c in (0.5, 3, 10)}
    ways |= {f"factor {k}": (2.0, 0.05 * t**-2.0 * (1 + log) ** k) for k in (-2, -1, 1, 2)}
    ways |= {
        "mask": (1.0, 0.004 * sum(t ** (-2 * (1 - 1 / j)) for j in over)),
        "law": (2.0, 0.05 * t**-2.0),
        "quick": (2.0, 0.05 * t**-2.0 * (1 + 1 / t)),
        "noise": (2.0, 0.05 * t**-2.0 * np.exp(0.01 * np.random.default_rng(0).normal(size=60))),
    }
    rows = {name: ("polynomial", rate, t, curve) for name, (rate, curve) in ways.items()}
    mask = 0.004 * sum(np.exp(-2 * (1 - 1 / j) * line) for j in over)
    rows["mask of an exponential"] = ("exponential", 1.0, line, mask)
    rows["t before an exponential"] = ("exponential", 2.0, line, 0.02 * line * np.exp(-2 * line))
    return rows


REACHED = {"law", "quick", "noise"}


@pytest.mark.parametrize("end", [1e3, 1e5, 1e8])
def test_a_law_is_stated_only_where_the_drift_ahead_is_small(end: float) -> None:
    """A slope may drift by little in a window and by much on its way: what is stated is right at infinite time."""
    stated = set()
    for name, (kind, rate, t, gap) in slow_ways(end).items():
        law = d.terminal_law(t - 1, gap)
        if law.kind != "early":
            stated.add(name)
            assert law.kind == kind and law.rate == pytest.approx(rate, rel=0.05), name
            assert law.low is not None and law.high is not None and law.low - 1e-9 <= rate <= law.high + 1e-9, name
    assert stated >= REACHED
    assert not stated & {"radius 10", "factor -2", "factor 2"}
    slow = {name for name in slow_ways(end) if name.startswith(("radius", "factor")) or name == "mask"}
    assert not stated & slow if end == 1e3 else stated & slow if end == 1e8 else "mask" not in stated


def test_collapse_time() -> None:
    t = np.linspace(0, 10, 11)
    assert d.collapse_time(t, np.exp(-t), 1e-3) == pytest.approx(np.log(1000))
    assert d.collapse_time(t, np.exp(-t), 1e-9) is None
    assert d.collapse_time(t, np.zeros(11)) == 0.0
    assert d.collapse_time([0.0, 1.0], [1.0, 0.0]) == 1.0
