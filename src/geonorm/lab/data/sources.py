"""Where text comes from: a string names a `Source`, which streams train and validation documents."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ...errors import DataError, cause, nearest
from . import stdlib
from .files import (
    COMPRESSIONS,
    STRINGS,
    content_sha256_of,
    field_of,
    format_of,
    head_of,
    import_extra,
    is_data,
    is_readable_in_folder,
    read_documents,
    sha256_of,
    text_field,
)
from .split import HELD_OUT_NAMES, SPLITS, TRAIN_NAMES, Documents, Split, hold_out, hold_out_stream

FORMAT = 1  # of the fingerprint: raise it whenever the same files would give other documents or splits
HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*(:[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """Text with a train and a validation split.

    `fingerprint` is the SHA-256 (hex) of the content and of everything that decides the split; `files` are
    the local files read, empty for a dataset from the Hub; `left_out` are entries of the folder that belong to
    neither split, such as test text.
    """

    name: str
    fingerprint: str
    files: tuple[Path, ...]
    splits: Mapping[Split, Documents] = field(repr=False, compare=False)
    left_out: tuple[Path, ...] = ()
    own_split: bool = True
    """Whether it came with text to validate on; else that was held out of its own."""

    def documents(self, split: Split) -> Iterator[str]:
        """A fresh lazy iterator over the documents (non-empty strings) of a split."""
        if split not in SPLITS:
            raise DataError(f"no split '{split}': choose train or validation")
        return self.splits[split]()


NO_TEXT = Source("no text", "", (), {})
"""In the place of a source for a tokenizer that is read from a file: a run needs nothing but its directory."""


class LocalFiles(NamedTuple):
    """The files of a local source; no validation files means that validation text has to be held out."""

    name: str
    train: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    left_out: tuple[Path, ...] = ()


def open_source(spec: str, *, validation: str | None = None, validation_fraction: float = 0.05) -> Source:
    """Open ``stdlib``, a file, a folder, a corpus of ``$GEONORM_DATA`` or a Hub name ``owner/name[:config]``.

    `validation` names a second source to validate on (its validation split if it has one, else all of it);
    then the first is not split. Otherwise a source without a validation split has `validation_fraction` of it
    held out. Raises `DataError` where the source does not exist, holds no text, its first document cannot be read,
    or a validation file is among the training files, by path or by content.
    """
    if not 0 < validation_fraction < 1:
        raise DataError(f"validation_fraction is {validation_fraction}: give a number between 0 and 1")
    parts = find_local(spec)
    if parts is None:
        if validation is None:
            return open_hub(spec, validation_fraction)
        raise DataError("validation text beside a Hugging Face dataset is not supported: use the dataset's own split")
    name, train, held_out, left_out = parts
    if validation is not None:
        other = find_local(validation)
        if other is None:
            raise DataError(f"validation source '{validation}' must be local: give a file, folder or corpus name")
        held_out = other.validation or other.train
    if shared := sorted(set(train) & set(held_out)):
        raise DataError(f"{shared[0]}: is both train and validation text: give another validation source")
    lines = [f"geonorm source {FORMAT}"]
    splits: dict[Split, Documents] = {}
    sums: dict[Split, list[str]] = {}
    for split, files in zip(SPLITS, (train, held_out), strict=True):
        splits[split] = partial(read_all, files)
        if files and next(splits[split](), None) is None:
            raise DataError(f"{files[0] if len(files) == 1 else name}: empty: give a file with text in it")
        sums[split] = [sha256_of(path) for path in files]
        lines += [f"{split} {format_of(path)} {sha256}" for path, sha256 in zip(files, sums[split], strict=True)]
    check_copies(train, held_out, sums)
    if not held_out:
        lines.append(f"held out {validation_fraction!r}")
        one_text = len(train) == 1 and format_of(train[0]) == "text"
        splits = hold_out(name, splits["train"], validation_fraction, one_text=one_text)
    fingerprint = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Source(name, fingerprint, train + held_out, splits, left_out, bool(held_out))


def check_copies(train: tuple[Path, ...], held_out: tuple[Path, ...], sums: Mapping[Split, list[str]]) -> None:
    """DataError for validation files with text whose content is that of a training file, compressed or not: what was
    learned by heart would count as foretold."""

    known, heads = set(sums["train"]), dict[bytes, list[Path]]()
    if any(path.suffix.lower() in COMPRESSIONS for path in (*train, *held_out)):
        for path in train if held_out else ():
            heads.setdefault(head_of(path), []).append(path)

    def is_copy(path: Path, sha256: str) -> bool:
        alike = heads.get(head_of(path), []) if heads else []  # the whole content of a corpus takes long to unpack
        return sha256 in known or (bool(alike) and content_sha256_of(path) in map(content_sha256_of, alike))

    same = [path for path, sha256 in zip(held_out, sums["validation"], strict=True) if is_copy(path, sha256)]
    if copies := [path for path in same if next(read_documents(path), None) is not None]:
        more = f" and {len(copies) - 3} more" if len(copies) > 3 else ""
        whose, what = ("its", "it") if len(copies) == 1 else ("their", "them")
        some = "" if len(same) == len(held_out) else f", or take {what} out of one of the two"
        raise DataError(
            f"{', '.join(map(str, copies[:3]))}{more}: {whose} content is training text too: give another validation "
            f"source{some}"
        )


def read_all(files: tuple[Path, ...]) -> Iterator[str]:
    return chain.from_iterable(map(read_documents, files))


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
        found = stdlib.find_modules()
        train = tuple(path for module, path in found.items() if module not in stdlib.VALIDATION)
        validation = tuple(path for module, path in found.items() if module in stdlib.VALIDATION)
        if train and validation:
            return LocalFiles("stdlib", train, validation)
        raise DataError("this Python has no source files of its standard library: give a text file instead of stdlib")
    path = Path(os.path.expanduser(spec))
    if not os.path.exists(path):
        known = corpora()
        if spec not in known:
            if HUB_NAME.fullmatch(spec) and not is_readable_in_folder(path) and not path.parent.is_dir():
                return None
            raise unknown_source(spec, path, known)
        path = known[spec]
    name = Path(os.path.abspath(path)).name
    if path.is_dir():
        if not (split := split_folder(path)):
            return LocalFiles(name, files_at(path))
        train, validation = (tuple(chain.from_iterable(map(files_at, split[part]))) for part in SPLITS)
        taken = [*split["train"], *split["validation"]]
        places = dict.fromkeys([path, taken[0].parent])
        left_out = [entry for place in places for entry in readable(place) if entry not in [*taken, *places]]
        return LocalFiles(name, train, validation, tuple(left_out))
    if not path.is_file():
        raise DataError(f"{path}: not a regular file: give a file or a folder")
    return LocalFiles(name.split(".")[0] or name, (path,))


def unknown_source(spec: str, path: Path, known: Mapping[str, Path]) -> DataError:
    names = ["stdlib", *known]
    try:
        siblings = [str(path.with_name(entry)) for entry in os.listdir(path.parent)]
    except OSError:
        siblings = []
    hint = nearest(spec, names + siblings) or f"known corpora: {', '.join(names)}"
    missing = "" if known else " ($GEONORM_DATA names no folder with corpora)"
    return DataError(f"no file, folder or corpus '{spec}': {hint}{missing}")


def split_folder(folder: Path) -> dict[Split, list[Path]]:
    """What a folder holds to train and to validate on, or its folder ``data`` if it has one: there datasets of the Hub
    have their shards. Else nothing."""
    below = folder / "data"
    return split_by_name(folder) or (split_by_name(below) if below.is_dir() else {})


def split_by_name(folder: Path) -> dict[Split, list[Path]]:
    """The parts of a folder by the names of its entries: ``train.*`` and ``validation.*``, exactly one of each, or all
    of one of `TRAIN_NAMES` and one of `HELD_OUT_NAMES`, up to the first dot or dash of their names, as in the Hub's
    ``train-00000-of-00002.parquet``. Else nothing."""
    inside = readable(folder)
    data = [path for path in inside if path.is_dir() or is_data(path)]  # a program's train.py and test.py are no parts
    pair = {split: [path for path in inside if path.name.split(".")[0] == split] for split in SPLITS}
    if all(len(paths) == 1 for paths in pair.values()) and any(path in data for (path,) in pair.values()):
        return pair
    named: dict[str, list[Path]] = {}
    for path in data:
        named.setdefault(re.split("[.-]", path.name)[0], []).append(path)
    train, held_out = (
        next((named[name] for name in names if name in named), []) for names in (TRAIN_NAMES, HELD_OUT_NAMES)
    )
    return {"train": train, "validation": held_out} if train and held_out else {}


def readable(folder: Path) -> list[Path]:
    return [path for path in entries(folder) if path.is_dir() or is_readable_in_folder(path)]


def entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: {(error.strerror or 'unreadable').lower()}: check its permissions") from error


def files_at(path: Path) -> tuple[Path, ...]:
    """The file itself, or all readable files below a folder, sorted, hidden ones left out."""
    files = tuple(walk(path, is_readable_in_folder)) if path.is_dir() else (path,)
    if not files:
        raise DataError(f"{path}: no text, JSONL or Parquet files below this folder: give another folder or a file")
    return files


def walk(folder: Path, wanted: Callable[[Path], bool], seen: set[tuple[int, int]] | None = None) -> Iterator[Path]:
    """The wanted files below a folder, sorted by path, hidden ones left out. Linked folders are read too, but none a
    second time, such as one that holds the link."""
    seen, here = set() if seen is None else seen, folder.stat()
    if (here.st_dev, here.st_ino) in seen:
        return
    seen.add((here.st_dev, here.st_ino))
    for path in entries(folder):
        if path.is_dir():
            yield from walk(path, wanted, seen)
        elif path.is_file() and wanted(path):
            yield path


def open_hub(spec: str, fraction: float) -> Source:
    """Open a dataset of the Hugging Face Hub, streamed, at its newest revision, which the fingerprint names.

    Without a validation split, `fraction` of the train documents is held out by hash of their text. Needs network.
    """
    what = f"'{spec}' is no file or corpus; a Hugging Face dataset"
    datasets, hub = import_extra("datasets", what, "hf"), import_extra("huggingface_hub", what, "hf")
    name, _, config = spec.partition(":")
    try:
        revision = hub.HfApi().dataset_info(name, timeout=20).sha
        dataset = datasets.load_dataset(name, config or None, streaming=True, revision=revision)
        first, columns = next(iter(dataset["train"])), getattr(dataset["train"], "features", None)
    except Exception as error:  # the libraries raise a dozen kinds for network, names, configs and formats
        raise no_dataset(spec, error) from error
    if columns is not None:
        strings = [name for name, about in columns.items() if getattr(about, "dtype", None) in STRINGS]
    else:  # of JSON and CSV nothing is known before; a document without text is passed over, the first one too
        strings = [key for key, value in first.items() if isinstance(value, str) or (key == "text" and value is None)]
    field = text_field(spec, strings, list(first if columns is None else columns))

    def read(split: Split) -> Iterator[str]:
        try:
            for row in dataset[split]:
                if columns is None and any(isinstance(value, str) for value in row.values()):
                    field_of(spec, row, field)
                if text := row[field]:
                    yield text
        except DataError:
            raise
        except Exception as error:
            raise no_dataset(spec, error) from error

    own = "validation" in dataset
    splits = {s: partial(read, s) for s in SPLITS} if own else hold_out_stream(partial(read, "train"), fraction)
    identity = f"geonorm hub 1\n{name}\n{config}\n{revision}\n{field}\n{'own split' if own else repr(fraction)}"
    return Source(spec, hashlib.sha256(identity.encode()).hexdigest(), (), splits, own_split=own)


def no_dataset(spec: str, error: Exception) -> DataError:
    return DataError(
        f"no file or corpus '{spec}', and it could not be read as a Hugging Face dataset "
        f"({type(error).__name__}: {cause(error)[:160]}): check the name and the network"
    )
