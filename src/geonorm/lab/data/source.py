"""What a source of text is once it is open: a name, a hash of its content, and documents of two splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...errors import DataError

Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
Documents = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Source:
    """Text with a train and a validation split.

    `fingerprint` is the SHA-256 (hex) of the content and of everything that decides the split; `files` are
    the local files read, empty for a dataset from the Hub.
    """

    name: str
    fingerprint: str
    files: tuple[Path, ...]
    splits: Mapping[Split, Documents] = field(repr=False, compare=False)

    def documents(self, split: Split) -> Iterator[str]:
        """Return a fresh lazy iterator over the documents (non-empty strings) of a split."""
        if split not in SPLITS:
            raise DataError(f"no split '{split}': choose train or validation")
        return self.splits[split]()


NO_TEXT = Source("no text", "", (), {})
"""In the place of a source for a tokenizer that is read from a file: a run needs nothing but its directory."""
