"""Where text comes from: a string names a `Source`, which streams train and validation documents.

Validation text is held out where a source has none. Of many documents: those with a low hash of their text, so that
neither order nor file names matter and equal documents land on the same side. Of few, and of one text: the end of each.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from ...errors import DataError, cause, import_extra, nearest
from . import stdlib
from .files import (
    DATA_SUFFIXES,
    READABLE,
    STRINGS,
    format_of,
    is_in_folder,
    read_documents,
    read_texts,
    sha256_of,
    suffix_of,
    text_field,
)
from .ids import TOKEN_SUFFIXES, Span, token_span

Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
TRAIN_NAMES = ("train", "training")
HELD_OUT_NAMES = ("validation", "valid", "val", "dev", "test")
"""Names of validation parts: of several in one folder, the first of this list is used."""
HELD_OUT_SHARE = 0.05
"""Share of a source that is held out where it has no validation part."""
MOST_HELD_OUT = 0.2
"""Where holding out whole documents would take a larger share than this, or none, the end of each is held out."""
HASH_RANGE = 1 << 64
Documents = Callable[[], Iterator[str]]
FORMAT = 1  # of the fingerprint: raise it whenever the same files would give other documents or splits
WEIGHT = re.compile(r"(?!0*\.?0*$)\d{1,9}(\.\d{1,9})?")
HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*(:[\w.-]+)?")


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
    own_split: bool = True
    """True if it came with validation text; else validation text was held out of its own text."""
    sums: tuple[str, ...] = ()
    """SHA-256 of each file when it was opened."""
    spans: Mapping[Split, tuple[Span, ...]] = field(default_factory=dict, repr=False, compare=False)
    """Where the ids of a split lie, for a source of token ids in place of text."""
    parts: tuple[Source, ...] = ()
    """The sources of a mixture."""
    weights: tuple[float, ...] = ()
    """How often a window of a part is drawn, compared with those of the others."""

    def documents(self, split: Split) -> Iterator[str]:
        """A fresh lazy iterator over the documents (non-empty strings) of a split. DataError for token ids."""
        if self.spans:
            raise DataError(f"{self.name} holds token ids and no text: only training and evaluation can read it")
        return self.splits[split]()

    def check_unchanged(self) -> None:
        """DataError for a file that is not what it was when the source was opened."""
        for path, sha256 in zip(self.files, self.sums, strict=True):
            if sha256_of(path) != sha256:
                raise DataError(f"{path} has changed while it was read: start again when it is complete")


NO_TEXT = Source("no text", "", (), {})
"""Stands for a source where a tokenizer is read from a run's own file, which needs no text."""


class LocalFiles(NamedTuple):
    """The files of a local source; no validation files means that validation text has to be held out."""

    name: str
    train: tuple[Path, ...]
    validation: tuple[Path, ...] = ()


def open_source(spec: str, field: str | None = None) -> Source:
    """Open ``stdlib``, a file, a folder, a corpus of ``$GEONORM_DATA``, a Hub name ``owner/name[:config]``, or a
    mixture of these, ``3*novels.txt + latex``. field: where records have their text, if not in ``text``.

    A source without a validation split has 5 % of it held out. Raises `DataError` where the source does not exist,
    holds no text, its first document cannot be read, or a validation file has the content of a training file.

    >>> source = open_source("stdlib")
    >>> source.own_split, len(next(source.documents("validation"))) > 1000
    (True, True)
    """
    if " + " in spec and not os.path.exists(spec):
        return mix_sources(spec, field)
    parts = find_local(spec)
    if parts is None:
        return open_hub(spec, field)
    if any(suffix_of(path) in TOKEN_SUFFIXES for path in parts.train):
        return open_ids(parts)
    splits: dict[Split, Documents] = {"train": partial(read_all, parts.train, field)}
    if next(splits["train"](), None) is None:
        raise DataError(
            f"{parts.train[0] if len(parts.train) == 1 else parts.name}: empty: give a file with text in it"
        )
    splits["validation"] = partial(read_all, parts.validation, field)
    sums = hash_files(parts)
    kinds = [*("train" for _ in parts.train), *("validation" for _ in parts.validation)]
    files = parts.train + parts.validation
    lines = [f"geonorm source {FORMAT}", *([f"field {field}"] if field else [])]
    lines += [f"{kind} {format_of(path)} {sha256}" for kind, path, sha256 in zip(kinds, files, sums, strict=True)]
    if not parts.validation:
        one_text = len(parts.train) == 1 and format_of(parts.train[0]) == "text"
        lines.append(f"held out {HELD_OUT_SHARE!r}{'' if one_text else ' or ends'}")
        splits = hold_out(splits["train"], HELD_OUT_SHARE, one_text=one_text)
    fingerprint = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Source(parts.name, fingerprint, files, splits, bool(parts.validation), sums)


def hash_files(parts: LocalFiles) -> tuple[str, ...]:
    """SHA-256 of every file. DataError where one to validate on has the content of one to train on."""
    sums = tuple(map(sha256_of, parts.train + parts.validation))
    known = dict(zip(sums, parts.train, strict=False))
    for path, sha256 in zip(parts.validation, sums[len(parts.train) :], strict=True):
        if sha256 in known and path.stat().st_size:
            raise DataError(f"{path}: its content is that of {known[sha256]}, training text: take one of them out")
    return sums


def open_ids(parts: LocalFiles) -> Source:
    """Token ids of local files, in order; without validation files the last 5 % of them are held out."""
    train, held_out = ([token_span(path) for path in files] for files in (parts.train, parts.validation))
    if not held_out:  # there is one file: of a folder only parts by name are read
        border = train[0].stop - max(1, round(HELD_OUT_SHARE * train[0].stop))
        train, held_out = [replace(train[0], stop=border)], [replace(train[0], start=border)]
    sums = hash_files(parts)
    identity = "\n".join(["geonorm ids 2", str(len(parts.train)), *(str(span.dtype) for span in train), *sums])
    spans: dict[Split, tuple[Span, ...]] = {"train": tuple(train), "validation": tuple(held_out)}
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    return Source(parts.name, fingerprint, parts.train + parts.validation, {}, bool(parts.validation), sums, spans)


def mix_sources(spec: str, field: str | None) -> Source:
    """Several sources as one: in training windows of each are drawn by its weight."""
    words = [word.strip().rpartition("*")[::2] for word in spec.split(" + ")]
    if bad := [weight for weight, _ in words if not WEIGHT.fullmatch(weight or "1")]:
        raise DataError(f"{bad[0]!r} is no weight of a mixture, which is written 3*novels.txt + latex.txt")
    parts = tuple(open_source(name, field) for _, name in words)
    if len({bool(part.spans) for part in parts}) > 1:
        raise DataError(f"{spec}: text beside token ids: one source holds one of the two")
    weights = tuple(float(weight or 1) for weight, _ in words)
    identity = f"geonorm mixture 1 {weights} {[part.fingerprint for part in parts]}"
    files = tuple(chain.from_iterable(part.files for part in parts))
    sums = tuple(chain.from_iterable(part.sums for part in parts))
    check_shared_files(parts)

    def read(split: Split) -> Iterator[str]:
        return chain.from_iterable(part.documents(split) for part in parts)

    return Source(
        spec, hashlib.sha256(identity.encode()).hexdigest(), files,
        {split: partial(read, split) for split in SPLITS}, all(part.own_split for part in parts), sums,
        parts[0].spans, parts, weights,
    )  # fmt: skip


def check_shared_files(parts: Sequence[Source]) -> None:
    """DataError if two sources of a mixture share a file: one might train on what the other holds out."""
    sources = Counter(chain.from_iterable(set(part.sums) for part in parts))
    for part in parts:
        for file, sha256 in zip(part.files, part.sums, strict=False):
            if sources[sha256] > 1 and file.stat().st_size:
                raise DataError(f"{file} is in two sources of the mixture: name it once")


def read_all(files: tuple[Path, ...], field: str | None) -> Iterator[str]:
    return chain.from_iterable(read_documents(path, field) for path in files)


def corpora() -> dict[str, Path]:
    """Map each corpus name in ``$GEONORM_DATA`` to its folder or file; empty where that is not set."""
    root = os.environ.get("GEONORM_DATA")
    if not root or not os.path.isdir(root):
        return {}
    texts = {path.stem: path for path in sorted(Path(root).rglob("*.txt"), reverse=True)}
    folders = {path.name: path for path in sorted(Path(root).iterdir()) if path.is_dir() and split_folder(path)}
    return {**texts, **folders}


def find_local(spec: str) -> LocalFiles | None:
    """The local files that a name stands for; None where it can only be a dataset on the Hub."""
    if not spec or "\0" in spec:
        raise DataError("the data source is empty: give stdlib, a file, a folder or a corpus name")
    if spec == "stdlib":
        modules = stdlib.find_modules()
        train = tuple(path for module, path in modules.items() if module not in stdlib.VALIDATION)
        validation = tuple(path for module, path in modules.items() if module in stdlib.VALIDATION)
        return LocalFiles("stdlib", train, validation)
    path = Path(os.path.expanduser(spec))
    if not os.path.exists(path):
        known = corpora()
        if spec not in known:
            if HUB_NAME.fullmatch(spec) and suffix_of(path) not in READABLE and not path.parent.is_dir():
                return None
            valid = ["stdlib", *known, *map(str, path.parent.glob("*"))]
            hint = nearest(spec, valid) or f"known corpora: {', '.join(['stdlib', *known])}"
            raise DataError(f"no file, folder or corpus '{spec}': {hint} ($GEONORM_DATA names the folder with corpora)")
        path = known[spec]
    name = Path(os.path.abspath(path)).name
    if not path.is_dir():
        return LocalFiles(name.split(".")[0] or name, (path,))
    if not (split := split_folder(path)):
        return LocalFiles(name, files_at(path))
    train, validation = (tuple(chain.from_iterable(map(files_at, split[part]))) for part in SPLITS)
    return LocalFiles(name, train, validation)


def split_folder(folder: Path) -> dict[Split, list[Path]]:
    """The training and validation parts of a folder, or of its subfolder ``data``, where datasets of the Hub have their
    shards. Empty where there are none."""
    below = folder / "data"
    return split_by_name(folder) or (split_by_name(below) if below.is_dir() else {})


def split_by_name(folder: Path) -> dict[Split, list[Path]]:
    """The parts of a folder: the entries with one of `TRAIN_NAMES` and with one of `HELD_OUT_NAMES` as a word of their
    names, as in ``train-00000-of-00002.parquet`` and ``TinyStories_valid.txt``. Empty unless it has both."""
    named: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        # a program's train.py and test.py are no parts
        if path.is_dir() or is_in_folder(path, (*DATA_SUFFIXES, *TOKEN_SUFFIXES)):
            words = re.split("[._-]", path.name.lower())
            part = next((name for name in (*TRAIN_NAMES, *HELD_OUT_NAMES) if name in words), "")
            named.setdefault(part, []).append(path)
    train, held_out = (
        next((named[name] for name in names if name in named), []) for names in (TRAIN_NAMES, HELD_OUT_NAMES)
    )
    return {"train": train, "validation": held_out} if train and held_out else {}


def files_at(path: Path) -> tuple[Path, ...]:
    """The file itself, or all readable files below a folder, sorted; hidden ones and linked folders are left out."""
    if not path.is_dir():
        return (path,)
    files = tuple(
        file
        for file in sorted(Path(place, name) for place, _, names in os.walk(path) for name in names)
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
        and file.is_file()
        and is_in_folder(file, READABLE)
    )
    if not files:
        raise DataError(
            f"{path}: no text, JSON, CSV, Parquet or Arrow files below this folder (shards of MosaicML Streaming and "
            "LitData are not read): give another folder or a file"
        )
    return files


def open_hub(spec: str, named: str | None = None) -> Source:
    """Open a dataset of the Hugging Face Hub, streamed, at its newest revision, which the fingerprint names. Without a
    validation split, some train documents are held out by hash of their text. Needs network."""
    what = f"'{spec}' is no file or corpus; a Hugging Face dataset"
    datasets, hub = import_extra("datasets", what, "hf"), import_extra("huggingface_hub", what, "hf")
    name, _, config = spec.partition(":")
    try:
        revision = hub.HfApi().dataset_info(name, timeout=20).sha
        dataset = datasets.load_dataset(name, config or None, streaming=True, revision=revision)
        columns = getattr(dataset["train"], "features", None) or {}
    except Exception as error:  # the libraries raise a dozen kinds for network, names, configs and formats
        raise no_dataset(spec, error) from error
    field = named  # of JSON and CSV nothing is known before the rows
    if columns:
        strings = [name for name, about in columns.items() if getattr(about, "dtype", None) in STRINGS]
        field = text_field(spec, strings, list(columns), named)

    def read(split: Split) -> Iterator[str]:
        rows = ({field: row[field] or ""} if field else row for row in dataset[split])
        try:
            yield from read_texts(((spec, row) for row in rows), field)
        except Exception as error:
            raise error if isinstance(error, DataError) else no_dataset(spec, error) from error

    splits: dict[Split, Documents] = {split: partial(read, split) for split in SPLITS}
    if not (has_split := "validation" in dataset):
        # by document, without the reading in advance
        border, train = int(HELD_OUT_SHARE * HASH_RANGE), splits["train"]
        splits = {split: lambda split=split: pick_documents(train(), border, split) for split in SPLITS}  # type: ignore[misc]
    part = "own split" if has_split else repr(HELD_OUT_SHARE)
    identity = "\n".join(["geonorm hub 2", name, config, revision, part, *([named] if named else [])])
    return Source(spec, hashlib.sha256(identity.encode()).hexdigest(), (), splits, own_split=has_split)


def no_dataset(spec: str, error: Exception) -> DataError:
    return DataError(
        f"no file or corpus '{spec}', and it could not be read as a Hugging Face dataset "
        f"({type(error).__name__}: {cause(error)[:160]}): check the name and the network"
    )


def hold_out(documents: Documents, fraction: float, *, one_text: bool) -> dict[Split, Documents]:
    """Split `documents` into train and validation; `one_text`: they are the pieces of one text, in order.

    Both splits are lazy; the first use of either reads all documents once, to know how much would be held out.
    """
    border = int(fraction * HASH_RANGE)

    @cache
    def sizes() -> tuple[int, int]:
        """Characters, and those of documents with a hash below the border."""
        characters = below = 0
        for text in documents():
            characters += len(text)
            below += len(text) * (hash_of(text) < border)
        return characters, below

    def part(split: Split) -> Iterator[str]:
        characters, below = sizes()
        if one_text:
            tail = max(round(fraction * characters), min(256, characters // 2))
            return cut_text(documents(), max(characters - tail, 1), split)
        if 0 < below <= MOST_HELD_OUT * characters:
            return pick_documents(documents(), border, split)
        pairs = ((text, round((1 - fraction) * len(text))) for text in documents())
        return filter(None, (text[:start] if split == "train" else text[start:] for text, start in pairs))

    return {split: partial(part, split) for split in SPLITS}


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def pick_documents(documents: Iterator[str], threshold: int, split: Split) -> Iterator[str]:
    return (text for text in documents if (hash_of(text) < threshold) == (split == "validation"))


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
