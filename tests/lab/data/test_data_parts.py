"""Folders that come with a part to validate on: by which names it is known, and what stays as it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from geonorm.errors import DataError
from geonorm.lab.data import inspect_source, open_source

from ...rows import each


def write(folder: Path, names: Iterable[str]) -> Path:
    """Each file holds its own name, as a line of JSON where it is one."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) if path.suffix == ".jsonl" else name)
    return folder


def parts(folder: Path) -> list[list[str]]:
    source = open_source(str(folder))
    return [list(source.documents(split)) for split in ("train", "validation")]


@each(
    "train, held_out, others",
    [
        (["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"], ["validation-00000-of-00001.jsonl"], []),
        (["train.txt"], ["valid.txt"], ["test.txt"]),
        (["train.txt"], ["val.txt"], ["notes.txt"]),
        (["train/a.txt", "train/b.txt"], ["dev/c.txt"], ["test/d.txt"]),
        (["train.csv"], ["test.csv"], ["README.md"]),
        (["training-a.txt", "training-b.txt"], ["dev-a.txt"], []),
        (["train.jsonl", "train.txt"], ["validation.jsonl"], ["valid.txt"]),
    ],
)
def test_parts_are_known_by_their_names(
    tmp_path: Path, train: list[str], held_out: list[str], others: list[str]
) -> None:
    write(tmp_path, [*train, *held_out, *others])
    assert parts(tmp_path) == [train, held_out]
    facts: dict[str, Any] = inspect_source(open_source(str(tmp_path)))
    left_out = sorted({name.split("/")[0] for name in others})
    assert facts.get("left_out", []) == [str(tmp_path / name) for name in left_out]


def test_parts_may_lie_in_a_folder_called_data(tmp_path: Path) -> None:
    """As in a dataset that was cloned from the Hub; nothing deeper, and nothing where the folder itself has parts."""
    train = [f"data/train-0000{n}-of-00002.jsonl" for n in range(2)]
    held_out, others = ["data/validation-00000-of-00001.jsonl"], ["README.md", "data/test-00000-of-00001.jsonl"]
    write(tmp_path / "hub", [*train, *held_out, *others])
    assert parts(tmp_path / "hub") == [train, held_out]
    facts: dict[str, Any] = inspect_source(open_source(str(tmp_path / "hub")))
    assert facts["left_out"] == [str(tmp_path / "hub" / name) for name in others]
    write(tmp_path / "both", ["train.txt", "valid.txt", *train, *held_out])
    assert parts(tmp_path / "both") == [["train.txt"], ["valid.txt"]]
    assert inspect_source(open_source(str(tmp_path / "both")))["left_out"] == [str(tmp_path / "both" / "data")]
    write(tmp_path / "deep", ["data/data/train.txt", "data/data/valid.txt"])
    assert open_source(str(tmp_path / "deep")).files == tuple(sorted((tmp_path / "deep/data/data").iterdir()))
    assert len(parts(tmp_path / "deep")[0]) == 1


@each(
    "names",
    [
        ["train.py", "test.py", "model.py"],
        ["train.py", "validation.py", "book.txt"],
        ["train.txt", "more.txt"],
        ["a.txt", "test.txt", "validation.txt"],
    ],
)
def test_other_folders_are_one_heap(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path, names)
    assert {path.name for path in open_source(str(tmp_path)).files} == set(names)
    train, held_out = parts(tmp_path)
    assert sorted(train + held_out) == sorted(names)


def test_the_fingerprint_of_a_pair_is_what_it_was(tmp_path: Path) -> None:
    write(tmp_path, ["train.txt", "validation.txt", "README.md"])
    lines = [f"{part} text {hashlib.sha256(f'{part}.txt'.encode()).hexdigest()}" for part in ("train", "validation")]
    wanted = hashlib.sha256("\n".join(["geonorm source 1", *lines]).encode()).hexdigest()
    assert open_source(str(tmp_path)).fingerprint == wanted


def test_text_is_not_validated_on_itself(tmp_path: Path) -> None:
    for part in ("train", "validation"):
        write(tmp_path, [f"{part}/{part}.txt"])
        (tmp_path / part / "__init__.py").write_text("")  # no text, in both
    assert len(open_source(str(tmp_path)).files) == 4
    for part in ("train", "validation"):
        (tmp_path / part / "copy.txt").write_text("the same text")
    copy, of = tmp_path / "validation/copy.txt", tmp_path / "train/copy.txt"
    with pytest.raises(DataError, match=rf"^{copy}: its content is that of {of}, training text: take one of them out"):
        open_source(str(tmp_path))
