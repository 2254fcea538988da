"""A token as direction and log-radius, (..., dim + 1): a point of the sphere of radius sqrt(dim), one number beside it.

    x = exp(l) d,   mean(d^2) = 1
    x + q = exp(l') d',   y = d + exp(-l) q,   l' = l + log(mean(y^2)) / 2,   d' = y / sqrt(mean(y^2))

The second line is what adding q does: metric projection on the sphere with a step that the radius has divided, and a
radius that is kept as a logarithm. All maths is fp32 (fp64 for fp64), the state keeps its dtype. x = 0 is d = 0, l = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..norms import upcast


def split(x: Tensor) -> Tensor:
    """(..., dim) to direction and log-radius, (..., dim + 1)."""
    wide = upcast(x)
    return joined(wide, torch.zeros_like(wide[..., :1]), x.dtype)


def merge(state: Tensor) -> Tensor:
    """The token itself, (..., dim), in the precision of the maths."""
    wide = upcast(state)
    return torch.exp(wide[..., -1:]) * wide[..., :-1]


def moved(state: Tensor, q: Tensor) -> Tensor:
    """The state of x + q."""
    wide = upcast(state)
    log_radius = wide[..., -1:]
    return joined(wide[..., :-1] + torch.exp(-log_radius) * q.to(wide.dtype), log_radius, state.dtype)


def joined(y: Tensor, log_radius: Tensor, dtype: torch.dtype) -> Tensor:
    """The state of exp(log_radius) y."""
    squared = y.square().mean(-1, keepdim=True)
    squared = torch.where(squared == 0, 1.0, squared)
    return torch.cat((y * torch.rsqrt(squared), log_radius + 0.5 * torch.log(squared)), dim=-1).to(dtype)
