"""Measures of sub-layers and norms over any number of tokens, batch by batch: only sums, bins and a sample of tokens
stay in memory."""

from collections.abc import Iterator
from math import ceil, log, sqrt
from typing import Any

import torch
from torch import Tensor

from ..norms import upcast
from ..parsing import finite_or_none
from ..sphere import safe_divide
from .metrics import (
    SAMPLE,
    norm_per_token,
    null_directions,
    ones_per_token,
    principal,
    sample_measures,
    step_per_token,
)

QUANTILES = {"p01": 0.01, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p99": 0.99}
RELATIVE_ERROR = 0.01
"""Relative error of a quantile: at most 1 % (logarithmic bins: DDSketch, arXiv:1908.10693)."""
SMALLEST, LARGEST = 1e-12, 1e12
"""Magnitudes that the bins tell apart; smaller ones count as 0, larger ones as the largest."""
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
BINS = ceil(log(LARGEST / SMALLEST) / log(GAMMA))
SEED = 0
CHUNK = 1 << 17
"""Numbers of a tensor that are processed at a time, so that they stay in the processor's cache."""
NULL_SHARE = 0.25
"""Share of the tokens, drawn at random, whose cosines to random directions are taken: 64 dot products per token are
expensive, and a quarter is enough for the mean. A fixed stride would meet the same positions of every window."""


class Moments:
    """Mean, standard deviation, quantiles and extremes of several quantities at once.

    update takes (quantities, tokens > 0) with one row per name, in any floating dtype; sums are kept in fp64 about the
    first value of each row, so that a spread far below the mean survives. A quantity of which one value was not finite
    has no statistics (None), so that JSON stays JSON.
    """

    def __init__(self, names: tuple[str, ...], device: torch.device) -> None:
        self.names, self.count = names, 0
        zeros = torch.zeros(len(names), dtype=torch.float64, device=device)
        self.shift, self.sum, self.squares = zeros.clone(), zeros.clone(), zeros.clone()
        self.low, self.high = zeros + torch.inf, zeros - torch.inf
        # bins: -largest .. -smallest, 0, smallest .. largest
        self.counts = torch.zeros(len(names), 2 * BINS + 1, dtype=torch.int64, device=device)

    def update(self, values: Tensor) -> None:
        values = values.double()
        if self.count == 0:
            self.shift = values[:, 0].clone()
        centred = values - self.shift[:, None]
        self.sum += centred.sum(1)
        self.squares += centred.square().sum(1)
        self.low = torch.minimum(self.low, values.amin(1))
        self.high = torch.maximum(self.high, values.amax(1))
        place = torch.ceil(torch.log(values.abs().nan_to_num(0.0) / SMALLEST) / log(GAMMA)).clamp(0, BINS)
        index = (place * values.sign().nan_to_num(0.0)).long() + BINS
        index += torch.arange(len(self.names), device=index.device)[:, None] * self.counts.shape[1]
        self.counts.view(-1).index_add_(0, index.flatten(), torch.ones_like(index).flatten())
        self.count += values.shape[1]

    def row(self, *, short: tuple[str, ...] = ()) -> dict[str, float | None]:
        """NAME, NAME_std, NAME_p01 ... for every quantity; those named in `short` have their mean alone."""
        n = max(1, self.count)
        mean = self.shift + self.sum / n
        std = (self.squares / n - (self.sum / n).square()).clamp(min=0).sqrt()
        table = torch.cat((mean[:, None], std[:, None], self.quantiles()), 1)
        row: dict[str, float | None] = {}
        for name, values, finite in zip(self.names, table.tolist(), torch.isfinite(self.squares).tolist(), strict=True):
            keys = [name] if name in short else [name, f"{name}_std", *(f"{name}_{key}" for key in QUANTILES)]
            row |= {key: value if finite else None for key, value in zip(keys, values, strict=False)}
        return row

    def quantiles(self) -> Tensor:
        """(quantities, quantiles): the value whose rank is at least q n, to RELATIVE_ERROR."""
        wanted = torch.tensor(list(QUANTILES.values()), dtype=torch.float64, device=self.counts.device)
        rank = (wanted * self.count).ceil().clamp(min=1).long()
        reached = self.counts.cumsum(1)
        place = torch.searchsorted(reached, rank.expand(len(self.names), -1).contiguous()) - BINS
        size = SMALLEST * 2 * GAMMA ** place.abs().double() / (GAMMA + 1)
        value = torch.where(place == 0, 0.0, size * place.sign())
        return torch.minimum(torch.maximum(value, self.low[:, None]), self.high[:, None])


class Sample:
    """A uniform random sample of tokens, at most `size` of them, for measures that need many tokens at a time.

    The draw depends on the number of the token alone, so that samples fed with the same tokens hold the same ones. Rows
    are in fp32 (fp64 for fp64).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(SEED)
        self.keys = torch.empty(0)
        self.rows: tuple[Tensor, ...] = ()

    def update(self, *rows: Tensor) -> None:
        """rows: one or more (tokens, dim), token by token the same; they are copied only where drawn."""
        keys = torch.rand(rows[0].shape[0], generator=self.generator)
        full = self.keys.numel() == self.size
        chosen = (keys < self.keys.max()).nonzero().flatten() if full else torch.arange(keys.numel())
        if chosen.numel() > self.size:
            chosen = chosen[keys[chosen].topk(self.size, largest=False).indices]
        if chosen.numel() == 0:
            return
        new = tuple(upcast(row[chosen.to(row.device)]) for row in rows)
        self.keys = torch.cat([self.keys, keys[chosen]])
        self.rows = tuple(torch.cat(pair) for pair in zip(self.rows, new, strict=True)) if self.rows else new
        if self.keys.numel() > self.size:
            best = self.keys.topk(self.size, largest=False).indices
            self.keys, self.rows = self.keys[best], tuple(row[best.to(row.device)] for row in self.rows)


def flat(x: Tensor, mask: Tensor | None) -> Tensor:
    """(tokens, dim) without padding, of several streams one after the other; a view where there is none."""
    return (x.detach() if mask is None else x.detach()[mask]).reshape(-1, x.shape[-1])


def filled(x: Tensor, mask: Tensor | None) -> Tensor | None:
    """The given mask without the slots of x (batch, tokens, slots, dim) that are 0, to which nothing has been written
    yet. The mask itself where no slot is 0, or x has no slots."""
    if x.dim() != 4 or bool((some := x.detach().ne(0).any(-1)).all()):
        return mask
    return some if mask is None else some & mask.unsqueeze(-1)


def chunks(rows: Tensor) -> Iterator[slice]:
    tokens, dim = rows.shape
    size = max(1, CHUNK // dim)
    return (slice(start, start + size) for start in range(0, tokens, size))


class NullCosines:
    """|cos| to each of 64 random directions, averaged over tokens: the null of |cos| to the uniform vector."""

    def __init__(self) -> None:
        self.sum: Tensor | float = 0.0
        self.count = 0
        self.generator = torch.Generator().manual_seed(SEED)

    def update(self, x: Tensor, radius: Tensor) -> None:
        """The draw depends on the number of the token alone. The very first token is always drawn, so that there is
        one."""
        chosen = torch.rand(x.shape[0], generator=self.generator) < NULL_SHARE
        chosen[0] |= self.count == 0
        chosen = chosen.to(x.device)
        along = x[chosen] @ null_directions(x.shape[-1], x.device, x.dtype)
        cosine = safe_divide(along, radius[chosen, None]).abs()
        self.sum = self.sum + cosine.sum(0, dtype=torch.float64)
        self.count += cosine.shape[0]

    def row(self, end: str = "") -> dict[str, float | None]:
        """Mean over directions, and their 5th and 95th percentiles: a direction without meaning lies between these."""
        if not isinstance(self.sum, Tensor) or not bool(torch.isfinite(self.sum).all()):
            return {f"cos_null{end}": None, f"cos_null_low{end}": None, f"cos_null_high{end}": None}
        each = self.sum / self.count
        low, high = torch.quantile(each, torch.tensor([0.05, 0.95], dtype=each.dtype, device=each.device)).tolist()
        return {f"cos_null{end}": each.mean().item(), f"cos_null_low{end}": low, f"cos_null_high{end}": high}


class SiteMeasure:
    """One sub-layer over any number of batches.

    update(x, after, u, mask, clamped): the stream before and after it and the raw output of its branch (None if
    unknown), all (batch, tokens, dim) in any floating dtype; (batch, tokens): mask is False for padding, clamped True
    for updates that a scheme clamps (None for one without a clamp). row() has the columns of
    trace.jsonl, with NAME_std and quantiles NAME_p01 ... NAME_p99 (to 1 %) over tokens of every quantity but
    `radius_after`, `abs_peak` and `clamped`; None is unknown or not finite.

    >>> import torch
    >>> from geonorm.measure.accumulate import SiteMeasure
    >>> measure = SiteMeasure()
    >>> x = torch.eye(4)[None]  # one sequence of four tokens
    >>> measure.update(x, 2 * x)
    >>> row = measure.row()
    >>> row["tokens"], row["radius"], row["radial"], row["angle"], row["cos_pair"]
    (4, 1.0, 1.0, 0.0, 0.0)
    """

    def __init__(self) -> None:
        self.moments: Moments | None = None
        self.null, self.sample = NullCosines(), Sample(SAMPLE)
        self.sequences, self.pairs = 0, 0.0

    @torch.no_grad()
    def update(
        self,
        x: Tensor,
        after: Tensor,
        u: Tensor | None = None,
        mask: Tensor | None = None,
        clamped: Tensor | None = None,
    ) -> None:
        rows, afters, updates = flat(x, mask), flat(after, mask), None if u is None else flat(u, mask)
        values = []
        for part in chunks(rows):
            part_x, part_u = upcast(rows[part]), None if updates is None else upcast(updates[part])
            squares = part_x.square()
            radius = squares.sum(-1).sqrt()
            columns = step_per_token(part_x, upcast(afters[part]), part_u, radius) | ones_per_token(part_x, radius)
            columns["abs_peak"] = squares.amax(-1).sqrt()
            columns["peak"] = safe_divide(columns["abs_peak"] * sqrt(x.shape[-1]), radius)
            values.append(torch.stack(list(columns.values())))
            self.null.update(part_x, radius)
        if not values:
            return
        table = torch.cat(values, 1)
        unknown = torch.full_like(table[:1], torch.nan)
        table = torch.cat((table, unknown if clamped is None else flat(clamped[..., None], mask).mT))
        if self.moments is None:
            self.moments = Moments((*columns, "clamped"), x.device)
        self.moments.update(table)
        self.sample.update(rows)
        self.add_pairs(x, mask, radius=table[0])

    def add_pairs(self, x: Tensor, mask: Tensor | None, radius: Tensor) -> None:
        """Sums over sequences of the mean cosine between two of their tokens."""
        weight = safe_divide(torch.ones_like(radius), radius)
        if mask is None:
            weight = weight.view(x.shape[:2])
            count = torch.full((x.shape[0],), x.shape[1], device=x.device)
        else:
            weight = torch.zeros(x.shape[:2], dtype=radius.dtype, device=x.device).masked_scatter_(mask, weight)
            count = mask.sum(1)
        total = torch.stack([w @ upcast(row) for w, row in zip(weight, x, strict=True)]).double()
        squares = (weight > 0).sum(1)  # of unit rows: 1 each, 0 for a zero token
        several = count > 1
        cosine = (total.square().sum(-1) - squares) / (count * (count - 1)).clamp(min=1)
        self.pairs += cosine[several].sum().item()
        self.sequences += int(several.sum())

    def row(self) -> dict[str, Any]:
        if self.moments is None:
            return {"tokens": 0}
        n, (sample,) = self.moments.count, self.sample.rows
        row: dict[str, Any] = {"tokens": n, **self.moments.row(short=("radius_after", "abs_peak", "clamped"))}
        largest = self.moments.high[self.moments.names.index("abs_peak")].item()
        return {
            **row,
            "radius_cv": row["radius_std"] / row["radius"] if row["radius"] else None,
            **self.null.row(),
            "cos_pair": finite_or_none(self.pairs / self.sequences) if self.sequences else None,
            "abs_max": finite_or_none(largest),
            **sample_measures(sample, largest),
        }


class NormMeasure:
    """One norm over any number of batches.

    update(before, after, mask): its input and output of shape (..., dim); mask as for SiteMeasure. row() has the
    columns of norms.jsonl, over tokens as for sub-layers; `_before` and `_after` are of the input and of the output.

    >>> import torch
    >>> from geonorm.measure.accumulate import NormMeasure
    >>> measure, x = NormMeasure(), torch.eye(4)[None]
    >>> measure.update(x, torch.nn.functional.rms_norm(x, (4,)))
    >>> row = measure.row()
    >>> row["norm_before"], round(row["norm_after"], 3), row["rotation"]
    (1.0, 2.0, 0.0)
    """

    def __init__(self) -> None:
        self.moments: Moments | None = None
        self.nulls = (NullCosines(), NullCosines())
        self.sample = Sample(SAMPLE // 2)

    @torch.no_grad()
    def update(self, before: Tensor, after: Tensor, mask: Tensor | None = None) -> None:
        xs, ys, values = flat(before, mask), flat(after, mask), []
        for part in chunks(xs):
            x, y = upcast(xs[part]), upcast(ys[part])
            columns = norm_per_token(x, y)
            for null, rows, end in zip(self.nulls, (x, y), ("before", "after"), strict=True):
                radius = columns[f"norm_{end}"]
                null.update(rows, radius)
                columns |= {f"{key}_{end}": value for key, value in ones_per_token(rows, radius).items()}
            values.append(torch.stack(list(columns.values())))
        if not values:
            return
        if self.moments is None:
            self.moments = Moments(tuple(columns), xs.device)
        self.moments.update(torch.cat(values, 1))
        self.sample.update(xs, ys)

    def row(self) -> dict[str, Any]:
        if self.moments is None:
            return {"tokens": 0}
        row: dict[str, Any] = {"tokens": self.moments.count, **self.moments.row()}
        for null, rows, end in zip(self.nulls, self.sample.rows, ("_before", "_after"), strict=True):
            row |= null.row(end) | {f"{key}{end}": value for key, value in principal(rows).items()}
        return row
