"""Batches of token windows as a pure function of (seed, step), fixed validation windows, and what a window asks of a
model: the next token, or those that are masked."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataError
from ...models.decoder import IGNORED
from .tokenizer import Tokenizer
from .tokens import TokenFile, TokenFiles

Pair = tuple[torch.Tensor, torch.Tensor]
Ids = NDArray[Any] | TokenFile
MASKED_SHARE = 0.15
"""Share of the tokens of a window that are to be predicted."""
TURN = 1 << 16
"""Windows of a mixture in a turn: over each turn the share of every text is what its weight says."""
TURN_STREAM = 2**63
"""Number of the random stream for the order within turns. Streams with lower numbers belong to the texts."""
HELD_OUT_SEED = 2**63
"""Seed of the masks of held-out text: no run can have it."""


@dataclass(frozen=True)
class NextToken:
    """Every token is predicted from those before it."""

    accuracy: ClassVar[bool] = False
    """True if accuracy is measured: the share of targets to which the model gives the highest probability."""

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        """(inputs, targets) of windows (rows, context + 1), each int64 (rows, context). Random choices depend on (seed,
        number of the window) alone."""
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

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        ids = windows[:, :-1].copy()
        targets = np.full_like(ids, IGNORED)
        for row, target, number in zip(ids, targets, numbers, strict=True):
            # key: (seed, epoch) is that of `_permute`; no run has this epoch, so masks and order share no random bits
            # raw bits: numpy keeps their stream for ever; the counter gives each window 2^64 blocks of its own
            key, counter = np.array([seed, 2**64 - 1], np.uint64), np.array([0, number, 0, 0], np.uint64)
            bits = np.random.Philox(key=key, counter=counter).random_raw(3 * len(row))
            self.mask_row(row, target, bits.reshape(3, -1))
        return torch.from_numpy(ids), torch.from_numpy(targets)

    def mask_row(self, ids: NDArray[np.int64], targets: NDArray[np.int64], bits: NDArray[np.uint64]) -> None:
        """Masks ids (context,) and fills in targets (context,), in place. bits: random, (3, context): they choose the
        tokens, what is done with each, and what replaces it."""
        order = np.lexsort((bits[0], ids == self.end))  # ends of documents last
        chosen = order[: max(1, round(MASKED_SHARE * len(ids)))]
        targets[chosen] = ids[chosen]
        fate = bits[1, chosen] % np.uint64(10)
        ids[chosen[fate < 8]] = self.mask
        ids[chosen[fate == 8]] = (bits[2, chosen[fate == 8]] % np.uint64(self.vocab_size)).astype(np.int64)


Objective = NextToken | MaskedTokens
"""What turns windows into inputs and targets."""


def pick_objective(name: str, tokenizer: Tokenizer) -> Objective:
    """causal or mlm, with the tokens of a tokenizer. DataError for mlm if it has no mask token."""
    if name != "mlm":
        return NextToken()
    if tokenizer.mask is None:
        raise DataError(f"tokenizer '{tokenizer.name}' has no mask token: masked language modelling needs one")
    return MaskedTokens(tokenizer.mask, tokenizer.eos, tokenizer.vocab_size)


NEXT_TOKEN = NextToken()


class Batches:
    """Training batches: which tokens stand in row j of step s depends on the seed and nothing else. The tokens are cut
    into blocks of `context`; row j of step s is sample i = s * batch_size + j, and sample i is the block at place i of
    an endless list: one seeded permutation of all blocks per epoch. Ranks ask for their rows of the one global batch,
    so neither resuming nor another world size reorders data.

    In a mixture every TURN windows are dealt out to the texts by their weights, in an order that the seed gives; each
    text has an endless list of its own, and takes its next window from it."""

    def __init__(
        self, tokens: Ids, batch_size: int, context: int, seed: int, objective: Objective = NEXT_TOKEN
    ) -> None:
        """tokens: 1-d, of any integer type. Raises `DataError` where they do not fill one batch."""
        self.texts: list[Ids] = [*tokens.files] if isinstance(tokens, TokenFiles) else [tokens]
        self.blocks = [count_blocks(text, context) for text in self.texts]
        self.batch_size, self.seed, self.context, self.objective = batch_size, seed, context, objective
        weights = tokens.weights if isinstance(tokens, TokenFiles) else (1.0,)
        self.borders = np.rint(np.cumsum([0, *weights]) / sum(weights) * TURN).astype(int)
        # a batch can straddle two epochs
        self.permutation = lru_cache(maxsize=2 * len(self.texts))(self._permute)
        self.deal = lru_cache(maxsize=2)(self._deal)
        if sum(self.blocks) < batch_size:
            raise DataError(
                f"{len(tokens)} tokens give {sum(self.blocks)} windows of {context} but a batch "
                f"needs {batch_size}: use more text, a smaller batch or a shorter context"
            )
        if 0 in self.blocks:
            raise DataError(
                f"part {self.blocks.index(0) + 1} of the mixture does not fill one window of {context} tokens"
            )

    def at(self, step: int, rows: slice | range | None = None) -> Pair:
        """(inputs, targets) of a step, int64, shape (batch_size, context); targets one token ahead, or both as the
        objective says.

        `rows` picks rows of the global batch, for example one rank's; the other rows are not read.
        """
        samples = step * self.batch_size + np.arange(self.batch_size)[rows if rows is not None else slice(None)]
        numbers = [int(i) for i in samples]
        return self.objective.pairs(cut_windows(map(self.place, numbers), self.context), numbers, self.seed)

    def place(self, sample: int) -> tuple[Ids, int]:
        """The text of a sample, and which of its blocks it is."""
        turn, place = divmod(sample, TURN)
        texts, ranks = self.deal(turn)
        text = int(texts[place])
        each = int(self.borders[text + 1] - self.borders[text])
        epoch, place = divmod(turn * each + int(ranks[place]), self.blocks[text])
        return self.texts[text], int(self.permutation(epoch, self.blocks[text], text)[place])

    def _deal(self, turn: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The text of each sample of a turn, and how many samples of that text stand before it in the turn."""
        texts = np.searchsorted(self.borders, self._permute(turn, TURN, TURN_STREAM), side="right") - 1
        by_text = np.argsort(texts, kind="stable")
        return texts, np.argsort(by_text) - self.borders[texts]

    def _permute(self, epoch: int, size: int, stream: int) -> NDArray[np.int64]:
        # sorting raw bits: numpy keeps the stream of a bit generator for ever, that of `permutation` it may change
        key, counter = np.array([self.seed, epoch], np.uint64), np.array([0, 0, 0, stream], np.uint64)
        return np.argsort(np.random.Philox(key=key, counter=counter).random_raw(size), kind="stable")


def validation_batches(
    tokens: Ids,
    batch_size: int,
    context: int,
    max_tokens: int | None = None,
    objective: Objective = NEXT_TOKEN,
) -> Iterator[Pair]:
    """(inputs, targets), int64, shape (<= batch_size, context): windows that do not overlap, in order.

    Every call yields the same, a window that is masked the same mask whatever else is read. At most `max_tokens`
    inputs, but at least one window, spread evenly over all the text; the last batch may be smaller.
    """
    blocks = count_blocks(tokens, context)
    if blocks == 0:
        raise DataError(f"{len(tokens)} validation tokens do not fill one window of {context}: use more text")
    count = blocks if max_tokens is None else min(blocks, max(1, max_tokens // context))
    for start in range(0, count, batch_size):
        numbers = [place * blocks // count for place in range(start, min(start + batch_size, count))]
        yield objective.pairs(cut_windows([(tokens, number) for number in numbers], context), numbers, HELD_OUT_SEED)


def count_blocks(tokens: Ids, context: int) -> int:
    return max(0, (len(tokens) - 1) // context)


def cut_windows(blocks: Iterable[tuple[Ids, int]], context: int) -> NDArray[np.int64]:
    """The tokens of blocks, given as (text, number of the block), each with the token after it: (rows, context + 1)."""
    return np.array([text[block * context : block * context + context + 1] for text, block in blocks], np.int64)
