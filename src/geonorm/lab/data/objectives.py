"""What a window of tokens asks of a model: the next token, those that are masked, or spans that are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataError
from ...nn.trunk import IGNORED
from .tokenizer import SENTINEL, Tokenizer

Pair = tuple[torch.Tensor, torch.Tensor]
SHARE = 0.15
"""Of the tokens of a window, those that are to be predicted."""
SPAN = 3
"""Mean length of a span that is missing."""
HELD_OUT = 2**63
"""Seed of the masks of held-out text: none that a run can have."""
MASKS = 2**64 - 1
"""Second half of the key of the masks' random bits; that of the order of a text is an epoch."""


class Objective(Protocol):
    """Turns windows into inputs and targets. It draws nothing but from (seed, number of the window)."""

    accuracy: ClassVar[bool]
    """Whether the share of targets that are the likeliest is measured."""
    spans: ClassVar[bool]
    """Whether that and the loss are measured of the targets that are text, too."""

    def about(self, windows: NDArray[np.int64], numbers: list[int]) -> torch.Tensor:
        """Of values of the tokens of held-out windows (rows, context + 1): those of what each target is about."""

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        """(inputs, targets) of windows (rows, context + 1): int64 (rows, context), or as the objective says."""


@dataclass(frozen=True)
class NextToken:
    """Every token is predicted from those before it."""

    accuracy: ClassVar[bool] = False
    spans: ClassVar[bool] = False

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
    spans: ClassVar[bool] = False

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


@dataclass(frozen=True)
class SpanCorruption:
    """Span denoising (Raffel et al. 2019, arXiv:1910.10683, section 3.1.4): 15 % of the tokens of a window are missing,
    in spans of 3 on average. The source is the window with a sentinel in the place of each span, the answer sentinel
    and span in turn; both close with the end token. As in T5's official code, all windows have as many missing tokens
    and as many spans, each way to part them is as likely as any other, and a window begins with what is left and ends
    with a span.

    Inputs are the source, then what the decoder reads: the end token, then the answer but for its last. Targets are the
    answer. With n tokens, m missing, s spans: (rows, n - m + s + 1 + m + s + 1) and (rows, m + s + 1).
    """

    sentinels: tuple[int, ...]
    end: int
    accuracy: ClassVar[bool] = True
    spans: ClassVar[bool] = True

    @classmethod
    def of(cls, tokenizer: Tokenizer, context: int) -> SpanCorruption:
        """With the tokens of a tokenizer. DataError if it has fewer sentinels than windows of `context` have spans."""
        _, spans = count_spans(context)
        if len(tokenizer.sentinels) < spans:
            raise DataError(
                f"tokenizer '{tokenizer.name}' has {len(tokenizer.sentinels)} sentinels ({SENTINEL.format(0)}, ...): "
                f"windows of {context} tokens need {spans}"
            )
        return cls(tokenizer.sentinels[:spans], tokenizer.eos)

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        marks, end = np.array(self.sentinels), np.array([self.end])
        inputs, targets = [], []
        for row, number in zip(windows[:, :-1], numbers, strict=True):
            source, answer = self.places(len(row), number, seed)
            # a place below 0 is a sentinel, -1 the first
            joined = [np.where(at < 0, marks[-1 - at.clip(max=-1)], row[at]) for at in (source, answer)]
            inputs.append(np.concatenate((joined[0], end, end, joined[1])))
            targets.append(np.concatenate((joined[1], end)))
        return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))

    def about(self, windows: NDArray[np.int64], numbers: list[int]) -> torch.Tensor:
        """A sentinel is about the token behind it, the end about the last."""
        found = []
        for row, number in zip(windows[:, :-1], numbers, strict=True):
            _, answer = self.places(len(row), number, HELD_OUT)
            real = np.where(answer < 0, np.roll(answer, -1), answer)
            found.append(row[np.append(real, real[-1])])
        return torch.from_numpy(np.stack(found))

    @staticmethod
    def places(context: int, number: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What source and answer of a window hold, in order: places of tokens, and -1, -2, ... for the sentinels."""
        missing, spans = count_spans(context)
        bits = draw(seed, number, context)
        lengths = part(missing, spans, bits[:missing]), part(context - missing, spans, bits[missing:])
        source, answer, at = list[int](), list[int](), 0
        for span, (gone, kept) in enumerate(zip(*lengths, strict=True)):
            source += [*range(at, at + kept), -1 - span]
            answer += [-1 - span, *range(at + kept, at + kept + gone)]
            at += kept + gone
        return np.array(source), np.array(answer)


def count_spans(context: int) -> tuple[int, int]:
    """Missing tokens and spans of a window. DataError where it is too short for both to be there."""
    missing = max(1, round(SHARE * context))
    if missing >= context:
        raise DataError(f"a window of {context} tokens is too short to leave a part out: --model.context 2 or more")
    return missing, max(1, min(round(missing / SPAN), context - missing))


def span_lengths(context: int) -> tuple[int, int]:
    """Tokens of source and answer of a window, the end token of each included."""
    missing, spans = count_spans(context)
    return context - missing + spans + 1, missing + spans + 1


def part(total: int, parts: int, bits: NDArray[np.uint64]) -> list[int]:
    """Lengths of at least 1 that sum to `total`: of all ways to do so one, each as likely. bits: `total` of them."""
    borders = np.sort(np.argsort(bits[: total - 1], kind="stable")[: parts - 1]) + 1
    return [int(length) for length in np.diff([0, *borders, total])]


def draw(seed: int, number: int, count: int) -> NDArray[np.uint64]:
    """Random bits of a window."""
    # raw bits, whose stream numpy keeps for ever; the counter gives each window 2^64 blocks of its own
    source = np.random.Philox(key=np.array([seed, MASKS], np.uint64), counter=np.array([0, number, 0, 0], np.uint64))
    return source.random_raw(count)


def pick_objective(name: str, tokenizer: Tokenizer, context: int = 0) -> Objective:
    """causal, mlm or, for windows of `context`, denoise, with the tokens of a tokenizer."""
    if name == "denoise":
        return SpanCorruption.of(tokenizer, context)
    return MaskedTokens.of(tokenizer) if name == "mlm" else NextToken()


@dataclass(frozen=True)
class About:
    """In the place of inputs and of targets: the values, such as numbers of documents, of what targets are about."""

    objective: Objective
    accuracy: ClassVar[bool] = False
    spans: ClassVar[bool] = False

    def about(self, windows: NDArray[np.int64], numbers: list[int]) -> torch.Tensor:
        return self.objective.about(windows, numbers)

    def pairs(self, windows: NDArray[np.int64], numbers: list[int], seed: int) -> Pair:
        found = self.about(windows, numbers)
        return found, found


NEXT = NextToken()
