"""Describe a source in numbers, for ``geonorm data inspect``."""

from __future__ import annotations

from typing import Any

from .source import SPLITS, Source, Split
from .tokenizer import Tokenizer
from .tokens import pieces_in_batches

SAMPLE_CHARACTERS = 200


def describe(source: Source, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Read `source` once and return name, files, sha256, counts per split and its first 200 characters.

    Counts are documents, characters and UTF-8 bytes; with a tokenizer also tokens (each document's eos
    included) and bytes per token. Nothing is written.
    """
    return {
        "name": source.name,
        "files": [str(path) for path in source.files],
        "sha256": source.fingerprint,
        **({"tokenizer": tokenizer.name, "tokenizer_sha256": tokenizer.fingerprint} if tokenizer else {}),
        "splits": {split: _counts(source, split, tokenizer) for split in SPLITS},
        "sample": next(source.documents("train"))[:SAMPLE_CHARACTERS],
    }


def _counts(source: Source, split: Split, tokenizer: Tokenizer | None) -> dict[str, Any]:
    counts = {"documents": 0, "characters": 0, "bytes": 0}
    tokens = 0
    for batch in pieces_in_batches(source.documents(split)):
        texts = [text for text, _ in batch]
        counts["documents"] += sum(ends for _, ends in batch)
        counts["characters"] += sum(map(len, texts))
        counts["bytes"] += sum(len(text.encode()) for text in texts)
        if tokenizer is not None:
            tokens += sum(map(len, tokenizer.encode(texts)))
    if tokenizer is None:
        return counts
    tokens += counts["documents"]
    return {**counts, "tokens": tokens, "bytes_per_token": counts["bytes"] / tokens}
