"""Attention residuals: a sub-layer reads a weighted mean of what earlier ones wrote, and keeps its own beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import require
from ..norms import NormSpec, autocast_device, upcast
from ..settings import Count
from .base import About, Number, Placement, Site
from .registry import register


@register("attnres")
@dataclass(frozen=True)
class AttentionResiduals(Placement):
    """Attention residuals: what a sub-layer reads is a softmax over the sums that blocks of sub-layers wrote, by one
    learned query of its own, which starts at 0: the mean.

    Slot 0 of the stream is the embedding, slot n the sum of what block n wrote so far; a sub-layer sees the slots
    before its block's, and its block's too unless it is the first of it. The head sees all. Attention and MLP count
    apart. With as many blocks as sub-layers, or more, each writes to a slot of its own: the full form. Inkling-2 weighs
    normalised slots (`values=norm`), six layers a block; in every sixth layer, of full attention, queries, keys and
    values read by queries of their own (`queries=qkv, every=6`).

    >>> geonorm.schemes.AttentionResiduals(blocks=2).streams
    3
    """

    about = About(
        equation="reads N(sum_i p_i b_i), p = softmax_i <w, K(b_i)>, i up to block; b_block += u; exit alike",
        source="Kimi Team 2026 (Attention Residuals), arXiv:2603.15031",
        claim="The loss of a baseline that computes 1.25 times as much; small re-runs by others found no gain, but "
        "for one (erogol/BlaGPT).",
        checked="its Eq. 2 to 6 in fp64, full and in blocks; the step of reading: a third party's code run "
        "(fla-org/flash-linear-attention bc3b101, naive), to rounding; its authors published no code; "
        "values=norm, one query and queries=qkv: transformers (Inkling-2), to rounding",
        shipped="Inkling-2, with values=norm, queries=qkv, every=6",
        lawless="a sub-layer reads its way through the history, not one stream",
    )

    blocks: Count = field(default=8, kw_only=True)
    """Blocks of sub-layers, as even as possible, with one slot each beside that of the embedding."""
    values: Literal["raw", "norm"] = field(default="raw", kw_only=True)
    """raw: the mean is one of the slots; norm: of their N without gains, which are the keys too, and scores are divided
    by the root of the width."""

    @property
    def streams(self) -> int:  # type: ignore[override]
        return self.blocks + 1

    queries: Literal["one", "qkv"] = field(default="one", kw_only=True)
    """qkv: attention reads three times, with a query and a norm each, for its queries, keys and values. A parallel
    block reads once."""
    every: Count = field(default=1, kw_only=True)
    """Of queries=qkv: the blocks of the model that read so are each n-th."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        thrice = self.queries == "qkv" and site.kind == "attn" and site.t % self.every == 0
        norms = dict.fromkeys(("input", "key", "value") if thrice else ("input",), "norm")
        if self.place(site) == (1, 0):  # there is the embedding alone to read; within the layer, what it has written
            return norms
        return {**norms, "recall": Recall(norm, self.values, len(norms))}

    def end_parts(self, site: Site, norm: NormSpec) -> Mapping[str, Any]:
        parts = super().end_parts(site, norm)
        return parts if site.kind == "entry" else {**parts, "recall": Recall(norm, self.values)}

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        start = super().enter(x, p, site).unsqueeze(-2)
        return torch.cat((start, start.new_zeros(*x.shape[:-1], self.blocks, x.shape[-1])), dim=-2)

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return super().exit(p.recall(x, 1 + min(self.blocks, site.sublayers * site.depth))[0], p, site)

    def read(self, x: Tensor, p: Any, site: Site) -> Tensor | tuple[Tensor, ...]:
        block, begun = self.place(site)
        seen = p.recall(x, block + begun) if hasattr(p, "recall") else (x.sum(-2),) * 3
        if not hasattr(p, "key"):
            return p.input(seen[0])
        require(not isinstance(site.layer, float), f"{self} reads three times, a particle once: use queries=one")
        return tuple(norm(each) for norm, each in zip((p.input, p.key, p.value), seen, strict=True))

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        block, _ = self.place(site)
        written = torch.arange(self.streams, device=x.device) == block
        return x + written.to(x.dtype).unsqueeze(-1) * (h * u).unsqueeze(-2)

    def place(self, site: Site) -> tuple[Any, Any]:
        """The slot that a site writes to, and whether another site of its block has written there, 0 or 1."""
        blocks = min(self.blocks, site.total)
        block = site.number // 1 * blocks // site.total  # continuous time goes on within a sub-layer
        first = -(-block * site.total // blocks)
        return block + 1, (site.number > first) * 1

    def seen(self, x: Tensor) -> Tensor:
        """The sum of all that was written, which is Pre-Norm's stream: what the reading does not change."""
        return upcast(x).sum(-2)


class Recall(nn.Module):
    """The first slots of x (..., streams, dim) to their mean (..., dim) by softmax of <query, K(slot)>, one for each
    query, in the dtype of x; values=norm: to the mean of their keys by softmax of <query, K(slot)> / sqrt(dim). Queries
    start at 0."""

    def __init__(self, norm: NormSpec, values: str, queries: int = 1) -> None:
        super().__init__()
        self.values = values
        self.key = norm() if values == "raw" else norm(gains=False)
        self.query = nn.Parameter(torch.zeros(*([queries] if queries > 1 else []), norm.dim))

    def forward(self, x: Tensor, slots: Any) -> tuple[Tensor, ...]:
        wide = upcast(x)
        with torch.autocast(autocast_device(x), enabled=False):  # one number per slot stays wide
            keys = self.key(wide)
            scores = torch.atleast_2d(self.query.to(wide.dtype)) @ keys.mT
            if self.values == "norm":
                wide, scores = keys, scores * keys.shape[-1] ** -0.5
            unwritten = torch.arange(x.shape[-2], device=x.device) >= slots
            shares = torch.softmax(scores.masked_fill(unwritten, -torch.inf), -1)
            return (shares @ wide).to(x.dtype).unbind(-2)
