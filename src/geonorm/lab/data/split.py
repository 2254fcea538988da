"""Holding out validation text where the source does not come with a validation split.

Several documents: by document, chosen by a hash of its text, so that neither order nor file names matter and
equal documents land on the same side. One document (or one text file): its contiguous tail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Literal

from ...errors import DataError

Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
TRAIN_NAMES = ("train", "training")
HELD_OUT_NAMES = ("validation", "valid", "val", "dev", "test")
"""What a part to validate on may be called: of several in one folder, the first of these is meant."""
Documents = Callable[[], Iterator[str]]
HASH_RANGE = 1 << 64


def hold_out(name: str, documents: Documents, fraction: float, *, one_text: bool) -> dict[Split, Documents]:
    """Split `documents` into train and validation; `one_text`: they are the pieces of one text, in order.

    Both splits are lazy; the first use of either reads all documents once, to make sure that neither will be
    empty.
    """

    @cache
    def place() -> tuple[bool, int]:
        """Whether it is one text, and the character at which its tail begins; else the hash below which a document is
        held out: at least one document, and never all."""
        count, characters, smallest, largest = 0, 0, HASH_RANGE, -1
        for text in documents():
            value = hash_of(text.encode())
            count, characters = count + 1, characters + len(text)
            smallest, largest = min(smallest, value), max(largest, value)
        if count == 0:
            raise DataError(f"{name}: no text in it: give a source with at least one document")
        if one_text or count == 1:
            tail = max(round(fraction * characters), min(256, characters // 2))
            if tail == 0:
                raise DataError(f"{name}: too short to hold out validation text: give a longer text")
            return True, max(characters - tail, 1)
        if smallest == largest:
            raise DataError(f"{name}: all {count} documents are equal: give validation text of its own")
        return False, border_of(fraction, smallest, largest)

    def part(split: Split) -> Iterator[str]:
        whole, start = place()
        return cut_text(documents(), start, split) if whole else pick_documents(documents(), start, split)

    return {split: partial(part, split) for split in SPLITS}


def hold_out_stream(documents: Documents, fraction: float) -> dict[Split, Documents]:
    """Like `hold_out` by document, without the reading in advance: for sources that come over the network."""

    def part(split: Split) -> Iterator[str]:
        return pick_documents(documents(), int(fraction * HASH_RANGE), split)

    return {split: partial(part, split) for split in SPLITS}


def hash_of(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def border_of(fraction: float, smallest: int, largest: int) -> int:
    """The hash below which an item is held out: of items with hashes between these two at least one, never all."""
    return min(max(int(fraction * HASH_RANGE), smallest + 1), largest)


def pick_documents(documents: Iterator[str], threshold: int, split: Split) -> Iterator[str]:
    return (text for text in documents if (hash_of(text.encode()) < threshold) == (split == "validation"))


def cut_text(pieces: Iterator[str], start: int, split: Split) -> Iterator[str]:
    """What lies before (train) or after (validation) character `start`, or a line break near it."""
    offset = 0
    for piece in pieces:
        cut = start - offset
        offset += len(piece)
        if 0 < cut < len(piece):
            line = piece.rfind("\n", max(cut - 4096, cut // 2), cut)
            cut = line + 1 if line >= 0 else cut
            yield piece[:cut] if split == "train" else piece[cut:]
        elif (cut > 0) == (split == "train"):
            yield piece
