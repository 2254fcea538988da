"""What a site does to the first token of each sequence and to the rest, and how heavy the tails of the stream are.

The first token may be of another kind than all others: a sink whose length exceeds theirs a hundredfold is invisible in
a median and decides a mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..sphere import safe_divide
from .accumulate import chunks, flat
from .streaming import Moments, single

TOP = 5
"""Dimensions that are named."""
APART = ("radius", "radius_after", "ratio", "peak", "kurtosis", "aligned", "squared")


def kurtosis(x: Tensor) -> Tensor:
    """Mean of x_i^4 over the square of the mean of x_i^2, shape (...): 3 d/(d + 2) on average for a direction without
    meaning in d dimensions, d for a token along one axis."""
    squares = x.square()
    return safe_divide(squares.square().mean(-1), squares.mean(-1).square())


class SiteDetail:
    """One residual site over any number of batches, beside its SiteMeasure, whose tokens' values it is handed."""

    def __init__(self) -> None:
        self.first: Moments | None = None
        self.rest: Moments | None = None
        self.every: Moments | None = None

    @torch.no_grad()
    def update(self, x: Tensor, tokens: Mapping[str, Tensor], mask: Tensor | None = None) -> None:
        """x (batch, tokens, dim); tokens: by name, values of all tokens but padding, in their order; mask as there."""
        rows = flat(x, mask)
        if not len(rows):
            return
        found = dict(tokens)
        found["kurtosis"] = torch.cat([kurtosis(single(rows[part])) for part in chunks(rows)])
        found["aligned"] = 2 * found["radius"].double() * found["radial"]
        found["squared"] = found["step_norm"].double().square()
        values = torch.stack([found[name].double() for name in APART])
        first = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
        first[starts(x, mask)] = True
        if self.first is None or self.rest is None or self.every is None:
            self.first, self.rest = (Moments(APART, x.device) for _ in range(2))
            self.every = Moments(("kurtosis",), x.device)
        self.first.update(values[:, first])
        self.rest.update(values[:, ~first])
        self.every.update(found["kurtosis"][None])

    def row(self, energy: Tensor) -> dict[str, Any]:
        """NAME_first and NAME_rest of each of APART, kurtosis with its quantiles and its null, and the dimensions with
        most of |x|^2 with their shares. energy (dim,): shares of all dimensions."""
        if self.first is None or self.rest is None or self.every is None:
            return {}
        found: dict[str, Any] = self.every.row()
        dim = energy.numel()
        found["kurtosis_null"] = 3 * dim / (dim + 2)
        for end, moments in (("first", self.first), ("rest", self.rest)):
            every = moments.row()
            found |= {f"{name}_{end}": every[name] for name in APART}
            radius, spread = every["radius"], every["radius_std"]
            found[f"radius_{end}_cv"] = spread / radius if radius and spread is not None else None
        if bool(torch.isfinite(energy).all()):
            share, where = energy.topk(min(TOP, dim))
            found |= {"top_dims": where.tolist(), "top_dims_share": share.tolist()}
        return found


def starts(x: Tensor, mask: Tensor | None) -> Tensor:
    """Where the sequences of (batch, tokens, dim) begin among their tokens without padding."""
    if mask is None:
        return torch.arange(x.shape[0], device=x.device) * x.shape[1]
    counts = mask.sum(1)
    return (counts.cumsum(0) - counts)[counts > 0]
