"""Labelled images: a folder of classes, npz files of JPEGs, or CIFAR-10's own binary files.

Images are decoded one at a time, when they are asked for. Whatever is wrong with a file or an image ends in one
`DataError` that names it.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, cause
from .pixels import decode_file
from .sources import entries, walk
from .split import HELD_OUT_NAMES, SPLITS, TRAIN_NAMES, border_of, hash_of

FORMAT = 1  # of the fingerprint: raise it whenever the same files would give other images, classes or splits
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
HELD_OUT_FILES = ("val", "test")
"""What stands in the name of a file to validate on."""
HELD_OUT = 0.05
"""Share that is held out where the images come without a part for that, by a hash of each one's bytes."""
SIDE, RECORD = 32, 1 + 3 * 32 * 32
"""Of CIFAR-10's binary files: height and width of an image, bytes of a record (the label, then red, green, blue)."""
CIFAR_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """One part of the data. labels: int64, one per image; read: the bytes of an image by its number; decode: its
    pixels (height, width, 3) of its bytes and its name; called: that name, for messages."""

    labels: NDArray[np.int64]
    read: Callable[[int], bytes]
    decode: Callable[[bytes, str], Pixels]
    called: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, number: int) -> Pixels:
        """(height, width, 3). DataError, one line with its name, for an image that cannot be decoded."""
        name = self.called(number)
        try:
            return self.decode(self.read(number), name)
        except OSError as error:
            raise DataError(f"{name}: {cause(error).lower()}: check the file") from error

    def some(self, numbers: NDArray[np.int64]) -> Images:
        """Those of some numbers, in that order."""
        return replace(
            self,
            labels=self.labels[numbers],
            read=lambda i: self.read(int(numbers[i])),
            called=lambda i: self.called(int(numbers[i])),
        )


@dataclass(frozen=True)
class LabelledImages:
    """Training and validation images, the names of their classes, and the sha256 (hex) of all that decides what they
    are."""

    name: str
    train: Images
    validation: Images
    classes: tuple[str, ...]
    sha256: str
    own_split: bool
    """Whether they came with a part to validate on."""


def open_images(spec: str, held_out: float = HELD_OUT) -> LabelledImages:
    """Images by a path, or by its place in $GEONORM_DATA:

    a folder of folders, one for each class, or of `train` and `validation` (valid, val, dev; test where there is none
    of these) with such folders;
    an .npz file (`data`: JPEG files one behind the other, uint8; `offsets`: where each begins and the last ends;
    `labels`; `classes`, if they have names), or a folder with one of train and one of validation (val, test);
    the folder of CIFAR-10's binary version, data_batch_*.bin and test_batch.bin, or one such file.

    Raises `DataError` for what is none of these, and for files that are damaged.
    """
    path = find(spec)
    parts = read_path(path)
    if not (own := "validation" in parts):
        parts = hold_out(path, *parts["train"], held_out)
    (train, classes, seal), (validation, _, other_seal) = (parts[split] for split in SPLITS)
    if own and seal == other_seal:
        raise DataError(f"{path}: its validation images are its training images: give others")
    name = Path(os.path.abspath(path)).name
    sealed = f"geonorm images {FORMAT}\n{seal}\n{other_seal}\n{list(classes)}"
    return LabelledImages(name, train, validation, classes, hashlib.sha256(sealed.encode()).hexdigest(), own)


Part = tuple[Images, tuple[str, ...], str]
"""Images, the names of their classes, and what their hash is of."""


def find(spec: str) -> Path:
    if not spec or "\0" in spec:
        raise DataError("the data source is empty: give a folder of images, an .npz or a .bin file")
    path = Path(os.path.expanduser(spec))
    root = os.environ.get("GEONORM_DATA")
    if not path.exists() and root and (Path(root) / spec).exists():
        path = Path(root) / spec
    if not path.exists():
        raise DataError(f"no images at '{spec}': give a folder of folders, one for each class, an .npz or a .bin file")
    return path


def read_path(path: Path) -> dict[str, Part]:
    """The parts that a path holds: train, and validation where there is one."""
    if path.is_file():
        readers = {".npz": read_npz, ".bin": read_cifar}
        if path.suffix.lower() not in readers:
            raise DataError(f"{path}: neither .npz nor .bin: give one of these, or a folder of classes")
        return {"train": readers[path.suffix.lower()]([path])}
    inside = entries(path)
    for suffix, read in ((".npz", read_npz), (".bin", read_cifar)):
        if files := [file for file in inside if file.suffix.lower() == suffix and file.is_file()]:
            held_out = [file for file in files if is_held_out(file.stem)]
            train = [file for file in files if file not in held_out]
            if not train or (suffix == ".npz" and (len(train) > 1 or len(held_out) > 1)):
                names = ", ".join(file.name for file in files)
                raise DataError(f"{path}: which of {names} are for training is not clear: one *train*, one *test*")
            return join_parts(path, read(train), read(held_out) if held_out else None)
    folders = [entry for entry in inside if entry.is_dir()]
    train, held_out = named(folders, TRAIN_NAMES), named(folders, HELD_OUT_NAMES)
    if train and held_out:
        return join_parts(path, *(read_classes(found[0], class_folders(found[0])) for found in (train, held_out)))
    parts = train + held_out
    if len(parts) > 1 or any(map(class_folders, parts)):  # alone and with images it may be a class: trains, say
        raise DataError(
            f"{path}: {parts[0].name} is named like a part of the data, not like a class: put the classes into train "
            "and validation, or rename it"
        )
    return {"train": read_classes(path, folders)}


def named(folders: Sequence[Path], names: Sequence[str]) -> list[Path]:
    """Those with one of the names, in the order of the names."""
    found = [folder for folder in folders if folder.name.lower() in names]
    return sorted(found, key=lambda folder: names.index(folder.name.lower()))


def is_held_out(name: str) -> bool:
    return any(word in name.lower() for word in HELD_OUT_FILES)


def class_folders(path: Path) -> list[Path]:
    return [entry for entry in entries(path) if entry.is_dir()]


def join_parts(path: Path, train: Part, validation: Part | None) -> dict[str, Part]:
    """Both parts, with the classes of the first. DataError where the second has others."""
    if validation is None:
        return {"train": train}
    images, names, seal = validation
    if strange := sorted(set(names) - set(train[1])):
        raise DataError(f"{path}: class {strange[0]!r} is held out but has no images to train on")
    place = np.array([train[1].index(name) for name in names])
    return {"train": train, "validation": (replace(images, labels=place[images.labels]), train[1], seal)}


def hold_out(path: Path, images: Images, classes: tuple[str, ...], seal: str, share: float) -> dict[str, Part]:
    """A share of the images, chosen by a hash of their bytes, so that equal ones land on the same side: at least one,
    and never all."""
    hashes = np.array([hash_of(images.read(i)) for i in range(len(images))], np.uint64)
    smallest, largest = int(hashes.min()), int(hashes.max())
    if smallest == largest:
        raise DataError(f"{path}: too few different images to hold some out: give at least two")
    chosen = hashes < np.uint64(border_of(share, smallest, largest))
    seal = f"{seal}\nheld out {share!r}"
    parts = {"train": ~chosen, "validation": chosen}
    return {split: (images.some(np.flatnonzero(which)), classes, seal) for split, which in parts.items()}


def read_classes(path: Path, folders: Sequence[Path]) -> Part:
    """Images of a folder for each class, in the order of their names."""
    files, labels, names = list[Path](), list[int](), list[str]()
    digest = hashlib.sha256()
    for folder in folders:
        found = list(walk(folder, lambda file: file.suffix.lower() in SUFFIXES))
        if not found:
            continue
        files += found
        labels += [len(names)] * len(found)
        names.append(folder.name)
        for file in found:
            content = read_file(file)
            digest.update(f"{folder.name} {len(content)} {hashlib.sha256(content).hexdigest()}\n".encode())
    if len(names) < 2:
        raise DataError(f"{path}: {len(names)} folders with images: give a folder of folders, one for each class")
    images = Images(np.array(labels), lambda i: read_file(files[i]), decode_file, lambda i: str(files[i]))
    return images, tuple(names), digest.hexdigest()


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'unreadable').lower()}: check its permissions") from error


def read_npz(paths: list[Path]) -> Part:
    """JPEG files in one archive; nothing in it is unpickled."""
    (path,) = paths
    try:
        with np.load(path, allow_pickle=False) as archive:
            found: dict[str, Any] = {name: archive[name] for name in ("data", "offsets", "labels")}
            called = archive.get("classes")
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}: data, offsets and labels are needed") from error
    except (OSError, ValueError, TypeError, EOFError, zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise DataError(f"{path}: not a readable .npz file ({cause(error)}): fetch it again") from error
    data, offsets, labels = found["data"], found["offsets"], found["labels"]
    if (
        data.dtype != np.uint8
        or data.ndim != 1
        or any(a.dtype.kind not in "iu" or a.ndim != 1 for a in (offsets, labels))
    ):
        raise DataError(f"{path}: data must be bytes, offsets and labels whole numbers, each in one row")
    offsets, labels = offsets.astype(np.int64), labels.astype(np.int64)
    fits = len(offsets) == len(labels) + 1 and len(labels) > 0 and offsets[0] >= 0 and offsets[-1] <= len(data)
    if not fits or (np.diff(offsets) < 0).any():
        raise DataError(f"{path}: offsets do not fit the data: {len(labels)} labels, {len(data)} bytes")
    if called is not None and (called.dtype.kind != "U" or called.ndim != 1):
        raise DataError(f"{path}: classes must be a row of texts, one name for each class")
    names = list(map(str, range(int(labels.max()) + 1) if called is None else called.tolist()))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{path}: class {twice!r} stands twice in classes: give each a name of its own")
    if labels.min() < 0 or labels.max() >= len(names):
        raise DataError(f"{path}: labels up to {labels.max()}, but {len(names)} classes")
    digest = hashlib.sha256(data.tobytes() + offsets.tobytes() + labels.tobytes())
    images = Images(
        labels, lambda i: data[offsets[i] : offsets[i + 1]].tobytes(), decode_file, lambda i: f"{path}, image {i}"
    )
    return images, tuple(names), digest.hexdigest()


def read_cifar(paths: list[Path]) -> Part:
    """CIFAR-10's binary version, the files in the order of their names (Krizhevsky 2009)."""
    records = list[NDArray[np.uint8]]()
    for path in paths:
        content = np.frombuffer(read_file(path), np.uint8)
        if len(content) == 0 or len(content) % RECORD:
            raise DataError(
                f"{path}: {len(content)} bytes are no whole number of CIFAR-10's records of {RECORD}: fetch it again"
            )
        records.append(content.reshape(-1, RECORD))
        wrong = np.flatnonzero(records[-1][:, 0] >= len(CIFAR_CLASSES))
        if len(wrong):
            raise DataError(f"{path}, image {wrong[0]}: label {records[-1][wrong[0], 0]}, but CIFAR-10 has 10 classes")
    whole = np.concatenate(records)
    ends = np.cumsum([len(part) for part in records])

    def called(number: int) -> str:
        file = int(np.searchsorted(ends, number, side="right"))
        return f"{paths[file]}, image {number - (int(ends[file - 1]) if file else 0)}"

    images = Images(whole[:, 0].astype(np.int64), lambda i: whole[i, 1:].tobytes(), decode_planes, called)
    return images, tuple(CIFAR_CLASSES), hashlib.sha256(whole.tobytes()).hexdigest()


def decode_planes(content: bytes, name: str) -> Pixels:
    """Red, green and blue of CIFAR-10, one behind the other."""
    return np.frombuffer(content, np.uint8).reshape(3, SIDE, SIDE).transpose(1, 2, 0)
