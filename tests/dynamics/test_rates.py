"""Speed factor and radius law derived from the schemes, against the table of arXiv:2510.22026 and the design page."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from geonorm import Site, dynamics, parse
from geonorm.errors import ConfigError
from geonorm.norms import NormSpec
from geonorm.schemes import Parts, read_at, write_at

from ..rows import each
from .conftest import PLANAR

DIM, DEPTH = 16, 12
Law = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
zero = torch.zeros_like


def states(radius: float | None = None, size: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens of the given radius (random radii if None) and updates of about the given size, fp64."""
    x, u = torch.randn(2, 4, 7, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    unit = x / x.norm(dim=-1, keepdim=True)
    return unit * (x.norm(dim=-1, keepdim=True) if radius is None else radius), size * u / DIM**0.5


# (s, r') from radius r, radial part <theta, A>, |A| and depth-time t; laws without fields: test_theory.py
SPHERE: dict[str, Law] = {
    "ngpt(decay=harmonic)": lambda r, a, size, t: (size * t / 0.05, zero(r)),
    "geonorm(max_angle=pi, after=norm)": lambda r, a, size, t: (torch.full_like(r, t), zero(r)),
    "per_kind(attn=post)": lambda r, a, size, t: (torch.ones_like(r), zero(r)),
}
FREE: dict[str, Law] = {
    "pre(decay=sqrt)": lambda r, a, size, t: (r * t**0.5, a / t**0.5),
    "rezero(alpha=0.1)": lambda r, a, size, t: (r / 0.1, 0.1 * a),
    "rezero": lambda r, a, size, t: (torch.full_like(r, torch.inf), zero(r)),  # it does not move at first
    "pre(decay=0.75, alpha=0.5)": lambda r, a, size, t: (2 * r * t**0.75, a / t**0.75 / 2),
    "pre(max_step=1e-3)": lambda r, a, size, t: (size / 1e-3, 1e-3 * r * a / size),
    "geonorm(max_angle=pi, decay=sqrt, alpha=0.5)": lambda r, a, size, t: (r * t**0.5 / 0.5, zero(r)),
    "geonorm(max_angle=pi, decay=linear)": lambda r, a, size, t: (r * DEPTH / (DEPTH - t + 1), zero(r)),
    "geonorm(max_angle=pi, decay=constant)": lambda r, a, size, t: (r, zero(r)),
    "geonorm(max_angle=pi, decay_on=update)": lambda r, a, size, t: (r * t, zero(r)),
    # clamped, it turns by 0.2 / t however long an update
    "geonorm(max_angle=0.2)": lambda r, a, size, t: (t * torch.maximum(r, (size**2 - a**2).sqrt() / 0.2), zero(r)),
}


@each("layer", [0, 3, 2.75, 11.0])
@each("scheme", [*SPHERE, *FREE])
def test_table(scheme: str, layer: float) -> None:
    x, u = states(radius=1.0 if scheme in SPHERE else None)
    r, size = x.norm(dim=-1), u.norm(dim=-1)
    law = (SPHERE | FREE)[scheme]
    s, drift = law(r, (x * u).sum(-1) / r, size, layer + 1)
    site = Site(layer, "attn", DEPTH)
    torch.testing.assert_close(dynamics.speed(scheme, x, u, site), s, rtol=1e-10, atol=0)
    torch.testing.assert_close(dynamics.radial_rate(scheme, x, u, site), drift, rtol=1e-10, atol=1e-12)


@each("planar", PLANAR)
@each("radius", [0.5, 1.0, 2.0])
def test_speed_is_that_of_the_direction_whatever_the_length_was(planar: str, radius: float) -> None:
    """Against central differences of theta itself: a scheme with a sphere of its own turns the token there."""
    x, u = states(radius, size=0.5)
    site = Site(3, "mlp", DEPTH)
    rule = parse(planar).resolve(site)
    own = Parts(rule, site, NormSpec("unit", DIM, gains=False, eps=0.0)).double()
    own.reset_parameters()

    def theta(h: float) -> Tensor:
        _, carry = read_at(rule, x, own(), site)
        after = write_at(rule, x, u, own(), site, torch.tensor(h, dtype=torch.float64), carry=carry)
        return (after / after.norm(dim=-1, keepdim=True)).detach()

    turned = (theta(1e-5) - theta(-1e-5)) / 2e-5
    v = u - (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x
    s = dynamics.speed(planar, x, u, site)
    torch.testing.assert_close(turned, v / s.unsqueeze(-1), rtol=1e-5, atol=1e-8)


@each("planar", PLANAR)
def test_a_token_that_does_not_turn_has_infinite_speed_and_nothing_is_nan(planar: str) -> None:
    x, site = states(1.0)[0], Site(1, "attn", DEPTH)
    for u in (torch.zeros_like(x), 0.5 * x):
        assert dynamics.speed(planar, x, u, site).eq(torch.inf).all()
        assert dynamics.radial_rate(planar, x, u, site).isfinite().all()


def test_schemes_outside_the_plane_are_refused() -> None:
    x, u = states()
    for scheme in ("residual_dual", "mix(residual_dual, residual_dual)"):
        with pytest.raises(ConfigError, match=r"no .* law"):
            dynamics.speed(scheme, x, u, Site(0, "attn", DEPTH))


def test_velocities_are_differentiable() -> None:
    x = states()[0][0, :3].requires_grad_()
    assert torch.autograd.gradcheck(dynamics.Flow("geonorm", dynamics.Attention(beta=1.0)).velocity, (x, 0.5))
