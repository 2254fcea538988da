"""One orbit, many clocks (docs/theory-clustering.md): schemes that turn all tokens by one factor of depth alone."""

from math import exp, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import dynamics

from ..rows import each
from .conftest import speed_of

DEPTH = 12
BETA = 2.0
CLOCKS = {
    # scheme: (the scheme whose orbit it runs, depth-time t at which it is where that one is at its time tau)
    "geonorm": ("post", lambda tau: exp(tau)),
    "geonorm(alpha=0.5)": ("post", lambda tau: exp(2 * tau)),
    "geonorm(decay=sqrt)": ("post", lambda tau: (1 + tau / 2) ** 2),
    "geonorm(decay=0.75)": ("post", lambda tau: (1 + tau / 4) ** 4),
    "sqrt": ("post", lambda tau: (1 + tau / 2) ** 2),
    "deepnorm": ("post", lambda tau: 1 + (2 * DEPTH) ** 0.25 * tau),
    "keel": ("post", lambda tau: 1 + 2 * DEPTH * tau),
    "geonorm(update=norm, max_angle=pi)": ("ngpt(alpha=1)", lambda tau: exp(tau)),
    "ngpt(alpha=0.2)": ("ngpt(alpha=1)", lambda tau: 1 + 5 * tau),
}


def orbit(scheme: str, times: list[float], **settings: Any) -> list[Tensor]:
    flow = dynamics.Flow(scheme, dynamics.Attention(BETA), DEPTH)
    with torch.no_grad():
        walk = dynamics.integrate(flow, flow.start(dynamics.uniform(6, 4, seeds=(0, 1))), times, **settings)
        return [flow.tokens(x) for _, x in walk]


@each("scheme", CLOCKS)
def test_velocities_differ_by_the_speed_of_the_clock_alone(scheme: str) -> None:
    """To rounding, on unit tokens: d clock / d tau times the velocity is that of the other scheme."""
    other, clock = CLOCKS[scheme]
    field = dynamics.Attention(BETA)
    flow, there = dynamics.Flow(scheme, field, DEPTH), dynamics.Flow(other, field, DEPTH)
    x = there.start(dynamics.uniform(6, 4, seeds=(0, 1)))
    with torch.no_grad():
        for tau in (0.0, 0.7, 2.0):
            pace = (clock(tau + 1e-5) - clock(tau - 1e-5)) / 2e-5
            wanted, found = there.velocity(x, tau), flow.velocity(x, clock(tau) - 1)
            factor = (wanted * found).sum() / (found * found).sum()
            assert factor.item() == pytest.approx(pace, rel=1e-8)
            assert (factor * found - wanted).abs().max() < 2e-15


def test_a_clock_that_stops_leaves_tokens_on_the_way() -> None:
    """decay t^-2 has run 1 unit of the time of post when all depth is through."""
    (there,) = orbit("post", [1.0], tolerance=1e-8)
    (here,) = orbit("geonorm(decay=2.0)", [1e9], tolerance=1e-8)
    assert (here - there).abs().max() < 1e-6
    assert dynamics.gap(there).min() > 0.01


def energy(theta: Tensor) -> Tensor:
    return torch.exp(BETA * theta @ theta.mT).sum((-1, -2)) / (2 * BETA)


@each("scheme", ["post", "pre", "peri", "sqrt", "ngpt", "deepnorm", "geonorm", "geonorm(update=norm)"])
def test_the_energy_grows_by_what_the_tokens_turn(scheme: str) -> None:
    """dE/dt = sum Z_i |P A_i|^2 / s_i wherever attention is full and reads unit tokens."""
    flow = dynamics.Flow(scheme, dynamics.Attention(BETA), DEPTH)
    x = flow.start(dynamics.uniform(6, 4, seeds=(3,)))
    tau = 2.5
    found = torch.func.jvp(lambda y: energy(flow.tokens(y)), (x,), (flow.velocity(x, tau),))[1]
    theta = flow.tokens(x)
    scores = torch.exp(BETA * theta @ theta.mT)
    attention = scores @ theta / scores.sum(-1, keepdim=True)
    across = attention - (attention * theta).sum(-1, keepdim=True) * theta
    s = speed_of(flow, x, tau)
    wanted = (scores.sum(-1) * across.square().sum(-1) / s).sum(-1)
    if scheme in ("peri", "ngpt", "geonorm(update=norm)"):
        assert s.std() > 0  # each token has a speed of its own
    assert found.item() == pytest.approx(wanted.item(), rel=1e-10) and found.item() > 0
    assert sqrt(flow.radius(x).var().item()) < 1e-12
