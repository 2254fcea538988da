"""Tokenize a source once, into memory-mapped arrays that every later run shares."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .cache import cache_folder, discard, new_folder, write_errors
from .source import SPLITS, Source, Split
from .tokenizer import Tokenizer

FORMAT = 1
PIECE = 1 << 18  # characters encoded at once: a long document is cut, so that memory stays bounded
BATCH = 1 << 20  # characters encoded in one call
# Between these two, GPT-2's pre-tokenizer (and most others) separates anyway: a cut here changes no token.
SAFE_CUT = re.compile(r"(?<=\S)\n(?=\S)")

Progress = Callable[[Split, int], None]


@dataclass(frozen=True)
class TokenData:
    """The tokens of a source, documents separated by eos.

    `train` and `validation` are read-only maps, 1-d, uint16 (uint32 above 65536 ids). `token_bytes` (int64,
    one per id) is the UTF-8 length of each token. `meta` holds names, fingerprints, and documents, tokens and
    UTF-8 bytes per split. `sha256` is the hash (hex) of the token files.
    """

    train: np.memmap[Any, Any]
    validation: np.memmap[Any, Any]
    meta: dict[str, Any]
    token_bytes: NDArray[np.int64]
    sha256: str


def tokenize(
    source: Source, tokenizer: Tokenizer, cache: Path | None = None, *, progress: Progress = lambda split, tokens: None
) -> TokenData:
    """The tokens of `source`, from the cache or written to it.

    `cache` defaults to ``$GEONORM_CACHE`` or ``~/.cache/geonorm``. Processes that tokenize the same data at
    the same time all succeed. `progress(split, tokens so far)` is called after each chunk. Raises `DataError`
    where the source cannot be read, a split holds no text, or the cache cannot be written.
    """
    cache = cache or cache_folder()
    parts = [source.fingerprint, tokenizer.fingerprint, str(FORMAT), *filter(None, [tokenizer.own_end])]
    key = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    folder = cache / "tokens" / key
    for _ in range(3):  # a second round where another process removed what it took for damaged
        if (data := load_tokens(folder, tokenizer)) is not None:
            return data
        with write_errors(cache):
            if folder.exists():
                discard(folder)
            with new_folder(folder) as temporary:
                write_tokens(temporary, source, tokenizer, progress)
    raise DataError(f"cannot read back the token cache {folder}: remove it or set GEONORM_CACHE to another folder")


def load_tokens(folder: Path, tokenizer: Tokenizer) -> TokenData | None:
    """Map the token files, or return None where they are missing, have changed or do not fit their description."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        dtype = np.dtype(meta["dtype"])
        train, validation = (np.memmap(folder / f"{split}.bin", dtype=dtype, mode="r") for split in SPLITS)
        if [len(train), len(validation)] != [meta["splits"][split]["tokens"] for split in SPLITS]:
            return None
        if not is_unchanged(folder, meta["sha256"]):
            return None
        return TokenData(train, validation, meta, tokenizer.token_bytes(), meta["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_unchanged(folder: Path, sha256: str) -> bool:
    """Whether the token files are as they were when their description, which is written last, was. Those that are newer
    are hashed, once: in a folder that was copied they may be."""
    meta, files = folder / "meta.json", [folder / f"{split}.bin" for split in SPLITS]
    if all(file.stat().st_mtime_ns <= meta.stat().st_mtime_ns for file in files):
        return True
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    if digest.hexdigest() != sha256:
        return False
    with suppress(OSError):  # a cache that is only read
        os.utime(meta)
    return True


def write_tokens(folder: Path, source: Source, tokenizer: Tokenizer, progress: Progress) -> None:
    digest = hashlib.sha256()
    splits = {}
    for split in SPLITS:
        counts = {"documents": 0, "tokens": 0, "bytes": 0}
        with (folder / f"{split}.bin").open("wb") as file:
            for batch in pieces_in_batches(source.documents(split)):
                for (text, ends), ids in zip(batch, tokenizer.encode([text for text, _ in batch]), strict=True):
                    data = np.append(ids, ids.dtype.type(tokenizer.eos)) if ends else ids
                    file.write(content := data.tobytes())
                    digest.update(content)
                    counts["documents"] += ends
                    counts["tokens"] += len(data)
                    counts["bytes"] += len(text.encode())
                progress(split, counts["tokens"])
        if counts["documents"] == 0:
            raise DataError(f"{source.name}: no {split} text: give a larger source or validation text of its own")
        splits[split] = counts
    meta = {
        "format": FORMAT,
        "source": source.name,
        "source_sha256": source.fingerprint,
        "tokenizer": tokenizer.name,
        "tokenizer_sha256": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "dtype": np.dtype(tokenizer.dtype).str,
        "splits": splits,
        "sha256": digest.hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def inspect_source(source: Source, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Read `source` once and return name, files, what of its folder is left out (where something is), sha256, counts
    per split and its first 200 characters.

    Counts are documents, characters and UTF-8 bytes; with a tokenizer also tokens (each document's eos
    included) and bytes per token. Nothing is written.
    """
    splits = {}
    for split in SPLITS:
        counts: dict[str, Any] = {"documents": 0, "characters": 0, "bytes": 0}
        tokens = 0
        for batch in pieces_in_batches(source.documents(split)):
            texts = [text for text, _ in batch]
            counts["documents"] += sum(ends for _, ends in batch)
            counts["characters"] += sum(map(len, texts))
            counts["bytes"] += sum(len(text.encode()) for text in texts)
            if tokenizer is not None:
                tokens += sum(map(len, tokenizer.encode(texts)))
        if tokenizer is not None:
            tokens += counts["documents"]
            counts |= {"tokens": tokens, "bytes_per_token": counts["bytes"] / tokens if tokens else None}
        splits[split] = counts
    return {
        "name": source.name,
        "files": [str(path) for path in source.files],
        **({"left_out": [str(path) for path in source.left_out]} if source.left_out else {}),
        "sha256": source.fingerprint,
        **({"tokenizer": tokenizer.name, "tokenizer_sha256": tokenizer.fingerprint} if tokenizer else {}),
        "splits": splits,
        "sample": next(source.documents("train"))[:200],
    }


def pieces_in_batches(documents: Iterator[str]) -> Iterator[list[tuple[str, bool]]]:
    """Group pieces of documents, each with whether it ends its document, to about `BATCH` characters."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for document in documents:
        start = end = 0
        while end < len(document):
            start, end = end, end + PIECE
            if end < len(document):
                cuts = [match.end() for match in SAFE_CUT.finditer(document, end - PIECE // 4, end)]
                end = cuts[-1] if cuts else end
            batch.append((document[start:end], end >= len(document)))
            size += len(batch[-1][0])
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
