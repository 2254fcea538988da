"""The run directory: what is in it, written so that a crash at any moment leaves it readable, and read whatever is left
of it. No torch here: reports read by this too."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ...errors import CheckpointError, ConfigError, near_folder
from ...parsing import finite_row, from_json, from_yaml
from ...settings import from_dict, to_dict
from ..config import TrainConfig
from .records import Summary

VOLATILE = (
    "out", "resume", "branch", "checkpoint.keep", "log.to", "micro_batch", "runtime.parallel",
)  # fmt: skip
"""What a resumed run may say differently: nothing here changes the numbers by more than the order of a sum."""
APART = (*VOLATILE, "steps", "evaluation.every", "evaluation.whole", "checkpoint.every")
"""Settings in which a run and its branch may differ."""
LONGER = (*APART, "optim.warmup", "optim.warmup_steps")
"""Settings that may change when a run is extended, if no learning rate so far was another."""
LOCK = ".lock"


def slug(scheme: str) -> str:
    """A file name for a scheme: readable, and unique by a short hash where characters were lost."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", scheme).strip("-.")
    return plain if plain == scheme else f"{plain[:60]}-{hashlib.sha256(scheme.encode()).hexdigest()[:6]}"


def check_writable(out: Path) -> None:
    """CheckpointError if no file can be made in `out`, tried by making one; folders made for it are removed again."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise CheckpointError(f"cannot write to {out}: {error.strerror}; choose another --out") from None
    finally:
        for folder in missing:
            if folder.is_dir():
                folder.rmdir()


def is_unused(folder: Path) -> bool:
    """True if a folder is not there, or holds nothing but what a run writes before its settings. CheckpointError if it
    is a file."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; choose another --out")
    return not folder.exists() or all(entry.name.startswith((LOCK, ".config.yaml.")) for entry in folder.iterdir())


def write_atomic(path: Path, text: str) -> None:
    """Writes beside the file, flushes to disk, renames: a reader sees the old text or the new, never half."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes settings as YAML, in their order."""
    import yaml

    write_atomic(path, yaml.safe_dump(dict(settings), sort_keys=False))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, none if there is no file."""
    yield from rows_of(read_text(path).split("\n"))


def rows_of(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Rows of JSON lines; lines that a crash cut short or damaged are passed over."""
    for line in lines:
        try:
            row = from_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def read_text(path: Path) -> str:
    """The text of a file, empty if there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def read_json(path: Path) -> Any:
    """What a JSON file holds, None if there is none that can be read."""
    try:
        return from_json(read_text(path))
    except (OSError, ValueError):
        return None


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is none that can be read."""
    content = read_json(path)
    return content if isinstance(content, dict) else {}


def read_summary(folder: Path) -> Summary | None:
    """The summary of a run; None if there is none, or what is there is not what a run writes."""
    return Summary.read_or_none(read_json(folder / "summary.json"))


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of the list in a JSON file, or the one of a file that is an object, as runs of version 0.1 wrote
    it."""
    content = read_json(path)
    return [part for part in (content if isinstance(content, list) else [content]) if isinstance(part, dict)]


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Creates a folder and keeps other processes out of it; the number of this one stands in the lock. CheckpointError
    if it cannot be written or is in use."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise CheckpointError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    with os.fdopen(lock, "r+") as file:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise in_use_error(folder, file.read(20), "wait for it or choose another --out") from None
        file.write(f"{os.getpid():<20}\n")
        file.flush()
        yield


def check_free(folder: Path, remedy: str) -> None:
    """CheckpointError, which ends in what to do, if another process works in the folder now. Changes nothing."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(lock) as file:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise in_use_error(folder, file.read(20), remedy) from None


def in_use_error(folder: Path, content: str, remedy: str) -> CheckpointError:
    number = content.strip()
    who = "another process" + (f" ({number})" if number.isdecimal() and int(number) != os.getpid() else "")
    return CheckpointError(f"{folder} is in use by {who}; {remedy}")


def stored_settings(folder: Path) -> dict[str, Any]:
    """The mapping in folder/config.yaml. CheckpointError if there is none or it cannot be read."""
    stored = folder / "config.yaml"
    if not folder.exists():
        raise CheckpointError(f"there is no run {folder}{near_folder(str(folder))}")
    if not stored.exists():
        raise CheckpointError(f"{folder} holds no run (no config.yaml)")
    if strange := next((path for path in folder.rglob("*") if not path.is_file() and not path.is_dir()), None):
        raise CheckpointError(f"{strange} is no file, but a pipe, a device or a broken link: remove it")
    try:
        values = from_yaml(stored.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{stored} is not readable YAML: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{stored} is not a mapping of settings")
    return values


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any], but: Container[str] = ()) -> str | None:
    """The first setting in which two trees of settings differ, in words; None if they agree."""
    before, after = flatten(old), flatten(new)
    for key in after:
        if key not in but and before.get(key) != after[key]:
            return f"{key} {before.get(key)}, not {after[key]}"
    return None


class RunFolder:
    """The directory of one training run. `RunFolder.open` locks it against a second process. Of several ranks the first
    writes; on the others writing does nothing."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.metrics = path / "metrics.jsonl"
        self.trace = path / "trace.jsonl"
        self.norms = path / "norms.jsonl"
        self.checkpoints = path / "checkpoints"

    @staticmethod
    @contextmanager
    def open(
        path: Path, settings: Mapping[str, Any], resume: bool = True, but: Container[str] = VOLATILE
    ) -> Iterator[RunFolder]:
        """Creates or re-enters the folder of a run with these settings. CheckpointError if another process works in it,
        if it holds a run that differs in more than `but`, or if it holds this run and is not to be resumed; nothing is
        written in any of these cases."""
        run = RunFolder(path)
        stored = run.path / "config.yaml"
        if stored.exists():
            if not resume:
                raise CheckpointError(f"{run.path} already holds a run; choose another --out or --resume auto")
            run.check_same(settings, but)
        elif not is_unused(run.path):
            raise CheckpointError(f"{run.path} is not empty and holds no run; choose another --out")
        with lock_folder(run.path):
            if not stored.exists():
                write_settings(stored, settings)
            yield run

    def config(self) -> TrainConfig:
        """The stored settings. CheckpointError if there are none or they are not those of a run."""
        try:
            config: TrainConfig = from_dict(TrainConfig, stored_settings(self.path))
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"{self.path / 'config.yaml'} does not hold the settings of a run: {error}") from None
        return config

    def check_same(self, settings: Mapping[str, Any], but: Container[str] = VOLATILE) -> None:
        """CheckpointError that names the first setting in which the directory's run differs."""
        if differs := first_difference(to_dict(self.config()), settings, but=but):
            raise CheckpointError(f"{self.path} holds a run with {differs}; choose another --out")

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file of the directory."""
        if self.writes:
            write_json(self.path / name, value)

    def append(self, path: Path, rows: list[dict[str, Any]]) -> None:
        if not self.writes:
            return
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(finite_row(row)) + "\n" for row in rows)

    def truncate(self, step: int) -> None:
        """Drops rows after `step`: they will be written again by the resumed run."""
        for path in (self.metrics, self.trace, self.norms) if self.writes else ():
            lines = [json.dumps(row) + "\n" for row in read_rows(path) if is_ours(row, path) and row["step"] <= step]
            if path.exists():
                write_atomic(path, "".join(lines))

    def summary(self) -> Summary | None:
        """How the run ended; None as long as it has not."""
        return read_summary(self.path)


def is_ours(row: dict[str, Any], path: Path) -> bool:
    """True if a row is one of ours: a file may have been edited, or damaged so that it is still JSON."""
    numbers = ("step", "tokens", "loss", "lr", "grad_norm") if path.name == "metrics.jsonl" else ("step",)
    return isinstance(row.get("step"), int) and all(isinstance(row.get(n, ""), int | float | None) for n in numbers)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
