"""Pre-Norm on the sphere. A token is kept as direction and log-radius, (..., dim + 1): a point of the sphere of radius
sqrt(dim), and one number beside it.

    x = exp(l) d,   mean(d^2) = 1
    x + q = exp(l') d',   y = d + exp(-l) q,   l' = l + log(mean(y^2)) / 2,   d' = y / sqrt(mean(y^2))

The second line is what adding q does: metric projection on the sphere with a step that the radius has divided, and a
radius that is kept as a logarithm. All maths is fp32 (fp64 for fp64), the state keeps its dtype. x = 0 is d = 0, l = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..norms import upcast
from .base import About, Number, Site
from .pre import Pre
from .registry import register

LONGEST = 36.0
"""The largest log-radius that a norm reads: its square is a number in fp32, and eps is far below its rounding."""


def to_polar(x: Tensor) -> Tensor:
    """(..., dim) to direction and log-radius, (..., dim + 1)."""
    wide = upcast(x)
    return polar_state(wide, torch.zeros_like(wide[..., :1]), x.dtype)


def from_polar(state: Tensor, largest: float = inf) -> Tensor:
    """The token itself, (..., dim), in the precision of the maths, its log-radius cut off at `largest`."""
    wide = upcast(state)
    return torch.exp(wide[..., -1:].clamp(max=largest)) * wide[..., :-1]


def add_polar(state: Tensor, q: Tensor) -> Tensor:
    """The state of x + q."""
    wide = upcast(state)
    log_radius = wide[..., -1:]
    return polar_state(wide[..., :-1] + torch.exp(-log_radius) * q.to(wide.dtype), log_radius, state.dtype)


def polar_state(y: Tensor, log_radius: Tensor, dtype: torch.dtype) -> Tensor:
    """The state of exp(log_radius) y."""
    # in units of the power of two below the largest |y_i|: no square overflows, and nothing is rounded; the unit needs
    # no gradient, since it drops out
    largest = torch.linalg.vector_norm(y.detach(), inf, -1, keepdim=True)
    largest = torch.where(largest < torch.finfo(y.dtype).tiny, 1.0, largest)
    scale = torch.exp2(torch.floor(torch.log2(largest)))
    y = y / scale
    squared = y.square().mean(-1, keepdim=True)
    squared = torch.where(squared == 0, 1.0, squared)
    log_radius = log_radius + torch.log(scale) + 0.5 * torch.log(squared)
    return torch.cat((y * torch.rsqrt(squared), log_radius), dim=-1).to(dtype)


@register("polar")
@dataclass(frozen=True)
class Polar(Pre):
    """Pre-Norm with direction and log-radius apart: the same function, written on the sphere.

    The state of a token is its direction, a point of radius sqrt(dim), and its log-radius, (..., dim + 1). Adding
    becomes a metric projection whose step is divided by the radius: Pre-Norm is a spherical scheme with a decay of its
    own. No number of the state grows with depth. Keep it in fp32: bf16 loses small increments of the log-radius.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "polar", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 9)).shape  # direction and log-radius
    torch.Size([2, 9])
    """

    about = About(
        equation="x + s u(N(x)), s = 1, kept as direction and log-radius",
        source="Pre-Norm (Xiong et al. 2020, arXiv:2002.04745) in other coordinates",
        claim="The same function as pre: it claims nothing.",
        checked="pre: logits and all gradients, to rounding",
        lawless="its state carries the log-radius as one more number; its law is that of pre",
        state="direction and log-radius",
    )

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return to_polar(super().enter(x, p, site))

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return super().exit(from_polar(x, LONGEST), p, site).to(x.dtype)

    def read(self, x: Tensor, p: Any, site: Site) -> Tensor:
        # merged in the precision of the maths: a radius that the dtype of the stream cannot hold is no obstacle
        y: Tensor = super().read(from_polar(x, LONGEST), p, site)
        return y.to(x.dtype)

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return add_polar(x, h * self.share(from_polar(x), u, site) * upcast(u))

    def seen(self, x: Tensor) -> Tensor:
        return from_polar(x).to(x.dtype)
