"""What a hostile situation is, and the files that it finds.

The test makes a folder of its own for every situation, with `text.txt` in it, what `files` says, and copies
of what it names: `run` (a finished run), `model` (its export), `sim` (a simulation).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Content = str | bytes | Callable[[Path], object]
"""Of a file; or what is done to it, given its path."""


@dataclass(frozen=True)
class Situation:
    """A command line in a setting, and words of the line that it must end in."""

    line: str
    words: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.line.replace(" ".join(TINY), "...") + "".join(f" [{name}]" for name in (*self.files, *self.env))


TINY = (
    "--data text.txt --model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 "
    "--model.vocab-size 257 --tokens.tokenizer byte --evaluation.tokens 256 --evaluation.trace-tokens 64 "
    "--runtime.device cpu --runtime.tensorboard false --steps 4"
).split()
TRAIN = f"train {' '.join(TINY)} --out out"
COMPARE = f"compare {' '.join(TINY)} --schemes pre --out out"
SIMULATE = "simulate --schemes pre --tokens 4 --dim 4 --time 2 --points 8 --seeds 1"
PROBE = "--data text.txt --tokens 64 --device cpu --out out"


def s(line: str, *words: str, files: Mapping[str, Content] | None = None, **env: Any) -> Situation:
    for flag, value in zip(TINY[::2], TINY[1::2], strict=True):
        if f"{flag} {value}" in line and line.count(f"{flag} ") > 1:  # what is asked for comes in its place
            line = line.replace(f"{flag} {value} ", "", 1)
    return Situation(line, words, files or {}, env)


def link(target: str) -> Content:
    return lambda path: path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir(parents=True)


def left_behind(path: Path) -> None:
    """The working directory, which somebody removes."""
    path.mkdir()
    os.chdir(path)
    path.rmdir()


def cut(share: float) -> Content:
    """Keeps the first part of a file."""
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def cut_before(line: str) -> Content:
    """Keeps what stands before a line that begins so: what is left of YAML can be read."""
    return lambda path: path.write_text(path.read_text().partition(f"\n{line}")[0] + "\n")


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def edited(**changes: Any) -> Content:
    """A JSON or YAML file with other values; None removes one."""

    def edit(path: Path) -> None:
        import yaml

        own = json if path.suffix == ".json" else yaml
        values = own.loads(path.read_text()) if own is json else yaml.safe_load(path.read_text())
        for key, value in changes.items():
            *groups, leaf = key.split("__")
            place = values
            for group in groups:
                place = place[group]
            place.pop(leaf, None) if value is None else place.update({leaf: value})
        path.write_text(json.dumps(values) if own is json else yaml.safe_dump(values))

    return edit


def flipped(path: Path) -> None:
    """One bit in the middle differs."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def parquet(**columns: Any) -> Content:
    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), path)

    return write


TEXT = "".join(f"the {word} of line {number}\n" for number in range(200) for word in ("cat", "sphere"))
