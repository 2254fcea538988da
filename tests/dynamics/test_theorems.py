"""Theorems of arXiv:2510.22026 as tests: clustering, first velocity, terminal velocity, and what its errata correct."""

from math import exp, log, pi, sqrt

import pytest
import torch
from torch import Tensor

from geonorm import dynamics as d, sphere
from geonorm.dynamics import theory

from ..rows import each
from .conftest import growth_of
from .test_integrators import end as last

F64 = torch.float64


@pytest.mark.parametrize(
    ("scheme", "time", "log_time"),
    [("post", 30.0, False), ("ngpt(alpha=1)", 30.0, False), ("sqrt", 250.0, True), ("geonorm", 1e6, True)],
)
def test_spheres_cluster_from_random_starts(scheme: str, time: float, log_time: bool) -> None:
    """Theorem 3.1, and the same for GeoNorm: its steps 1/t sum to infinity."""
    flow = d.Flow(scheme, d.Attention(beta=1.0))
    x = flow.start(d.uniform(6, 8, seeds=range(20)))
    theta = flow.tokens(last(flow, x, time, tolerance=1e-3, log_time=log_time))
    assert d.gap(theta).max() < 1e-3
    assert (d.clusters(theta, 0.1) == 1).all()


def test_attention_that_repels_keeps_some_starts_apart() -> None:
    """Why Theorem 3.1 and Proposition 2c need beta >= 0."""
    flow = d.Flow("post", d.Attention(beta=-6.0))
    gap = d.gap(flow.tokens(last(flow, flow.start(d.uniform(6, 3, seeds=range(4))), 60.0, tolerance=1e-4)))
    assert gap[0] < 1e-9 and gap[1:].min() > 0.9


# scheme: (|theta'| at first of 256 uniform tokens in 512 dimensions at beta = 1 by hand, the kind of its last law)
PHASES: dict[str, tuple[float, str]] = {
    **dict.fromkeys(("post", "orthogonal"), (0.0620, "exponential")),
    **dict.fromkeys(("pre", "geonorm"), (0.0620, "polynomial")),
    "sqrt": (0.0620, "stretched"),
    "ngpt(alpha=1)": (0.9804, "exponential"),
    **dict.fromkeys(("peri", "geonorm(update=norm, max_angle=pi)"), (0.9804, "polynomial")),
    "geonorm(update=norm)": (pi / 4, "polynomial"),
    "geonorm(update=unit)": (pi / 4, "none"),
}


@each("scheme", PHASES)
def test_first_turn_and_last_law_of_uniform_tokens(scheme: str) -> None:
    """Theorem 4.2 with GeoNorm's rows (2d): fast at first and slow at last are unit updates that fall with depth."""
    n, dim = 256, 512
    first, late = PHASES[scheme]
    predicted = theory.initial_turn(scheme, n, dim, 1.0)
    assert predicted == pytest.approx(first, rel=1e-3) and theory.terminal(scheme).kind == late
    flow = d.Flow(scheme, d.Attention(beta=1.0))
    x = flow.start(d.uniform(n, dim, seeds=range(4)))
    turn = sphere.radius(sphere.tangent(x, flow.velocity(x, 0.0))).squeeze(-1)
    assert turn.mean().item() == pytest.approx(first, rel=2 / sqrt(4 * 2 * dim))  # the deviation of four draws, twice
    assert flow.update(x, 0.0).norm(dim=-1).max() < sqrt(log(n) / n) + log(n) / dim  # of every token; C = 1
    slower = theory.initial_turn(scheme, 4 * n, dim, 1.0) / predicted
    assert slower == pytest.approx(0.5 if first < 0.1 else 1.0, rel=0.02)


@pytest.mark.parametrize("scheme", ["pre(entry=embedding)", "peri(entry=embedding)", "pre", "peri"])
def test_pre_and_peri_synchronise_when_n_is_at_most_exp_beta(scheme: str) -> None:
    """The corollary: r' >= 1/(n e^beta) > 0 for every particle, from Gaussian starts."""
    n, beta = 7, 2.0  # 7 <= exp(2)
    flow = d.Flow(scheme, d.Attention(beta=beta))
    x = flow.start(d.gaussian(n, 8, seeds=range(20)))
    with torch.no_grad():
        for time, state in d.integrate(flow, x, [0.0, 1.0, 10.0, 100.0, 1e4], tolerance=1e-4, log_time=True):
            assert (growth_of(flow, state, time) >= 1 / (n * exp(beta))).all()
    assert d.gap(flow.tokens(state)).max() < 1e-3


CONES = [
    ("post", "one"),
    ("pre", "t"),
    ("peri", "t"),
    ("sqrt", "sqrt"),
    ("ngpt(alpha=0.05)", "alpha"),
    ("geonorm", "t"),
]


def variance_rate(flow: d.Flow, x: Tensor, tau: float) -> Tensor:
    return torch.func.jvp(lambda s: d.variance(flow.tokens(s)), (x,), (flow.velocity(x, tau),))[1]


@each("scheme, law", CONES)
def test_variance_in_a_cone_falls_at_the_rate_of_theorem_4_3(scheme: str, law: str) -> None:
    """1/9 <= -dVar/dt scale / Var <= 4 all along, with scale 1, t, sqrt t, 1/alpha (constants proven
    after the errata).

    GeoNorm's row (nobody's yet): scale t, as for Pre-LN."""
    n, beta = 4, 1.0
    delta = 0.9 / (100 * n**2 * max(1.0, beta**2))
    flow = d.Flow(scheme, d.Attention(beta=beta))
    x = flow.start(d.cone(n, 6, delta, seeds=range(10)))
    with torch.no_grad():
        for tau, state in d.integrate(flow, x, [0.0, 0.5, 2.0, 8.0], tolerance=1e-4):
            t = tau + 1
            scale = {"one": 1.0, "t": t, "sqrt": sqrt(t), "alpha": 1 / 0.05}[law]
            found = -variance_rate(flow, state, tau) * scale / d.variance(flow.tokens(state))
            assert (found >= 1 / 9).all() and (found <= 4).all()
            if law == "alpha":
                # the row as printed, -Var / alpha, is off by alpha^2
                printed = -variance_rate(flow, state, tau) * 0.05 / d.variance(flow.tokens(state))
                assert (printed < 1 / 9).all()
            if scheme == "pre":
                assert (flow.radius(state) >= (1 - delta) * t).all()
