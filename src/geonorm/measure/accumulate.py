"""Measures of sites and norms over any number of batches: nothing is kept but sums, bins and a sample of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..parsing import finite_or_none
from ..sphere import safe_divide
from .metrics import analytic_null, norm_tokens, null_cosines, ones_tokens, site_tokens, uniform_cosine
from .sample import SAMPLE, concentration, many, principal
from .streaming import SEED, Moments, Sample, single

CHUNK = 1 << 17
"""Numbers of one tensor that are worked on at a time, so that they stay in a processor's cache."""
NULL_SHARE = 0.25
"""Of the tokens, at random, that the 64 random directions are compared with: their mean needs no more, and 64 products
are dear. A fixed stride would meet the same positions of every window, the first token among them."""


def flat(x: Tensor, mask: Tensor | None) -> Tensor:
    """(tokens, dim) without padding, of several streams one after the other; a view where there is none."""
    return (x.detach() if mask is None else x.detach()[mask]).reshape(-1, x.shape[-1])


def filled(x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Finds which vectors of x (batch, tokens, slots, dim) count: those of the mask but for slots that are 0, to which
    nothing is written yet. The mask itself where no slot is."""
    if x.dim() != 4 or bool((some := x.detach().ne(0).any(-1)).all()):
        return mask
    return some if mask is None else some & mask.unsqueeze(-1)


def chunks(rows: Tensor) -> Iterator[slice]:
    tokens, dim = rows.shape
    size = max(1, CHUNK // dim)
    return (slice(start, start + size) for start in range(0, tokens, size))


class Null:
    """|cos| to each of 64 random directions, averaged over tokens: what |cos| to the uniform vector stands beside."""

    def __init__(self) -> None:
        self.sum: Tensor | float = 0.0
        self.count = 0
        self.generator = torch.Generator().manual_seed(SEED)

    def update(self, x: Tensor, radius: Tensor) -> None:
        """The draw depends on the number of the token alone; the very first is in it, so that there is one."""
        drawn = torch.rand(x.shape[0], generator=self.generator) < NULL_SHARE
        drawn[0] |= self.count == 0
        drawn = drawn.to(x.device)
        cosine = null_cosines(x[drawn], radius[drawn])
        self.sum = self.sum + cosine.sum(0, dtype=torch.float64)
        self.count += cosine.shape[0]

    def row(self, end: str = "") -> dict[str, float | None]:
        """Mean over directions, and the 5th and 95th percentile of them: a direction without meaning lies between."""
        if not isinstance(self.sum, Tensor) or not bool(torch.isfinite(self.sum).all()):
            return {f"cos_null{end}": None, f"cos_null_low{end}": None, f"cos_null_high{end}": None}
        each = self.sum / self.count
        low, high = torch.quantile(each, torch.tensor([0.05, 0.95], dtype=each.dtype, device=each.device)).tolist()
        return {f"cos_null{end}": each.mean().item(), f"cos_null_low{end}": low, f"cos_null_high{end}": high}


class SiteMeasure:
    """One residual site over any number of batches.

    update(x, after, u, mask): x, x' and the raw branch output (None if not seen) of shape (batch, tokens, dim), in any
    floating dtype; mask of shape (batch, tokens) is True for tokens and False for padding. row() is a dictionary in the
    columns of trace.jsonl, with NAME_std and quantiles NAME_p01 ... NAME_p99 (to 1 %) of every quantity over tokens.
    """

    def __init__(self) -> None:
        self.moments: Moments | None = None
        self.null, self.sample = Null(), Sample(SAMPLE)
        self.sequences, self.pairs = 0, 0.0
        self.energy: Tensor | float = 0.0
        self.direction: Tensor | float = 0.0

    @torch.no_grad()
    def update(self, x: Tensor, after: Tensor, u: Tensor | None = None, mask: Tensor | None = None) -> bool:
        """Whether there was a token that is not padding."""
        rows, token = flat(x, mask), []
        afters, updates = flat(after, mask), None if u is None else flat(u, mask)
        for part in chunks(rows):
            part_x = single(rows[part])
            squares = part_x.square()
            radius = squares.sum(-1).sqrt()
            part_u = None if updates is None else single(updates[part])
            found = site_tokens(part_x, single(afters[part]), part_u, radius)
            found |= ones_tokens(uniform_cosine(part_x, radius))
            found["abs_peak"] = squares.amax(-1).sqrt()
            found["peak"] = safe_divide(found["abs_peak"] * sqrt(x.shape[-1]), radius)
            token.append(torch.stack(list(found.values())))
            self.null.update(part_x, radius)
            weight = safe_divide(torch.ones_like(radius), radius)
            self.energy = self.energy + (weight.square() @ squares).double()
        if not token:
            return False
        values = torch.cat(token, 1)
        if self.moments is None:
            self.moments = Moments(tuple(found), x.device)
        self.moments.update(values)
        self.sample.update(rows)
        self.tokens_of_sequences(x, mask, values[0])
        return True

    def tokens_of_sequences(self, x: Tensor, mask: Tensor | None, radius: Tensor) -> None:
        """Sums of directions: over each sequence for the cosine between its tokens, and over all for their mean."""
        weight = safe_divide(torch.ones_like(radius), radius)
        if mask is None:
            weight = weight.view(x.shape[:2])
            count = torch.full((x.shape[0],), x.shape[1], device=x.device)
        else:
            weight = torch.zeros(x.shape[:2], dtype=radius.dtype, device=x.device).masked_scatter_(mask, weight)
            count = mask.sum(1)
        total = torch.stack([w @ single(row) for w, row in zip(weight, x, strict=True)]).double()
        self.direction = self.direction + total.sum(0)
        own = (weight > 0).sum(1)  # unit rows: 1 each, 0 for a zero token
        many = count > 1
        cosine = (total.square().sum(-1) - own) / (count * (count - 1)).clamp(min=1)
        self.pairs += cosine[many].sum().item()
        self.sequences += int(many.sum())

    def row(self) -> dict[str, Any]:
        """Columns as in trace.jsonl; None: not known, or not finite. Without a token: nothing else."""
        if self.moments is None:
            return {"tokens": 0}
        found: dict[str, Any] = {"tokens": self.moments.count, **self.moments.row(short=("radius_after", "abs_peak"))}
        dim = self.sample.kept[0].shape[-1]
        spread, radius = found["radius_std"], found["radius"]
        found["radius_cv"] = spread / radius if radius else None
        found |= self.null.row() | {"cos_null_analytic": analytic_null(dim)}
        found["cos_pair"] = finite_or_none(self.pairs / self.sequences) if self.sequences else None
        assert isinstance(self.direction, Tensor)
        n = self.moments.count
        resultant = finite_or_none((self.direction.norm() / n).item())
        found["resultant"] = resultant
        found["concentration"] = None if resultant is None else concentration(resultant, dim)
        assert isinstance(self.energy, Tensor)
        share, where = (self.energy / n).max(0)
        found["top_dim"], found["top_dim_share"] = int(where), finite_or_none(share.item())
        largest = self.moments.high[self.moments.names.index("abs_peak")].item()
        found["abs_max"] = finite_or_none(largest)
        return found | many(self.sample.kept[0], largest)


class NormMeasure:
    """One norm over any number of batches.

    centred: whether it takes out the mean (LayerNorm: True, RMSNorm: False, anything else: None). update(before, after,
    weight, bias, mask): its input and output of shape (..., dim), the gain that multiplies (Gemma's 1 + w) and the bias
    (or None); mask as for SiteMeasure. row(): columns of norms.jsonl, over tokens as for sites; `_before` and `_after`
    are of the input and of the output.
    """

    def __init__(self, centred: bool | None) -> None:
        self.centred = centred
        self.moments: Moments | None = None
        self.nulls = (Null(), Null())
        self.sample = Sample(SAMPLE // 2)

    @torch.no_grad()
    def update(
        self, before: Tensor, after: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:  # fmt: skip
        xs, ys, token = flat(before, mask), flat(after, mask), []
        for part in chunks(xs):
            x, y = single(xs[part]), single(ys[part])
            gain, shift = (None if v is None else v.detach().to(x.device, x.dtype) for v in (weight, bias))
            found = norm_tokens(x, y, gain, shift, self.centred)
            for null, rows, name in zip(self.nulls, (x, y), ("before", "after"), strict=True):
                radius = found[f"norm_{name}"]
                null.update(rows, radius)
                ones = ones_tokens(uniform_cosine(rows, radius))
                found |= {f"{key}_{name}": value for key, value in ones.items()}
            token.append(torch.stack(list(found.values())))
        if not token:
            return
        if self.moments is None:
            self.moments = Moments(tuple(found), xs.device)
        self.moments.update(torch.cat(token, 1))
        self.sample.update(xs, ys)

    def row(self) -> dict[str, Any]:
        if self.moments is None:
            return {"tokens": 0}
        found: dict[str, Any] = {"tokens": self.moments.count, **self.moments.row()}
        for null, rows, end in zip(self.nulls, self.sample.kept, ("_before", "_after"), strict=True):
            found |= null.row(end) | {f"{key}{end}": value for key, value in principal(rows).items()}
        found["cos_null_analytic"] = analytic_null(self.sample.kept[0].shape[-1])
        return found
