"""Attention to the first token of a sequence, the attention sink (arXiv:2309.17453), and the largest score, which grows
where training becomes unstable (arXiv:2302.05442).

Measured where attention is computed, in any model: in torch's scaled_dot_product_attention, whose weights are computed
again a few queries at a time, and in a softmax over scores (batch, heads, queries, keys). Other kernels are not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SCORES = 1 << 24
"""Scores in memory at a time."""


class AttentionMeasure:
    """Attention of each head to the first token, and its value if a query attended to all visible keys alike: means
    over queries but those at the first token itself, those that do not see it, and padding. The largest score: over all
    queries but padding."""

    def __init__(self) -> None:
        self.heads: Tensor | float = 0.0
        self.null, self.count = 0.0, 0
        self.logit = -math.inf

    def add(self, mass: Tensor, seen: Tensor, peak: Tensor, counted: Tensor, real: Tensor | None = None) -> None:
        """mass (batch, heads, queries) on the first key; seen (batch, queries) keys, 0 where the first is none of them;
        peak (batch, heads, queries), the largest score of each; counted, real (batch, queries): False is padding."""
        peaks = peak.amax(1)
        peaks = peaks if real is None or real.shape != peaks.shape else peaks[real.to(peaks.device).bool()]
        if peaks.numel():
            self.logit = max(self.logit, peaks.max().item())
        weight = counted.to(mass.dtype)
        self.heads = self.heads + torch.einsum("bhq,bq->h", mass, weight).double()
        self.null += (weight / seen.clamp(min=1)).sum().item()
        self.count += int(counted.sum())

    def row(self) -> dict[str, float | None]:
        """attn_first: mean over heads; attn_first_head: the largest of a head; attn_first_null: without preference;
        attn_logit: the largest score of a query and a key that it sees, as it enters the softmax (scaled, capped,
        biased)."""
        if not isinstance(self.heads, Tensor) or not self.count:
            return dict.fromkeys(("attn_first", "attn_first_head", "attn_first_null", "attn_logit"))
        each = self.heads / self.count
        return {
            "attn_first": each.mean().item(),
            "attn_first_head": each.max().item(),
            "attn_first_null": self.null / self.count,
            "attn_logit": self.logit,
        }


class WatchAttention(TorchFunctionMode):
    """Calls look(mass, seen, peak), as AttentionMeasure.add has them, for every self-attention inside.

    first(batch, keys): index of the first token of each sequence, (batch,).
    """

    def __init__(self, look: Callable[[Tensor, Tensor, Tensor], None], first: Callable[[int, int], Tensor]) -> None:
        super().__init__()
        self.look, self.first = look, first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.see_product(*args, **kwargs)
        out = func(*args, **kwargs)
        if func in (F.softmax, torch.softmax, Tensor.softmax) and isinstance(out, Tensor) and out.dim() == 4:
            scores = args[0] if args else kwargs["input"]
            if out.shape[-1] == out.shape[-2] > 1:
                first = self.first(out.shape[0], out.shape[-1]).to(out.device)
                seen = keys_seen(scores > torch.finfo(scores.dtype).min / 2, first)
                self.look(column(out, first).float(), seen, scores.amax(-1).float())
        return out

    def see_product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if query.dim() != 4 or query.shape[-2] != key.shape[-2] or query.shape[-2] < 2:
            return
        batch, heads, queries, width = query.shape
        scale = width**-0.5 if scale is None else scale
        first = self.first(batch, key.shape[-2]).to(query.device)
        at = torch.arange(queries, device=query.device)
        key = key.float().repeat_interleave(heads // key.shape[1], dim=1) if key.shape[1] != heads else key.float()
        size = max(1, SCORES // (batch * heads * queries))
        mass, peak = (torch.empty(batch, heads, queries, device=query.device) for _ in range(2))
        seen = torch.empty(batch, queries, dtype=torch.int64, device=query.device)
        for start in range(0, queries, size):
            rows = slice(start, start + size)
            scores = query[:, :, rows].float() @ key.mT * scale
            allowed = at[rows, None] >= at if is_causal else torch.ones_like(scores[0, 0], dtype=torch.bool)
            if attn_mask is not None:
                mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., rows, :]
                if mask.dtype == torch.bool:
                    allowed = allowed & mask
                else:
                    scores = scores + mask
                    allowed = allowed & (mask > torch.finfo(mask.dtype).min / 2)
            scores = scores.masked_fill(~allowed, -torch.inf)
            mass[:, :, rows] = (column(scores, first) - scores.logsumexp(-1)).exp().nan_to_num(0.0).float()
            peak[:, :, rows] = scores.amax(-1)
            seen[:, rows] = keys_seen(allowed.expand(scores.shape), first)
        self.look(mass, seen, peak)


def keys_seen(allowed: Tensor, first: Tensor) -> Tensor:
    """Number of keys that a query sees, (batch, queries), 0 where key `first` is none of them; allowed (batch, heads,
    queries, keys) is the same for all heads."""
    return (allowed.sum(-1) * column(allowed, first))[:, 0]


def column(scores: Tensor, first: Tensor) -> Tensor:
    """(batch, heads, queries, keys) at key `first` (batch,) of each sequence: (batch, heads, queries)."""
    return torch.stack([row[..., place] for row, place in zip(scores, first.tolist(), strict=True)])


def first_places(mask: Tensor | None, batch: int, keys: int) -> Tensor:
    """Index of the first token of each sequence, (batch,): 0 where there is no padding."""
    if mask is None or mask.shape != (batch, keys):
        return torch.zeros(batch, dtype=torch.int64)
    return mask.bool().int().argmax(1)


def counted_queries(mask: Tensor | None, first: Tensor, seen: Tensor) -> Tensor:
    """(batch, queries): tokens other than the first of their sequence that see it."""
    at = torch.arange(seen.shape[1], device=seen.device)
    counted = (at != first.to(seen.device)[:, None]) & (seen > 0)
    return counted if mask is None or mask.shape != seen.shape else counted & mask.to(seen.device).bool()
