"""Batches of token windows as a pure function of (seed, step), and fixed validation windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .objectives import HELD_OUT, NEXT, Objective, Pair

KEPT_EPOCHS = 2  # a batch can straddle two epochs


class Batches:
    """Training batches: which tokens stand in row j of step s depends on the seed and nothing else. The tokens are cut
    into blocks of `context`; row j of step s is sample i = s * batch_size + j, and sample i is the block at place i of
    an endless list: one seeded permutation of all blocks per epoch. Ranks ask for their rows of the one global batch,
    so neither resuming nor another world size reorders data."""

    def __init__(
        self, tokens: NDArray[Any], batch_size: int, context: int, seed: int, objective: Objective = NEXT
    ) -> None:
        """tokens: 1-d, of any integer type. Raises `DataError` where they do not fill one batch."""
        if batch_size < 1 or context < 1 or seed < 0:
            raise DataError(f"batch size {batch_size}, context {context}, seed {seed}: give sizes >= 1 and a seed >= 0")
        self.blocks, self.batch_size, self.seed = count_blocks(tokens, context), batch_size, seed
        self.tokens, self.context, self.objective = tokens, context, objective
        self._permutations: dict[int, NDArray[np.int64]] = {}
        if self.blocks < batch_size:
            raise DataError(
                f"{len(tokens)} tokens give {self.blocks} windows of {context} but a batch "
                f"needs {batch_size}: use more text, a smaller batch or a shorter context"
            )

    def at(self, step: int, rows: slice | range | None = None) -> Pair:
        """(inputs, targets) of a step, int64, shape (batch_size, context); targets one token ahead, or both as the
        objective says.

        `rows` picks rows of the global batch, for example one rank's; the other rows are not read.
        """
        samples, blocks = self.pick(step, rows)
        return self.objective.pairs(cut_windows(self.tokens, blocks, self.context), samples, self.seed)

    def pick(self, step: int, rows: slice | range | None = None) -> tuple[list[int], list[int]]:
        """Numbers of the samples of a step, and of the blocks that they are; `rows` picks some of the global batch."""
        samples = step * self.batch_size + np.arange(self.batch_size)[rows if rows is not None else slice(None)]
        places = ((int(i) // self.blocks, int(i) % self.blocks) for i in samples)
        return [int(i) for i in samples], [int(self._permutation(epoch)[place]) for epoch, place in places]

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._permutations:
            while len(self._permutations) >= KEPT_EPOCHS:
                del self._permutations[min(self._permutations)]
            # sorting raw bits: numpy keeps the stream of a bit generator for ever, that of `permutation` it may change
            bits = np.random.Philox(key=np.array([self.seed, epoch], dtype=np.uint64)).random_raw(self.blocks)
            self._permutations[epoch] = np.argsort(bits, kind="stable")
        return self._permutations[epoch]


def validation_batches(
    tokens: NDArray[Any],
    batch_size: int,
    context: int,
    max_tokens: int | None = None,
    objective: Objective = NEXT,
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
        yield objective.pairs(cut_windows(tokens, numbers, context), numbers, HELD_OUT)


def count_blocks(tokens: NDArray[Any], context: int) -> int:
    return max(0, (len(tokens) - 1) // context)


def cut_windows(tokens: NDArray[Any], blocks: list[int], context: int) -> NDArray[np.int64]:
    """The blocks of those numbers, each with the token behind it: (rows, context + 1)."""
    windows = np.empty((len(blocks), context + 1), dtype=np.int64)
    for row, block in enumerate(blocks):
        windows[row] = tokens[block * context : block * context + context + 1]
    return windows
