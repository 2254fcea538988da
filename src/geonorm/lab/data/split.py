"""Holding out validation text where the source does not come with a validation split.

Several documents: by document, chosen by a hash of its text, so that neither order nor file names matter and
equal documents land on the same side. One document (or one text file): its contiguous tail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ...errors import DataError
from .source import Documents, Split

HASH_RANGE = 1 << 64


@dataclass(frozen=True)
class _Survey:
    documents: int
    characters: int
    smallest: int  # of the document hashes
    largest: int


def hold_out(name: str, documents: Documents, fraction: float, *, one_text: bool) -> dict[Split, Documents]:
    """Split `documents` into train and validation; `one_text`: they are the pieces of one text, in order.

    Both splits are lazy; the first use of either reads all documents once, to make sure that neither will be
    empty.
    """

    @cache
    def survey() -> _Survey:
        return _survey(name, documents())

    def part(split: Split) -> Iterator[str]:
        facts = survey()
        if one_text or facts.documents == 1:
            return _cut(documents(), _tail_start(name, facts.characters, fraction), split)
        threshold = _threshold(name, facts, fraction)
        return (text for text in documents() if (_text_hash(text) < threshold) == (split == "validation"))

    return {"train": lambda: part("train"), "validation": lambda: part("validation")}


def hold_out_stream(documents: Documents, fraction: float) -> dict[Split, Documents]:
    """Like `hold_out` by document, without the reading in advance: for sources that come over the network."""
    threshold = int(fraction * HASH_RANGE)

    def part(split: Split) -> Iterator[str]:
        return (text for text in documents() if (_text_hash(text) < threshold) == (split == "validation"))

    return {"train": lambda: part("train"), "validation": lambda: part("validation")}


def _text_hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _survey(name: str, documents: Iterator[str]) -> _Survey:
    count, characters, smallest, largest = 0, 0, HASH_RANGE, -1
    for text in documents:
        value = _text_hash(text)
        count, characters = count + 1, characters + len(text)
        smallest, largest = min(smallest, value), max(largest, value)
    if count == 0:
        raise DataError(f"{name}: no text in it: give a source with at least one document")
    return _Survey(count, characters, smallest, largest)


def _threshold(name: str, facts: _Survey, fraction: float) -> int:
    """Return the hash below which a document is held out: at least one document, and never all."""
    if facts.smallest == facts.largest:
        raise DataError(f"{name}: all {facts.documents} documents are equal: give validation text of its own")
    return min(max(int(fraction * HASH_RANGE), facts.smallest + 1), facts.largest)


def _tail_start(name: str, characters: int, fraction: float) -> int:
    tail = max(round(fraction * characters), min(256, characters // 2))
    if tail == 0:
        raise DataError(f"{name}: too short to hold out validation text: give a longer text")
    return max(characters - tail, 1)


def _cut(pieces: Iterator[str], start: int, split: Split) -> Iterator[str]:
    """Yield what lies before (train) or after (validation) character `start`, or a line break near it."""
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
