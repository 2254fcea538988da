"""What a residual site and a norm do to their tokens, measured from what goes in and what comes out.

A site is measured from the stream before (x) and after it (x'), which is right for every placement: what is added to
the stream is not always what the sub-layer returned. Angles are in radians; everything is computed in fp32 or better.
The definitions stand once, token by token (`site_tokens`, `norm_tokens`); `step_measures` averages them over one batch
in fp64, `SiteMeasure` and `NormMeasure` (accumulate.py) over any number of batches without keeping them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, log, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from ..parsing import finite_or_none
from ..sphere import safe_divide

NULL_DIRECTIONS = 64
STEP = ("radius", "step_norm", "radial", "tangential", "ratio", "angle")
SEEN = ("off_plane", "update_norm")


def wide(x: Tensor) -> Tensor:
    return x.detach().to(torch.float64)


def dots(x: Tensor, y: Tensor) -> Tensor:
    """<x, y>, shape (...)."""
    return (x * y).sum(-1)


def length(x: Tensor) -> Tensor:
    """|x|, shape (...). On CPU three times as fast as vector_norm."""
    return x.square().sum(-1).sqrt()


def remove(y: Tensor, x: Tensor, along: Tensor, radius: Tensor) -> Tensor:
    """y less its part along x, of length `along` = <x, y>/|x|: an explicit vector, whose length keeps small angles."""
    return torch.addcmul(y, safe_divide(along, radius)[..., None], x, value=-1)


def uniform_cosine(x: Tensor, radius: Tensor) -> Tensor:
    """cos of x to the uniform vector (1, ..., 1), shape (...)."""
    return safe_divide(x.sum(-1) / sqrt(x.shape[-1]), radius)


def null_cosines(x: Tensor, radius: Tensor) -> Tensor:
    """|cos| of x to 64 fixed random directions, shape (..., 64)."""
    return safe_divide(x @ null_directions(x.shape[-1], x.device, x.dtype), radius[..., None]).abs()


def site_tokens(x: Tensor, after: Tensor, u: Tensor | None = None, radius: Tensor | None = None) -> dict[str, Tensor]:
    """Token by token, shape (...), from x, x' and the raw branch output u of shape (..., dim), if it was seen.

    radius |x| (given where it is known already), step_norm |x'-x|, radial <x'-x,x>/|x|, tangential |P_x(x'-x)|, ratio
    tangential/|x|, angle (x to x'), radius_after |x'|; off_plane |part of x' outside span{x, u}| / |x'| and update_norm
    |u|, NaN where u was not seen.
    """
    radius = length(x) if radius is None else radius
    step = after - x
    radial = safe_divide(dots(step, x), radius)
    across = remove(step, x, radial, radius)
    tangential = length(across)
    found = {
        "radius": radius,
        "step_norm": torch.hypot(radial, tangential),
        "radial": radial,
        "tangential": tangential,
        "ratio": safe_divide(tangential, radius),
        "angle": torch.atan2(tangential, radius + radial),
        "radius_after": torch.hypot(radius + radial, tangential),
    }
    if u is None:
        return found | {name: torch.full_like(radius, torch.nan) for name in SEEN}
    along = safe_divide(dots(u, x), radius)
    side = remove(u, x, along, radius)
    width = length(side)
    outside = remove(across, side, safe_divide(dots(across, side), width), width)
    found["off_plane"] = safe_divide(length(outside), found["radius_after"])
    found["update_norm"] = torch.hypot(along, width)
    return found


def ones_tokens(cosine: Tensor) -> dict[str, Tensor]:
    """From the cosine to the uniform vector: its magnitude, the angle, and the share of |x|^2 along that vector."""
    return {"cos_ones": cosine.abs(), "angle_ones": cosine.clamp(-1, 1).acos(), "share_ones": cosine.square()}


def norm_tokens(
    x: Tensor, y: Tensor, gain: Tensor | None, bias: Tensor | None, centred: bool | None
) -> dict[str, Tensor]:
    """Token by token, shape (...), from the input x and the output y of a norm, both (..., dim).

    norm_before |x|, norm_after |y|, rotation (angle from x to y), rotation_plain (the same without gain and bias: what
    taking the uniform component out turns, 0 for RMSNorm), removal (angle between the norm's output with the uniform
    component taken out of x and with it left in, under the same gain and bias, eps left out of the one that did not
    run: what LayerNorm's first step changes, or would change in an RMSNorm). The last two are NaN for a norm that is
    neither (centred None).
    """
    before = length(x)
    along = safe_divide(dots(x, y), before)
    turned = length(remove(y, x, along, before))
    found = {
        "norm_before": before,
        "norm_after": torch.hypot(along, turned),
        "rotation": torch.atan2(turned, along),
        "rotation_plain": torch.full_like(before, torch.nan),
        "removal": torch.full_like(before, torch.nan),
    }
    if centred is None:
        return found
    root = sqrt(x.shape[-1])
    mean = x.mean(-1, keepdim=True)
    rest = x - mean
    left = length(rest)
    turn = torch.atan2(root * mean[..., 0].abs(), left)
    found["rotation_plain"] = turn if centred else torch.zeros_like(turn)
    # what the other kind of norm gives, under the same gain and bias
    other, size = (x, before) if centred else (rest, left)
    other = other * safe_divide(torch.full_like(size, root), size)[..., None]
    other = other if gain is None else other.mul_(gain)
    other = other if bias is None else other.add_(bias)
    after = found["norm_after"]
    along = safe_divide(dots(y, other), after)
    found["removal"] = torch.atan2(length(remove(other, y, along, after)), along)
    return found


def step_measures(x: Tensor, after: Tensor, u: Tensor | None = None) -> dict[str, float | None]:
    """Means over tokens for x, x' of shape (batch, tokens, dim), and the raw branch output u of the same shape if seen.

    What `site_tokens` says, with the coefficient of variation of the radius, the 99th percentile of the ratio, |cos|
    and angle to the uniform vector beside its null (the same |cos| to 64 random directions), and the mean cosine
    between different tokens of one sequence. Unknown values are None.
    """
    x, after = wide(x), wide(after)
    tokens = site_tokens(x, after, None if u is None else wide(u))
    radius = tokens["radius"]
    ones = ones_tokens(uniform_cosine(x, radius))
    return {
        **{name: mean(tokens[name]) for name in STEP},
        "radius_cv": mean(radius.std(correction=0) / radius.mean()),
        "ratio_p99": mean(torch.quantile(tokens["ratio"].flatten(), 0.99)),
        **{name: mean(tokens[name]) for name in SEEN},
        "cos_ones": mean(ones["cos_ones"]),
        "angle_ones": mean(ones["angle_ones"]),
        "cos_null": mean(null_cosines(x, radius)),
        "cos_pair": mean(pair_cosine(safe_divide(x, radius[..., None]))),
    }


def mean(values: Tensor) -> float | None:
    """Mean as a float; None where it is not finite, so that JSON stays JSON."""
    return finite_or_none(values.mean().item())


@cache
def null_directions(dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """64 fixed random unit vectors, (dim, 64): what |cos| to a direction without meaning looks like."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(dim, NULL_DIRECTIONS, generator=generator, dtype=torch.float64)
    return (drawn / drawn.norm(dim=0)).to(device, dtype)


def analytic_null(dim: int) -> float:
    """Mean |cos| of a random direction to any fixed one in `dim` dimensions, to first order in 1/dim."""
    return sqrt(2 / (pi * dim))


def pair_cosine(direction: Tensor) -> Tensor:
    """Mean cosine between different tokens of a sequence, shape (batch,), from unit rows (batch, tokens, dim)."""
    n = direction.shape[-2]
    total = direction.sum(-2).square().sum(-1)
    own = direction.square().sum((-1, -2))
    return (total - own) / max(1, n * (n - 1))


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


def pool_spreads(rows: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """How far norms make lengths alike, as arXiv:2409.12951 reports it: over the norms in blocks, the standard
    deviation over tokens of |x| before and after each: geometric means, and of the factor between both also the least
    and the most. Norms on either side of which all lengths are one (to 0.1 %) have no such factor and are left out;
    None where there are no others."""
    pairs = [
        (row["norm_before_std"], row["norm_after_std"])
        for row in rows
        if row.get("kind") is not None
        and all((row[f"norm_{end}_std"] or 0) > 1e-3 * (row[f"norm_{end}"] or 1) for end in ("before", "after"))
    ]
    if not pairs:
        return None
    factors = [before / after for before, after in pairs]
    before, after = (exp(sum(map(log, values)) / len(pairs)) for values in zip(*pairs, strict=True))
    return {
        "norms": len(pairs), "before": before, "after": after, "factor": before / after, "low": min(factors),
        "high": max(factors),
    }  # fmt: skip
