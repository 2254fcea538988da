"""What a residual site does to its tokens, measured from the stream before (x) and after (x') it.

This is right for every placement: what is added to the stream is not always what the sub-layer returned. Angles are in
radians, means over tokens, everything computed in fp32 or better.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from .. import sphere

NULL_DIRECTIONS = 64


def wide(x: Tensor) -> Tensor:
    return x.detach().to(torch.float64)


def step_measures(x: Tensor, after: Tensor, u: Tensor | None = None) -> dict[str, float | None]:
    """Means over tokens for x, x' of shape (batch, tokens, dim), and the raw branch output u of the same shape if seen.

    radius |x|, its coefficient of variation, step |x'-x|, radial <x'-x,x>/|x|, tangential |P_x(x'-x)|, ratio
    tangential/|x| with its 99th percentile, angle (x to x'), off_plane (share of x' outside span{x, u}), update_norm
    |u|, |cos| and angle to the uniform vector beside its null (the same |cos| to 64 random directions), and the mean
    cosine between different tokens of one sequence. Unknown values are None.
    """
    x, after = wide(x), wide(after)
    radius = sphere.radius(x)
    step = after - x
    radial = sphere.safe_divide(sphere.dot(step, x), radius)
    tangential = sphere.radius(sphere.tangent(x, step))
    ratio = sphere.safe_divide(tangential, radius)
    dim = x.shape[-1]
    direction = sphere.safe_divide(x, radius)
    cos_ones = direction.sum(-1) / sqrt(dim)
    row: dict[str, float | None] = {
        "radius": mean(radius),
        "radius_cv": mean(radius.std(correction=0) / radius.mean()),
        "step_norm": mean(sphere.radius(step)),
        "radial": mean(radial),
        "tangential": mean(tangential),
        "ratio": mean(ratio),
        "ratio_p99": mean(torch.quantile(ratio.flatten(), 0.99)),
        "angle": mean(sphere.angle(x, after)),
        "off_plane": None,
        "update_norm": None,
        "cos_ones": mean(cos_ones.abs()),
        "angle_ones": mean(cos_ones.clamp(-1, 1).acos()),
        "cos_null": mean((direction @ null_directions(dim, x)).abs()),
        "cos_pair": mean(pair_cosine(direction)),
    }
    if u is not None:
        u = wide(u)
        row["off_plane"] = mean(off_plane(x, u, after))
        row["update_norm"] = mean(sphere.radius(u))
    return row


def mean(values: Tensor) -> float | None:
    """Mean as a float; None where it is not finite, so that JSON stays JSON."""
    value = values.mean()
    return value.item() if torch.isfinite(value) else None


def null_directions(dim: int, like: Tensor) -> Tensor:
    """64 fixed random unit vectors, (dim, 64): what |cos| to a direction without meaning looks like."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(dim, NULL_DIRECTIONS, generator=generator, dtype=torch.float64)
    return (directions / directions.norm(dim=0)).to(like.device, like.dtype)


def pair_cosine(direction: Tensor) -> Tensor:
    """Mean cosine between different tokens of a sequence, shape (batch,), from unit rows (batch, tokens, dim)."""
    n = direction.shape[-2]
    total = direction.sum(-2).square().sum(-1)
    own = direction.square().sum((-1, -2))
    return (total - own) / max(1, n * (n - 1))


def off_plane(x: Tensor, u: Tensor, after: Tensor) -> Tensor:
    """|part of x' outside span{x, u}| / |x'|, shape (..., 1)."""
    v = sphere.tangent(x, u)
    rest = sphere.tangent(x, after)
    outside = sphere.tangent(v, rest)
    return sphere.safe_divide(sphere.radius(outside), sphere.radius(after))


@dataclass
class SiteMoments:
    """Extremes of a site for a diagnosis: largest update, smallest radius, whether anything is not finite."""

    largest_update: float
    smallest_radius: float
    finite: bool

    @staticmethod
    def of(x: Tensor, u: Tensor, after: Tensor) -> SiteMoments:
        return SiteMoments(
            largest_update=u.detach().float().norm(dim=-1).max().item(),
            smallest_radius=x.detach().float().norm(dim=-1).min().item(),
            finite=bool(torch.isfinite(after).all()),
        )
