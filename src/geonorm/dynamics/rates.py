"""How fast a scheme turns a token and changes its radius: d/dh of its `write` at h = 0.

For particles theta_j = x_j / r_j the paper writes theta' = P_theta(A) / s and r' = ..., with a speed factor s and a
radius law per scheme. Both follow from the definition that trains: in the frame of x (u = c x + v, v tangent) a
write that commutes with orthogonal maps is x' = rho x + sigma v, so s = r / (dsigma/dh) and r' = r drho/dh. And
the same write, run on the 2-vectors (r, 0) and (c r, |v|), gives both numbers at cost n x 2 whatever the
dimension. N is unit here: radius 1, eps 0, no gains.
"""

from collections.abc import Callable
from functools import cache
from math import isclose, sqrt

import torch
from torch import Tensor

from .. import sphere
from ..errors import require
from ..norms import NormSpec
from ..schemes import Parts, Scheme, Site, enter_as, parse, read_at, write_at


def chooses(scheme: Scheme) -> bool:
    """True if another scheme may act in another block, as in combinators."""
    return type(scheme).resolve is not Scheme.resolve


def unit_parts(rule: Scheme, site: Site, dim: int, like: Tensor) -> Parts:
    """The norms and scalars of a site in the particle system, at their initial values: every N has radius 1."""
    parts = Parts(rule, site, NormSpec("unit", dim, gains=False, eps=0.0)).to(like.device, like.dtype)
    parts.reset_parameters()
    return parts.requires_grad_(False)


def derivative(rule: Scheme, parts: Parts, x: Tensor, u: Tensor, site: Site) -> Tensor:
    """d/dh of the stream that `write` returns, at h = 0, for an update u that is held fixed. Shape of x.

    Differentiable in x and u where one of them wants a gradient."""

    def step(h: Tensor) -> Tensor:
        p = parts()
        _, carry = read_at(rule, x, p, site)
        return write_at(rule, x, u, p, site, h, carry=carry)

    return slope(step, x, torch.is_grad_enabled() and (x.requires_grad or u.requires_grad))[1]


def slope(f: Callable[[Tensor], Tensor], like: Tensor, create_graph: bool = False) -> tuple[Tensor, Tensor]:
    """Return f(0) and f'(0) for a function f of one number, which has the dtype and device of `like`. Both have the
    shape of f(0). With `create_graph` the derivative can be differentiated again.

    It is the derivative of the backward pass, which is linear in its cotangent: the same numbers as by forward-mode
    autodiff, three times as fast in PyTorch."""
    with torch.enable_grad():
        h = torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True)
        value = f(h)
        cotangent = torch.zeros_like(value, requires_grad=True)
        (backward,) = torch.autograd.grad(value, h, cotangent, create_graph=True)
    return value.detach(), torch.autograd.grad(backward, cotangent, create_graph=create_graph)[0]


def write_nothing(rule: Scheme, parts: Parts, x: Tensor, site: Site) -> Tensor:
    """The stream after a step of size 0: schemes that normalise it put it on their sphere."""
    p = parts()
    y, carry = read_at(rule, x, p, site)
    still = torch.zeros((), dtype=x.dtype, device=x.device)
    return write_at(rule, x, torch.zeros_like(y), p, site, still, carry=carry)


def in_plane(rule: Scheme, parts: Parts, x: Tensor, u: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
    """(drho/dh, dsigma/dh, v): the rates, each (..., 1), and the tangential part of u; differentiable in x and u.

    parts: those of the site at dim = 2.
    """
    c, v = sphere.frame(x, u)
    radius, height = sphere.radius(x), sphere.radius(v)
    flat = torch.cat((radius, torch.zeros_like(radius)), dim=-1)
    velocity = derivative(rule, parts, flat, torch.cat((c * radius, height), dim=-1), site)
    return sphere.safe_divide(velocity[..., :1], radius), sphere.safe_divide(velocity[..., 1:], height), v


def motion(rule: Scheme, parts: Parts, x: Tensor, u: Tensor, site: Site) -> tuple[Tensor, Tensor | None]:
    """(dx/dh, dsigma/dh) for an update u that is held fixed: shape of x, and (..., 1) or None for a rule that leaves
    the plane of x and u. parts: those of the site at dim = 2, or at dim = x.shape[-1] for such a rule."""
    if not rule.planar:
        return derivative(rule, parts, x, u, site), None
    drho, dsigma, v = in_plane(rule, parts, x, u, site)
    return torch.addcmul(drho * x, dsigma, v), dsigma


@torch.no_grad()
def rates(scheme: str | Scheme, x: Tensor, u: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
    """(drho/dh, dsigma/dh) at h = 0 for tokens x and updates u, both (..., dim), and |x| after a step of size 0; each
    of shape (...), without a graph.

    Raises ConfigError for a scheme without such a law (several streams, or a step that leaves span{x, u}).
    """
    rule = parse(scheme).resolve(site)
    require(rule.planar, f"{rule} has no (rho, sigma) law: its step does not stay in the plane of x and u")
    parts = unit_parts(rule, site, 2, x)
    drho, dsigma, _ = in_plane(rule, parts, x, u, site)
    return drho.squeeze(-1), dsigma.squeeze(-1), settled_radius(rule, parts, x, site).squeeze(-1)


def speed(scheme: str | Scheme, x: Tensor, u: Tensor, site: Site) -> Tensor:
    """Return the speed factor s of arXiv:2510.22026, shape (...): theta' = P_theta(u) / s for tokens x and updates u,
    both (..., dim), infinite where u has no tangential part. A scheme that puts the stream on a sphere turns it there,
    whatever |x| was: s counts from the length that a step of size 0 leaves. Raises ConfigError for a scheme that leaves
    the plane of x and u.

    >>> x, u = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])
    >>> geonorm.dynamics.speed("pre", x, u, geonorm.Site(0, "attn", 12))  # Pre-Norm: s = r
    tensor(2.)
    """
    _, dsigma, length = rates(scheme, x, u, site)
    return torch.where(dsigma == 0, torch.inf, length / dsigma)


@torch.no_grad()
def settled_radius(rule: Scheme, parts: Parts, x: Tensor, site: Site) -> Tensor:
    """Return |x| after a step of size 0, (..., 1): |x| itself to the last bit where rounding alone tells them apart.
    parts: those of the site at dim = 2."""
    radius = sphere.radius(x)
    flat = torch.cat((radius, torch.zeros_like(radius)), dim=-1)
    after = sphere.radius(write_nothing(rule, parts, flat, site))
    return torch.where((after - radius).abs() <= 8 * torch.finfo(x.dtype).eps * radius, radius, after)


def radial_rate(scheme: str | Scheme, x: Tensor, u: Tensor, site: Site) -> Tensor:
    """Return r' of shape (...), the rate at which |x| grows, for tokens x and updates u, both (..., dim). Raises
    ConfigError as `speed` does.

    >>> x, u = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])
    >>> geonorm.dynamics.radial_rate("pre", x, u, geonorm.Site(0, "attn", 12))  # r' = <theta, u>
    tensor(1.)
    """
    drho, _, _ = rates(scheme, x, u, site)
    return sphere.radius(x.detach()).squeeze(-1) * drho


@cache
def enter_radius(rule: Scheme, entry: Site, norm: str, width: int) -> float:
    """The radius at which one stream begins where its embedding is put on a sphere; sqrt(width) if it never is."""
    rule = enter_as(rule.resolve(entry), "sphere")
    parts = Parts(rule, entry, NormSpec(norm, width, gains=False, eps=0.0)).double()
    before = 7.0
    x = torch.full((1, width), before / sqrt(width), dtype=torch.float64)
    start = rule.enter(x, parts(), entry)
    # of several streams the first: what sub-layers read may be a sum of them
    after = (start if rule.streams == 1 else start.select(-2, 0)).norm().item()
    return sqrt(width) if isclose(after, before) else after
