"""What a sub-layer and a norm do to their tokens: the definitions, as functions of what goes in and what comes out.

A sub-layer is measured from the stream before it (x) and after it (x'), which is right for every placement of norms:
what is added to the stream is not always what the sub-layer returned. Angles are in radians. `step_per_token` and
`norm_per_token` are token by token; `sample_measures` needs many tokens at a time, O(dim^2) or sorting.
`accumulate` takes them over any number of tokens.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from math import exp, isfinite, log, sqrt
from typing import Any

import torch
from torch import Tensor

from .. import sphere
from ..parsing import finite_or_none
from ..sphere import safe_divide

NULL_DIRECTIONS = 64
SAMPLE = 512
"""Tokens of a sample. The effective rank cannot exceed it."""
MASSIVE_SIZE, MASSIVE_RATIO = 100.0, 1000.0
"""A massive activation is larger than 100 and than 1000 times the median magnitude (arXiv:2402.17762)."""


def as_fp64(x: Tensor) -> Tensor:
    """x in fp64, without a graph."""
    return x.detach().to(torch.float64)


def mean(values: Tensor) -> float | None:
    """Mean as a float; None where it is not finite, so that JSON stays JSON."""
    return finite_or_none(values.mean().item())


def dots(x: Tensor, y: Tensor) -> Tensor:
    """<x, y>, shape (...)."""
    return (x * y).sum(-1)


def length(x: Tensor) -> Tensor:
    """|x|, shape (...). On CPU three times as fast as vector_norm."""
    return x.square().sum(-1).sqrt()


def remove(y: Tensor, x: Tensor, along: Tensor, radius: Tensor) -> Tensor:
    """y without its part along x, which has the length `along` = <x, y>/|x|. As an explicit vector, so that small
    angles keep their digits."""
    return torch.addcmul(y, safe_divide(along, radius)[..., None], x, value=-1)


def step_per_token(x: Tensor, after: Tensor, u: Tensor | None, radius: Tensor) -> dict[str, Tensor]:
    """Token by token, shape (...), from x, x' and the raw output u of the branch of shape (..., dim), and |x|.

    radius |x|, step_norm |x'-x|, radial <x'-x,x>/|x|, tangential |P_x(x'-x)|, ratio tangential/|x|, angle (x to x'),
    radius_after |x'|; off_plane |part of x' outside span{x, u}| / |x'| and update_norm |u|, NaN without u.
    """
    step = after - x
    radial = safe_divide(dots(step, x), radius)
    across = remove(step, x, radial, radius)
    tangential = length(across)
    columns = {
        "radius": radius,
        "step_norm": torch.hypot(radial, tangential),
        "radial": radial,
        "tangential": tangential,
        "ratio": safe_divide(tangential, radius),
        "angle": torch.atan2(tangential, radius + radial),
        "radius_after": torch.hypot(radius + radial, tangential),
    }
    if u is None:
        return columns | {name: torch.full_like(radius, torch.nan) for name in ("off_plane", "update_norm")}
    along = safe_divide(dots(u, x), radius)
    side = remove(u, x, along, radius)
    width = length(side)
    outside = remove(across, side, safe_divide(dots(across, side), width), width)
    columns["off_plane"] = safe_divide(length(outside), columns["radius_after"])
    columns["update_norm"] = torch.hypot(along, width)
    return columns


def ones_per_token(x: Tensor, radius: Tensor) -> dict[str, Tensor]:
    """Token by token, of x (..., dim) of length radius: |cos| and angle to the uniform vector (1, ..., 1), and the
    share of |x|^2 along it."""
    cosine = safe_divide(x.sum(-1) / sqrt(x.shape[-1]), radius)
    return {"cos_ones": cosine.abs(), "angle_ones": cosine.clamp(-1, 1).acos(), "share_ones": cosine.square()}


def norm_per_token(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Token by token, shape (...), from the input x and the output y of a norm, both (..., dim): norm_before |x|,
    norm_after |y|, rotation (angle from x to y)."""
    before = length(x)
    along = safe_divide(dots(x, y), before)
    turned = length(remove(y, x, along, before))
    return {"norm_before": before, "norm_after": torch.hypot(along, turned), "rotation": torch.atan2(turned, along)}


@cache
def null_directions(dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """64 fixed random unit vectors, (dim, 64): |cos| to them is what a direction without meaning looks like."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(dim, NULL_DIRECTIONS, generator=generator, dtype=torch.float64)
    return (normal / normal.norm(dim=0)).to(device, dtype)


def effective_ranks(rows: Tensor) -> dict[str, float | None]:
    """exp of the entropy of shares that sum to 1, of the centred rows: effective_rank of their singular values (Roy and
    Vetterli, 2007), effective_rank_energy of the squares, which are the variances along the principal axes. The second
    is the smaller; one row far longer than the others takes nearly all of the energy, and brings it near 1."""
    rows = rows.double()
    if not bool(torch.isfinite(rows).all()):
        return {"effective_rank": None, "effective_rank_energy": None}
    rows = rows - rows.mean(0)
    gram = rows @ rows.mT if rows.shape[0] < rows.shape[1] else rows.mT @ rows
    energy = torch.linalg.eigvalsh(gram)
    # a Gram matrix knows singular values to the root of its precision: smaller ones are rounding
    energy = energy[energy > energy[-1].clamp(min=1e-300) * 1e-14]
    entropies = (torch.special.entr(values / values.sum()).sum().item() for values in (energy.sqrt(), energy))
    ranks = (exp(entropy) if len(energy) else 0.0 for entropy in entropies)
    return dict(zip(("effective_rank", "effective_rank_energy"), ranks, strict=True))


def principal(rows: Tensor) -> dict[str, float | None]:
    """The direction that tokens share most: the top singular vector of their unit rows, not centred, from the
    eigenvectors of the smaller Gram matrix.

    cos_principal: mean |cos| of tokens to it (no fixed direction has a larger mean of cos^2); cos_ones_principal: |cos|
    of the uniform vector to it.
    """
    rows = rows.double()
    if rows.shape[0] == 0 or not bool(torch.isfinite(rows).all()):
        return {"cos_principal": None, "cos_ones_principal": None}
    unit = safe_divide(rows, sphere.radius(rows))
    few = rows.shape[0] < rows.shape[1]
    v = torch.linalg.eigh(unit @ unit.mT if few else unit.mT @ unit).eigenvectors[:, -1]
    if few:
        v = unit.mT @ v
        v = v / v.norm().clamp(min=1e-300)
    return {
        "cos_principal": (unit @ v).abs().mean().item(),
        "cos_ones_principal": float(v.sum().abs() / sqrt(v.numel())),
    }


def sample_measures(rows: Tensor, largest: float) -> dict[str, Any]:
    """Measures of a sample of the stream (tokens, dim); largest: the largest |x_i| over all tokens, not the sample
    alone."""
    median = rows.double().abs().median().item()
    ratio = largest / median if median > 0 and isfinite(largest) else None
    return {
        **effective_ranks(rows),
        **principal(rows),
        "sample": rows.shape[0],
        "abs_median": median if isfinite(median) else None,
        "massive_ratio": ratio,
        "massive": ratio is not None and largest > MASSIVE_SIZE and ratio > MASSIVE_RATIO,
    }


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
