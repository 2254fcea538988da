"""Tokenize a source once, into files that every later run shares."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .cache import cache_folder, new_folder, write_errors
from .files import open_regular, read_bytes
from .source import SPLITS, Source, Split
from .tokenizer import Tokenizer

FORMAT = 1
BLOCK = 1 << 14  # bytes of a token file that have a checksum of their own
MOST_UNKNOWN = 0.01  # of the tokens of a split: with more of them text is lost, and its loss means nothing
PIECE = 1 << 18  # characters encoded at once: a long document is cut, so that memory stays bounded
BATCH = 1 << 23  # characters encoded in one call, by all cores, and a shard of what a stopped preparation leaves
# Between these two, GPT-2's pre-tokenizer (and most others) separates anyway: a cut here changes no token.
SAFE_CUT = re.compile(r"(?<=\S)\n(?=\S)")


@dataclass(frozen=True)
class TokenData:
    """The tokens of a source, documents separated by eos.

    `train` and `validation` are 1-d, uint16 (uint32 above 65536 ids). `token_bytes` (one per id) is the UTF-8 length
    of each token, times what makes their sum over the source that of its text. `meta` holds names, fingerprints, and
    documents, tokens and UTF-8 bytes per split. `sha256` is the hash (hex) of the token files; of a mixture it is
    followed by those of its parts.
    """

    train: TokenFile
    validation: TokenFile
    meta: dict[str, Any]
    token_bytes: NDArray[Any]
    sha256: str


class TokenFile:
    """Token ids in a file of the cache, read by `len`, slices and `numpy.asarray`. Each block that is read is compared
    with its checksum. DataError for damage, also for a file that has become shorter, where a memory map would crash the
    process."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path, self.dtype = path, dtype
        with open_regular(path) as file:
            self.handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.handle)
        self.size = os.fstat(self.handle).st_size // dtype.itemsize
        self.sums = np.frombuffer(read_bytes(path.with_suffix(".crc32")), np.uint32)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> NDArray[Any]:
        per_block = BLOCK // self.dtype.itemsize
        start, stop, _ = part.indices(self.size)
        first, last = start // per_block, -(-stop // per_block)
        ids = np.frombuffer(b"".join(map(self.read_block, range(first, last))), self.dtype)
        return ids[start - first * per_block : stop - first * per_block]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype)

    def read_block(self, number: int) -> bytes:
        content = os.pread(self.handle, BLOCK, number * BLOCK)
        if zlib.crc32(content) != self.sums[number]:
            raise DataError(f"{self.path} is damaged at byte {number * BLOCK}: remove its folder, and start again")
        return content


class TokenFiles(TokenFile):
    """The token files of a mixture, one after the other, and the weights by which training draws their windows."""

    def __init__(self, files: list[TokenFile], weights: tuple[float, ...]) -> None:
        self.files, self.weights, self.dtype = files, weights, files[0].dtype
        self.ends = np.cumsum([len(file) for file in files])
        self.size = int(self.ends[-1])

    def __getitem__(self, part: slice) -> NDArray[Any]:
        start, stop, _ = part.indices(self.size)
        places = [(file, int(end) - len(file)) for file, end in zip(self.files, self.ends, strict=True)]
        return np.concatenate([file[max(0, start - first) : max(0, stop - first)] for file, first in places])


def tokenize(
    source: Source,
    tokenizer: Tokenizer,
    cache: Path | None = None,
    *,
    limit: int | None = None,
) -> TokenData:
    """The tokens of `source`, from the cache or written to it.

    limit: tokens of each split; the piece of text that reaches them is the last.
    `cache` defaults to ``$GEONORM_CACHE`` or ``~/.cache/geonorm``. Processes that tokenize the same data at
    the same time all succeed. Raises `DataError` where the source cannot be read, a split holds no text, or the
    cache cannot be written.
    """
    cache = cache or cache_folder()
    if source.parts:
        return mix_tokens(source, [tokenize(part, tokenizer, cache, limit=limit) for part in source.parts], tokenizer)
    parts = [
        source.fingerprint, tokenizer.fingerprint, str(FORMAT), tokenizer.own_end, f"limit {limit}" if limit else None,
    ]  # fmt: skip
    key = hashlib.sha256(" ".join(filter(None, parts)).encode()).hexdigest()
    folder, shards = cache / "tokens" / key, cache / "shards" / key
    if (data := load_tokens(folder, tokenizer)) is None:
        with write_errors(cache):
            if load_tokens(folder, tokenizer) is None:  # damaged, and not made since by another process
                shutil.rmtree(folder, ignore_errors=True)
            with new_folder(folder) as temporary:
                write_tokens(temporary, source, tokenizer, limit or inf, shards)
            shutil.rmtree(shards, ignore_errors=True)
        data = load_tokens(folder, tokenizer)
    if data is None:
        raise DataError(f"cannot read back the token cache {folder}: remove it or set GEONORM_CACHE to another folder")
    return data


def mix_tokens(source: Source, parts: list[TokenData], tokenizer: Tokenizer) -> TokenData:
    """The tokens of the sources of a mixture as those of one."""
    train, validation = ([getattr(part, split) for part in parts] for split in SPLITS)
    sizes = [sum(counts["bytes"] for counts in part.meta["splits"].values()) for part in parts]
    scored = sum(size / part.meta["bytes_scale"] for size, part in zip(sizes, parts, strict=True) if size)
    sums = [part.sha256 for part in parts]
    return TokenData(
        TokenFiles(train, source.weights),
        TokenFiles(validation, source.weights),
        {"source": source.name, "weights": source.weights, "parts": [part.meta for part in parts]},
        tokenizer.token_bytes() * (sum(sizes) / max(1, scored)),
        " ".join([hashlib.sha256(f"{source.weights} {sums}".encode()).hexdigest(), *sums]),
    )


def load_tokens(folder: Path, tokenizer: Tokenizer) -> TokenData | None:
    """Open the token files, or return None where they are missing or do not fit their description."""
    try:
        meta = json.loads(read_bytes(folder / "meta.json"))
        files = [TokenFile(folder / f"{split}.bin", np.dtype(meta["dtype"])) for split in SPLITS]
        if [len(file) for file in files] != [meta["splits"][split]["tokens"] for split in SPLITS]:
            return None
        return TokenData(files[0], files[1], meta, tokenizer.token_bytes() * meta["bytes_scale"], meta["sha256"])
    except (DataError, OSError, ValueError, KeyError, TypeError):
        return None


def write_tokens(folder: Path, source: Source, tokenizer: Tokenizer, limit: float, shards: Path) -> None:
    digest = hashlib.sha256()
    splits = {}
    lengths, scored = tokenizer.token_bytes(), 0
    for split in SPLITS:
        counts, unknown = {"documents": 0, "tokens": 0, "bytes": 0}, 0
        with (folder / f"{split}.bin").open("w+b") as file:
            for ids, ends, size in read_ids(source, tokenizer, split, shards):
                file.write(content := ids.astype(tokenizer.dtype).tobytes())
                digest.update(content)
                counts["documents"] += ends
                counts["tokens"] += len(ids)
                counts["bytes"] += size
                scored += int(lengths[ids].sum())
                unknown += int((ids == tokenizer.unknown).sum())
                if counts["tokens"] >= limit:
                    break
            file.seek(0)
            sums = [zlib.crc32(block) for block in iter(lambda: file.read(BLOCK), b"")]
        np.array(sums, np.uint32).tofile(folder / f"{split}.crc32")
        if counts["tokens"] == 0:
            raise DataError(f"{source.name}: no {split} text: give a larger source or validation text of its own")
        if unknown > MOST_UNKNOWN * counts["tokens"]:
            raise DataError(
                f"tokenizer '{tokenizer.name}' has no text for {unknown / counts['tokens']:.0%} of the {split} tokens "
                f"of {source.name}: give one that knows this text"
            )
        splits[split] = counts
    source.check_unchanged()
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
        "bytes_scale": sum(counts["bytes"] for counts in splits.values()) / max(1, scored),
        "sha256": digest.hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def read_ids(
    source: Source, tokenizer: Tokenizer, split: Split, shards: Path
) -> Iterator[tuple[NDArray[Any], bool, int]]:
    """(ids, whether a document ends, bytes of text) of a split, piece by piece; the ids of a document end in eos."""
    for ids in (ids for span in source.spans.get(split, ()) for ids in span.read()):
        check_ids(source, ids, tokenizer)
        yield ids, False, 0
    for batch in pieces_in_batches(iter(()) if source.spans else source.documents(split)):
        for (text, ends), ids in zip(batch, encode([text for text, _ in batch], tokenizer, shards), strict=True):
            yield np.append(ids, ids.dtype.type(tokenizer.eos)) if ends else ids, ends, len(text.encode())


def encode(texts: list[str], tokenizer: Tokenizer, shards: Path) -> list[NDArray[Any]]:
    """The ids of each text. Those of a full batch are also saved as a shard until the whole source is done, so that a
    preparation that was killed does not encode them again; a shard's name is a hash of its text."""
    content = "\0".join([str([*map(len, texts)]), *texts])
    file = shards / f"{hashlib.sha256(content.encode()).hexdigest()}.npz"
    with suppress(OSError, ValueError, EOFError, BadZipFile), file.open("rb") as opened, np.load(opened) as saved:
        return np.split(saved["ids"], saved["ends"])
    pieces = tokenizer.encode(texts)
    if sum(map(len, texts)) >= BATCH:
        with suppress(OSError):
            shards.mkdir(parents=True, exist_ok=True)
            # a file that is cut short lacks the directory at the end of a zip, and is not read
            np.savez(file, ids=np.concatenate(pieces), ends=np.cumsum([*map(len, pieces)])[:-1])
    return pieces


def check_ids(source: Source, ids: NDArray[Any], tokenizer: Tokenizer) -> None:
    """DataError for ids that a vocabulary does not have."""
    if tokenizer.name != "none":
        raise DataError(f"{source.name} holds token ids, and this model reads text by its tokenizer: give text")
    least, most, size = int(ids.min()), int(ids.max()), tokenizer.vocab_size
    if least < 0 or most >= size:
        raise DataError(
            f"{source.name} holds ids from {least} to {most}: --model.vocab_size {size} has 0 to {size - 1}"
        )


def inspect_source(source: Source) -> dict[str, Any]:
    """Read `source` once and return name, files, sha256, counts of documents, characters and UTF-8 bytes per split, and
    its first 200 characters."""
    splits = {}
    for split in SPLITS:
        counts = np.zeros(3, np.int64)
        for text in source.documents(split):
            counts += (1, len(text), len(text.encode()))
        splits[split] = dict(zip(("documents", "characters", "bytes"), counts.tolist(), strict=True))
    return {
        "name": source.name,
        "files": [str(path) for path in source.files],
        "sha256": source.fingerprint,
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
                end = max((cut.end() for cut in SAFE_CUT.finditer(document, end - PIECE // 4, end)), default=end)
            batch.append((document[start:end], end >= len(document)))
            size += len(batch[-1][0])
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
