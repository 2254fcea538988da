"""Where text comes from: a string names a `Source`, which streams train and validation documents."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ...errors import DataError, nearest
from . import stdlib
from .files import is_readable_in_folder, kind, read_documents, sha256_of
from .source import SPLITS, Documents, Source, Split
from .split import hold_out

FORMAT = 1  # of the fingerprint: raise it whenever the same files would give other documents or splits
HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*(:[\w.-]+)?")


def open_source(spec: str, *, validation: str | None = None, validation_fraction: float = 0.05) -> Source:
    """Open ``stdlib``, a file, a folder, a corpus of ``$GEONORM_DATA`` or a Hub name ``owner/name[:config]``.

    `validation` names a second source to validate on (its validation split if it has one, else all of it);
    then the first is not split. Otherwise a source without a validation split has `validation_fraction` of it
    held out. Raises `DataError` where the source does not exist, holds no text, or its first document cannot
    be read.
    """
    if not 0 < validation_fraction < 1:
        raise DataError(f"validation_fraction is {validation_fraction}: give a number between 0 and 1")
    parts = _find(spec)
    if isinstance(parts, str):
        from .hub import open_hub

        if validation is not None:
            raise DataError(
                "validation text beside a Hugging Face dataset is not supported: use the dataset's own split"
            )
        return open_hub(parts, validation_fraction)
    if validation is not None:
        other = _find(validation)
        if isinstance(other, str):
            raise DataError(f"validation source '{validation}' must be local: give a file, folder or corpus name")
        held_out = other.validation or other.train
        parts = _Parts(parts.name, parts.train, held_out)
    return _local_source(parts, validation_fraction)


def corpora() -> dict[str, Path]:
    """Map each corpus name in ``$GEONORM_DATA`` to its folder or file; empty where that is not set."""
    root = os.environ.get("GEONORM_DATA")
    if not root or not os.path.isdir(root):
        return {}
    texts = {path.stem: path for path in sorted(Path(root).rglob("*.txt"), reverse=True)}
    folders = {path.name: path for path in sorted(Path(root).iterdir()) if path.is_dir() and _split_folder(path)}
    return {**texts, **folders}


@dataclass(frozen=True)
class _Parts:
    """The files of a local source; no validation files means that validation text has to be held out."""

    name: str
    train: tuple[Path, ...]
    validation: tuple[Path, ...] = ()


def _find(spec: str) -> _Parts | str:
    """Resolve `spec` to local files, or to the name of a dataset on the Hub."""
    if not spec or "\0" in spec:
        raise DataError("the data source is empty: give stdlib, a file, a folder or a corpus name")
    if spec == "stdlib":
        return _stdlib_parts()
    path = Path(os.path.expanduser(spec))
    if not os.path.exists(path):
        known = corpora()
        if spec not in known:
            if HUB_NAME.fullmatch(spec) and not is_readable_in_folder(path) and not path.parent.is_dir():
                return spec
            raise _unknown(spec, path, known)
        path = known[spec]
    name = Path(os.path.abspath(path)).name
    if path.is_dir():
        split = _split_folder(path)
        if split:
            return _Parts(name, *(_below(split[part]) for part in SPLITS))
        return _Parts(name, _below(path))
    if not path.is_file():
        raise DataError(f"{path}: not a regular file: give a file or a folder")
    return _Parts(name.split(".")[0] or name, (path,))


def _unknown(spec: str, path: Path, known: Mapping[str, Path]) -> DataError:
    names = ["stdlib", *known]
    try:
        siblings = [str(path.with_name(entry)) for entry in os.listdir(path.parent)]
    except OSError:
        siblings = []
    hint = nearest(spec, names + siblings) or f"known corpora: {', '.join(names)}"
    missing = "" if known else " ($GEONORM_DATA names no folder with corpora)"
    return DataError(f"no file, folder or corpus '{spec}': {hint}{missing}")


def _stdlib_parts() -> _Parts:
    found = stdlib.locate()
    train = tuple(path for module, path in found.items() if module not in stdlib.VALIDATION)
    validation = tuple(path for module, path in found.items() if module in stdlib.VALIDATION)
    if not train or not validation:
        raise DataError("this Python has no source files of its standard library: give a text file instead of stdlib")
    return _Parts("stdlib", train, validation)


def _split_folder(folder: Path) -> dict[Split, Path]:
    """Return ``train.*`` and ``validation.*`` of a folder where it has exactly one of each, else nothing."""
    found: dict[Split, Path] = {}
    for path in _entries(folder):
        for split in SPLITS:
            if path.name.split(".")[0] == split and (path.is_dir() or is_readable_in_folder(path)):
                if split in found:
                    return {}
                found[split] = path
    return found if len(found) == len(SPLITS) else {}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: {(error.strerror or 'unreadable').lower()}: check its permissions") from error


def _below(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or all readable files below a folder, sorted, hidden ones left out."""
    if not path.is_dir():
        return (path,)
    files = tuple(_walk(path))
    if not files:
        raise DataError(f"{path}: no text, JSONL or Parquet files below this folder: give another folder or a file")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for path in _entries(folder):
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        elif path.is_file() and is_readable_in_folder(path):
            yield path


def _local_source(parts: _Parts, fraction: float) -> Source:
    shared = sorted(set(parts.train) & set(parts.validation))
    if shared:
        raise DataError(f"{shared[0]}: is both train and validation text: give another validation source")
    for files in filter(None, (parts.train, parts.validation)):
        if next(_read_all(files), None) is None:
            raise DataError(f"{files[0] if len(files) == 1 else parts.name}: empty: give a file with text in it")
    splits: Mapping[Split, Documents]
    if parts.validation:
        splits = {"train": lambda: _read_all(parts.train), "validation": lambda: _read_all(parts.validation)}
    else:
        one_text = len(parts.train) == 1 and kind(parts.train[0]) == "text"
        splits = hold_out(parts.name, lambda: _read_all(parts.train), fraction, one_text=one_text)
    return Source(parts.name, _fingerprint(parts, fraction), parts.train + parts.validation, splits)


def _read_all(files: Iterable[Path]) -> Iterator[str]:
    return chain.from_iterable(read_documents(path) for path in files)


def _fingerprint(parts: _Parts, fraction: float) -> str:
    lines = [f"geonorm source {FORMAT}"]
    for split, files in zip(SPLITS, (parts.train, parts.validation), strict=True):
        lines += [f"{split} {kind(path)} {sha256_of(path)}" for path in files]
    if not parts.validation:
        lines.append(f"held out {fraction!r}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
