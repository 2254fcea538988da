"""Manifold-constrained hyper-connections: several streams that mix by doubly stochastic matrices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import permutations
from math import factorial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import require
from ..norms import NormSpec, autocast_device, upcast
from ..settings import Count
from .base import About, Site
from .connected import Connected
from .registry import register

MOST_PERMUTED = 6
"""Streams whose permutations are few enough to be weighed: 720."""


@register("mhc")
@dataclass(frozen=True)
class ManifoldHyper(Connected):
    """mHC: hyper-connections whose streams mix by a matrix with rows and columns that sum to 1, so that no mixing
    amplifies, and read and write with weights in [0, 1] and [0, 2].

    All weights are a learned constant plus a small linear function of the token's streams, normalised together. The
    k-th sub-layer reads and writes stream k mod n most at the start, where the streams are alike. The streams leave as
    their sum (`head`). Twenty rounds of Sinkhorn end with rows: columns may be off by some hundredths.
    `mix=permutation` is mHC-lite (arXiv:2601.05732), `mix=kronecker` KromHC (arXiv:2601.21579), `mix=identity` leaves
    the streams apart.

    Reference codes differ from the paper and from each other (initial values; transformers adds 1e-6 in its Sinkhorn
    steps and to the weights); this is the paper. Initial values, of which the paper gives 0.01 alone, are those of
    mHC-lite's code; a learned head begins as half the sum.

    >>> print(geonorm.schemes.ManifoldHyper(mix="permutation"))
    mhc(mix=permutation)
    """

    about = About(
        equation="H = M H + 2 sigmoid(.) u(N(sigmoid(.) H)), M = Sinkhorn(exp(.)), each . = s N(vec H) W + b",
        source="Xie et al. 2025 (mHC), arXiv:2512.24880; Yang et al. 2026 (mHC-lite), arXiv:2601.05732; "
        "Zhou et al. 2026 (KromHC), arXiv:2601.21579",
        claim="No number of the papers is on record here; DeepSeek-V4 is built with it. Others report for mix=identity "
        "a net gain of wall-clock time of 5.15 % at width 512 and 2.05 % at 768 (Marin, issue 7409).",
        checked="transformers (DeepSeek-V4, GLM-5.3-Flash, Hy4) with its added 1e-6 taken out, to rounding; "
        "mix=permutation and kronecker: official code run (FFTYYY/mhc-lite ea19775, wz1119/KromHC 7b15834), to "
        "rounding",
        shipped="DeepSeek-V4 with head=learned, GLM-5.3-Flash with head=mean, Hy4-preview with mix=identity and "
        "head=learned",
        lawless="n streams that mix, with weights that depend on the token",
    )

    mix: Literal["sinkhorn", "permutation", "kronecker", "identity"] = field(default="sinkhorn", kw_only=True)
    """How the mixing is made doubly stochastic: rows and columns normalised in turn, a convex combination of all
    permutations, a Kronecker product of such combinations of two streams each, or not at all, each stream kept."""
    iterations: Count = field(default=20, kw_only=True)
    """Of columns and rows, for sinkhorn."""
    head: Literal["sum", "mean", "learned"] = field(default="sum", kw_only=True)
    """How the streams leave: as their sum or mean, the same after a final norm, or weighed as sub-layers read them."""

    def check(self) -> None:
        require(self.mix != "kronecker" or self.n.bit_count() == 1, f"{self}: mix=kronecker takes 2, 4, 8, ... streams")
        require(
            self.mix != "permutation" or self.n <= MOST_PERMUTED,
            f"{self}: mix=permutation weighs all {self.n} factorial permutations: use at most {MOST_PERMUTED} streams",
        )

    def end_parts(self, site: Site, norm: NormSpec) -> Mapping[str, Any]:
        parts = super().end_parts(site, norm)
        if site.kind == "entry" or self.head != "learned":
            return parts
        return {**parts, "all": norm(dim=self.n * norm.dim, gains=False), "collapse": StreamWeights(self.n, norm.dim)}

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        if self.head == "learned":
            wide = upcast(x)
            with torch.autocast(autocast_device(x), enabled=False):
                x = (p.collapse(p.all(wide.flatten(-2))).unsqueeze(-1) * wide).to(x.dtype)
        return super().exit(x / self.n if self.head == "mean" else x, p, site)

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return {
            "input": "norm",
            "all": norm(dim=self.n * norm.dim, gains=False),  # gains would only scale the rows of W
            "mapping": StreamMapping(self.n, norm.dim, self.first(site), self.mix),
        }

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        wide = upcast(x)
        # mixing is no matrix product of the model: it stays wide
        with torch.autocast(autocast_device(x), enabled=False):
            reading, share, mixing = p.mapping(p.all(wide.flatten(-2)))
            rest = wide if mixing is None else self.stochastic(mixing) @ wide
            y = (reading.unsqueeze(-2) @ wide).squeeze(-2)
        return p.input(y.to(x.dtype)), (rest, share)

    def stochastic(self, scores: Tensor) -> Tensor:
        """The mixing matrix (..., n, n) of scores as `StreamMapping` gives them: row i says what becomes of
        stream i."""
        if self.mix == "permutation":
            table = torch.tensor(list(permutations(range(self.n))), device=scores.device)
            every = F.one_hot(table, self.n).to(scores.dtype)
            return (torch.softmax(scores, -1) @ every.flatten(1)).unflatten(-1, (self.n, self.n))
        if self.mix == "kronecker":
            shares = torch.softmax(scores, -1)
            factors = torch.stack((shares, shares.flip(-1)), -2).unbind(-3)
            return reduce(lambda a, b: torch.einsum("...ij,...kl->...ikjl", a, b).flatten(-2).flatten(-3, -2), factors)
        for _ in range(self.iterations):
            scores = torch.log_softmax(scores, -2)
            scores = torch.log_softmax(scores, -1)
        return scores.exp()


class StreamMapping(nn.Module):
    """(..., n dim), the streams of a token normalised together, to (..., n) reading weights in [0, 1], (..., n) writing
    weights in [0, 2], and the scores of the mixing: (..., n, n), one per permutation, two per factor, or None."""

    def __init__(self, n: int, dim: int, first: int, mix: str) -> None:
        super().__init__()
        self.n = n
        shapes = {"sinkhorn": (n, n), "permutation": (factorial(n),), "kronecker": (n.bit_length() - 1, 2)}
        self.mixed = shapes.get(mix, (0,))
        bias = torch.full((2 * n + torch.Size(self.mixed).numel(),), -8.0)
        bias[: 2 * n] = -1.0
        bias[[first, n + first]] = 1.0
        if mix == "sinkhorn":
            bias[2 * n :].view(n, n).fill_diagonal_(0.0)
        else:
            bias[2 * n :: self.mixed[-1] or 1] = 0.0  # the first permutation is the identity
        self.weight = nn.Parameter(torch.zeros(len(bias), n * dim))
        self.bias = nn.Parameter(bias)
        self.scale = nn.Parameter(torch.full((3,), 0.01))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        sizes = (self.n, self.n, self.bias.shape[0] - 2 * self.n)
        moved, fixed = F.linear(y, self.weight.to(y.dtype)).split(sizes, -1), self.bias.to(y.dtype).split(sizes)
        reading, writing, mixing = (s * w + b for s, w, b in zip(self.scale.to(y.dtype), moved, fixed, strict=True))
        scores = mixing.unflatten(-1, self.mixed) if sizes[2] else None
        return torch.sigmoid(reading), 2 * torch.sigmoid(writing), scores


class StreamWeights(nn.Module):
    """(..., n dim), the streams of a token normalised together, to the weights in [0, 1] by which they leave, (..., n);
    1/2 at the start."""

    def __init__(self, n: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n, n * dim))
        self.bias = nn.Parameter(torch.zeros(n))
        self.scale = nn.Parameter(torch.full((1,), 0.01))

    def forward(self, y: Tensor) -> Tensor:
        scores = self.scale.to(y.dtype) * F.linear(y, self.weight.to(y.dtype))
        return torch.sigmoid(scores + self.bias.to(y.dtype))
