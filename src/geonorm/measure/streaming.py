"""Statistics over tokens that arrive batch by batch, in memory that does not grow with their number."""

from __future__ import annotations

from math import ceil, log

import torch
from torch import Tensor

QUANTILES = {"p01": 0.01, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p99": 0.99}
RELATIVE_ERROR = 0.01
"""Of a quantile: it is within 1 % of the exact one (logarithmic bins: DDSketch, arXiv:1908.10693)."""
SMALLEST, LARGEST = 1e-12, 1e12
"""Magnitudes that the bins tell apart; smaller ones count as 0, larger ones as the largest."""
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
BINS = ceil(log(LARGEST / SMALLEST) / log(GAMMA))
SEED = 0


def single(x: Tensor) -> Tensor:
    """x in the precision of the streaming measures: fp64 stays, everything else becomes fp32."""
    return x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()


class Moments:
    """Mean, standard deviation, quantiles and extremes of several quantities at once.

    update takes (quantities, tokens) with one row per name, in any floating dtype; sums are kept in fp64 about the
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
        tokens = values.shape[1]
        if tokens == 0:
            return
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
        self.count += tokens

    def row(self, *, short: tuple[str, ...] = ()) -> dict[str, float | None]:
        """NAME, NAME_std, NAME_p01 ... for every quantity; those named in `short` have their mean alone."""
        found: dict[str, float | None] = {}
        finite = torch.isfinite(self.squares).tolist()
        n = max(1, self.count)
        mean = self.shift + self.sum / n
        std = (self.squares / n - (self.sum / n).square()).clamp(min=0).sqrt()
        quantiles = self.quantiles()
        for i, name in enumerate(self.names):
            usable = self.count > 0 and finite[i]
            found[name] = mean[i].item() if usable else None
            if name not in short:
                found[f"{name}_std"] = std[i].item() if usable else None
                for j, key in enumerate(QUANTILES):
                    found[f"{name}_{key}"] = quantiles[i, j].item() if usable else None
        return found

    def quantiles(self) -> Tensor:
        """(quantities, quantiles): the value whose rank is at least q n, to RELATIVE_ERROR."""
        wanted = torch.tensor(list(QUANTILES.values()), dtype=torch.float64, device=self.counts.device)
        rank = (wanted * self.count).ceil().clamp(min=1).long()
        reached = self.counts.cumsum(1)
        place = torch.searchsorted(reached, rank.expand(len(self.names), -1).contiguous()) - BINS
        size = SMALLEST * 2 * GAMMA ** place.abs().double() / (GAMMA + 1)
        found = torch.where(place == 0, 0.0, size * place.sign())
        return torch.minimum(torch.maximum(found, self.low[:, None]), self.high[:, None])


class Sample:
    """A uniform random sample of tokens, at most `size` of them, for measures that need many tokens at a time.

    The draw depends on the number of the token alone, so that samples fed with the same tokens hold the same ones. Rows
    are kept in fp32 (fp64 for fp64).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(SEED)
        self.keys = torch.empty(0)
        self.kept: tuple[Tensor, ...] = ()

    def update(self, *rows: Tensor) -> None:
        """rows: one or more (tokens, dim), token by token the same; they are copied only where drawn."""
        keys = torch.rand(rows[0].shape[0], generator=self.generator)
        full = self.keys.numel() == self.size
        chosen = (keys < self.keys.max()).nonzero().flatten() if full else torch.arange(keys.numel())
        if chosen.numel() > self.size:
            chosen = chosen[keys[chosen].topk(self.size, largest=False).indices]
        if chosen.numel() == 0:
            return
        new = tuple(single(row[chosen.to(row.device)]) for row in rows)
        keys = torch.cat([self.keys, keys[chosen]])
        kept = tuple(torch.cat(pair) for pair in zip(self.kept, new, strict=True)) if self.kept else new
        if keys.numel() > self.size:
            best = keys.topk(self.size, largest=False).indices
            keys, kept = keys[best], tuple(row[best.to(row.device)] for row in kept)
        self.keys, self.kept = keys, kept
