"""How a scheme moves one token: the way from x to x' as the step h of its `write` grows from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from typing import NamedTuple

import torch
from torch import Tensor

from ..norms import NormSpec
from ..schemes import Parts, Scheme, Site, advance, parse, read_at, write_at

LENGTHS = (0.25, 0.5, 1.0, 2.0)
"""Of updates, |u| / |x|."""
ANGLE = pi / 3
"""Between x and u."""
DIM, DEPTH, POINTS = 64, 12, 17


class Path(NamedTuple):
    """Of one token under one update: points (along x, across it) in the plane of x and u, from h = 0 to h = 1, in
    lengths of the x that entered."""

    length: float
    points: list[tuple[float, float]]
    clamped: bool


def follow_write(scheme: str | Scheme, t: int, lengths: Sequence[float] = LENGTHS, made: int = 0) -> list[Path]:
    """The path of a token for each length |u| / |x| of the update, which stands at 60 degrees to it, at the attention
    of block t (from 1 on) of 12, with the scheme's initial values; fp64. Of several streams it follows the one that
    measurements are about; of a scheme that changes over training it is drawn when `made` optimizer steps are made.
    Raises ConfigError for another t."""
    rule = parse(scheme)
    first, site = Site(0, "entry", DEPTH), Site(t - 1, "attn", DEPTH)
    # orthogonal, and their components sum to 0: a scheme may take the mean out
    along = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(DIM // 2)
    across = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64).repeat(DIM // 4)
    sizes = torch.tensor(lengths, dtype=torch.float64).unsqueeze(-1)
    with torch.no_grad():
        entry, part = rule.resolve(first), rule.resolve(site)
        x = entry.enter(along.expand(len(lengths), DIM), own_parts(entry, first, made)(), first)
        radius = part.seen(x)[0] @ along / DIM  # in lengths of the embedding; nGPT's stream is shorter, for one
        u = sizes * radius * (cos(ANGLE) * along + sin(ANGLE) * across)
        p = own_parts(part, site, made)()
        _, carry = read_at(part, x, p, site)
        met = part.clamped(x, u, p, site)
        steps = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64).tolist()
        seen = torch.stack([part.seen(write_at(part, x, u, p, site, h, carry=carry)) for h in steps], dim=1)
    places: Tensor = torch.stack((seen @ along, seen @ across), dim=-1) / (DIM * radius)
    clamped = [False] * len(lengths) if met is None else met.tolist()
    return [
        Path(length, [(a, b) for a, b in points], bound)
        for length, points, bound in zip(lengths, places.tolist(), clamped, strict=True)
    ]


def own_parts(scheme: Scheme, site: Site, made: int) -> Parts:
    own = Parts(scheme, site, NormSpec("rms", DIM, gains=False, eps=0.0)).double()
    advance(own, made)
    return own
