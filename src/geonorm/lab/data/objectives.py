"""What a window of tokens asks of a model: the next token, or those that are masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataError
from ...models.trunk import IGNORED
from .tokenizer import Tokenizer

Pair = tuple[torch.Tensor, torch.Tensor]
SHARE = 0.15
"""Of the tokens of a window, those that are to be predicted."""
HELD_OUT = 2**63
"""Seed of the masks of held-out text: none that a run can have."""
MASKS = 2**64 - 1
"""Second half of the key of the masks' random bits; that of the order of a text is an epoch."""


class Objective(Protocol):
    """Turns windows into inputs and targets. It draws nothing but from (seed, number of the window)."""

    accuracy: ClassVar[bool]
    """Whether the share of targets that are the likeliest is measured."""

    def about(self, windows: NDArray[np.int64], numbers: list[int]) -> torch.Tensor:
        """Of values of the tokens of held-out windows (rows, context + 1): those of what each target is about."""

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        """(inputs, targets) of windows (rows, context + 1): int64 (rows, context)."""


@dataclass(frozen=True)
class NextToken:
    """Every token is predicted from those before it."""

    accuracy: ClassVar[bool] = False

    def about(self, windows: NDArray[np.int64], numbers: list[int]) -> torch.Tensor:
        return torch.from_numpy(windows)[:, 1:]

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        data = torch.from_numpy(windows)
        return data[:, :-1].contiguous(), data[:, 1:].contiguous()


@dataclass(frozen=True)
class MaskedTokens:
    """Masked language modelling (Devlin et al. 2018, arXiv:1810.04805, section 3.1): 15 % of the tokens of a window are
    to be predicted; of these, each for itself, 80 % are replaced by the mask token, 10 % by any token of the
    vocabulary, 10 % stay. Other targets are IGNORED.

    As in the official code, their number is the same in every window, so that a mean over rows, ranks or micro-batches
    is the mean over predicted tokens. The end of a document is asked for only where a window has too little else.
    """

    mask: int
    end: int
    vocab_size: int
    accuracy: ClassVar[bool] = True

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> MaskedTokens:
        """With the tokens of a tokenizer. DataError if it has no mask token."""
        if tokenizer.mask is None:
            raise DataError(f"tokenizer '{tokenizer.name}' has no mask token: masked language modelling needs one")
        return cls(tokenizer.mask, tokenizer.eos, tokenizer.vocab_size)

    def about(self, windows: NDArray[np.int64], numbers: list[int]) -> torch.Tensor:
        return torch.from_numpy(windows)[:, :-1]

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        ids = windows[:, :-1].copy()
        targets = np.full_like(ids, IGNORED)
        for row, target, number in zip(ids, targets, numbers, strict=True):
            self.mask_row(row, target, draw(seed, number, 3 * len(row)).reshape(3, -1))
        return torch.from_numpy(ids), torch.from_numpy(targets)

    def mask_row(self, ids: NDArray[np.int64], targets: NDArray[np.int64], bits: NDArray[np.uint64]) -> None:
        """Masks ids (context,) and fills in targets (context,), in place. bits: random ones (3, context): which tokens,
        what becomes of them, what replaces them."""
        order = np.lexsort((bits[0], ids == self.end))  # ends of documents last
        chosen = order[: max(1, round(SHARE * len(ids)))]
        targets[chosen] = ids[chosen]
        fate = bits[1, chosen] % np.uint64(10)
        ids[chosen[fate < 8]] = self.mask
        ids[chosen[fate == 8]] = (bits[2, chosen[fate == 8]] % np.uint64(self.vocab_size)).astype(np.int64)


def draw(seed: int, number: int, count: int) -> NDArray[np.uint64]:
    """Random bits of a window."""
    # raw bits, whose stream numpy keeps for ever; the counter gives each window 2^64 blocks of its own
    source = np.random.Philox(key=np.array([seed, MASKS], np.uint64), counter=np.array([0, number, 0, 0], np.uint64))
    return source.random_raw(count)


def pick_objective(name: str, tokenizer: Tokenizer) -> Objective:
    """causal or mlm, with the tokens of a tokenizer."""
    return MaskedTokens.of(tokenizer) if name == "mlm" else NextToken()


@dataclass(frozen=True)
class About:
    """In the place of inputs and of targets: the values, such as numbers of documents, of what targets are about."""

    objective: Objective
    accuracy: ClassVar[bool] = False

    def about(self, windows: NDArray[np.int64], numbers: list[int]) -> torch.Tensor:
        return self.objective.about(windows, numbers)

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        found = self.about(windows, numbers)
        return found, found


NEXT = NextToken()
