"""The run directory: what is in it, written so that a crash at any moment leaves it readable, and read whatever is left
of it. No torch here: reports read by this too."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ...errors import CheckpointError, ConfigError, explained, import_extra, near_folder, require
from ...parsing import finite_row, from_json, from_yaml
from ...settings import from_dict, to_dict
from ..config import TrainConfig
from .records import Summary

with explained("runs and studies need Linux or macOS; on Windows use WSL", ConfigError, ModuleNotFoundError):
    import fcntl

RESUME_MAY_DIFFER = (
    "out", "resume", "accept_changed", "branch", "checkpoint.keep", "log.to", "micro_batch", "runtime.parallel",
)  # fmt: skip
"""Settings in which a resumed run may differ: none changes the numbers by more than the order of a sum does."""
BRANCH_MAY_DIFFER = (*RESUME_MAY_DIFFER, "steps", "evaluation.every", "evaluation.whole", "checkpoint.every")
"""Settings in which a run and its branch may differ."""
EXTENSION_MAY_DIFFER = (*BRANCH_MAY_DIFFER, "optim.warmup", "optim.warmup_steps")
"""Settings that may change when a run is extended, if no learning rate so far was another."""
LOCK = ".lock"
ROW_FILES = ("metrics.jsonl", "trace.jsonl", "norms.jsonl")


def slug(scheme: str) -> str:
    """A file name for a scheme: readable, and unique by a short hash where characters were lost."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", scheme).strip("-.")
    return plain if plain == scheme else f"{plain[:60]}-{hashlib.sha256(scheme.encode()).hexdigest()[:6]}"


def check_writable(out: Path) -> None:
    """CheckpointError if no file can be made in `out`. Leaves nothing."""
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    try:
        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise CheckpointError(f"cannot write to {out}: {error.strerror}; choose another --out") from None


def is_unused(folder: Path) -> bool:
    """True if a folder does not exist, or holds nothing but what a run writes before its settings. CheckpointError if
    it is a file."""
    require(folder.is_dir() or not folder.exists(), f"{folder} is a file; choose another --out", CheckpointError)
    return not folder.exists() or all(
        entry.name.startswith((LOCK, ".config.yaml.", ".DS_Store")) for entry in folder.iterdir()
    )


def check_out_folder(out: Path, noun: str, holds_one: bool) -> None:
    """CheckpointError if `out` cannot be written, or holds something else than a study of its kind. Leaves nothing."""
    check_writable(out)
    if not is_unused(out) and not holds_one:
        raise CheckpointError(f"{out} is not empty and holds no {noun}; choose another --out")


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes to a temporary file beside the target, flushes it to disk, renames it: a reader sees the old content or
    the new, never half. Its name is random, so that nobody can put a link there before."""
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with open(aside, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def save_summary(out: str | None, summary: Mapping[str, Any]) -> None:
    """Writes summary.json into a folder, if there is to be one."""
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_json(Path(out) / "summary.json", dict(summary))


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes settings as YAML, in their order."""
    yaml = import_extra("yaml", "a file of settings", "train")
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


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is none that can be read."""
    return next(iter(read_objects(path)), {})


def read_summary(folder: Path) -> Summary | None:
    """The summary of a run; None if there is none, or what is there is not what a run writes."""
    row = read_object(folder / "summary.json")
    whole = row.pop("sha256", None) in (None, digest_of(row))  # popped first; runs of older versions have none
    return Summary.read_or_none(row) if whole else None


def digest_of(row: Mapping[str, Any]) -> str:
    """The sha256 of a JSON object."""
    return hashlib.sha256(json.dumps(dict(row), sort_keys=True).encode()).hexdigest()


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of the list in a JSON file, or the one of a file that is an object, as runs of version 0.1 wrote
    it."""
    try:
        content = from_json(read_text(path))
    except (OSError, ValueError):
        return []
    return [part for part in (content if isinstance(content, list) else [content]) if isinstance(part, dict)]


@contextmanager
def lock_folder(folder: Path, remedy: str = "wait for it or choose another --out") -> Iterator[int]:
    """Creates a folder and locks it against other processes. The lock file holds the id of this process; its own inode
    number is what this yields. CheckpointError if the folder cannot be written, or if it is in use, then with a remedy:
    what to do about it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise CheckpointError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    with os.fdopen(lock, "r+") as file:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use_error(folder, file.read(20), remedy) from None
        except OSError as error:
            raise CheckpointError(
                f"cannot lock {folder}: {error.strerror}; choose --out on another file system"
            ) from None
        file.write(f"{os.getpid():<20}\n")
        file.flush()
        yield os.fstat(lock).st_ino


def in_use_error(folder: Path, content: str, remedy: str) -> CheckpointError:
    number = content.strip()
    who = "another process" + (f" ({number})" if number.isdecimal() and int(number) != os.getpid() else "")
    return CheckpointError(f"{folder} is in use by {who}; {remedy}")


def stored_settings(folder: Path) -> dict[str, Any]:
    """The mapping in folder/config.yaml. CheckpointError if there is none or it cannot be read."""
    stored = folder / "config.yaml"
    if not folder.exists():
        raise CheckpointError(f"there is no run {folder}{near_folder(str(folder))}")
    require(stored.is_file(), f"{folder} holds no run (no config.yaml)", CheckpointError)
    checkpoints = folder / "checkpoints"  # where a link leads nowhere now, rows would be taken for those of no step
    if checkpoints.is_symlink() and not checkpoints.is_dir():
        raise CheckpointError(f"{checkpoints} is a broken link: mount what it leads to, or remove it")
    try:
        return from_yaml(stored.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{stored} is not readable YAML: {error}") from None


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any], ignored: Container[str] = ()) -> str | None:
    """The first setting of the new tree in which the old one differs, in words ("lr 0.1, not 0.2"); None if they agree.
    ignored: settings, by dotted name, that may differ."""
    before, after = flatten(old), flatten(new)
    for key in after:
        if key not in ignored and before.get(key) != after[key]:
            return f"{key} {short(before.get(key))}, not {short(after[key])}"
    return None


def short(value: object) -> str:
    """A value as a message shows it: a long hash is cut, and control characters are escaped."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
    return f"{text[:12]}..." if len(text) >= 40 and text[:40].isalnum() else text


def join_hashes(hashes: Iterable[Any]) -> str:
    """One sha256 of several."""
    return hashlib.sha256("".join(each.hexdigest() for each in hashes).encode()).hexdigest()


def rows_sha256_of(folder: Path) -> str:
    """sha256 of all rows that the folder of a run holds, as `RunFolder.rows_sha256`."""
    return join_hashes(hashlib.sha256(read_text(folder / name).encode()) for name in ROW_FILES)


class RunFolder:
    """The directory of one training run. `RunFolder.open` locks it against a second process. Of several ranks the first
    writes; on the others writing does nothing."""

    lock: int | None = None
    """Inode number of the lock file, where this process has locked the folder."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.metrics, self.trace, self.norms = (path / name for name in ROW_FILES)
        self.hashes = {file: hashlib.sha256() for file in (self.metrics, self.trace, self.norms)}
        self.checkpoints = path / "checkpoints"

    @staticmethod
    @contextmanager
    def open(
        path: Path, settings: Mapping[str, Any], resume: bool = True, ignored: Container[str] = RESUME_MAY_DIFFER
    ) -> Iterator[RunFolder]:
        """Creates or re-enters the folder of a run with these settings. CheckpointError, before anything is written, if
        another process works in it, if it holds a run whose settings differ in more than `ignored`, or if it holds this
        run and is not to be resumed."""
        run = RunFolder(path)
        stored = run.path / "config.yaml"
        if stored.exists():
            require(resume, f"{run.path} already holds a run; choose another --out or --resume auto", CheckpointError)
            run.check_same(settings, ignored)
        elif not is_unused(run.path):
            raise CheckpointError(f"{run.path} is not empty and holds no run; choose another --out")
        with lock_folder(run.path) as run.lock:
            if not stored.exists():
                write_settings(stored, settings)
            yield run

    def check_lock(self) -> None:
        """CheckpointError if another process has taken the folder, which is possible when somebody removed the lock."""
        lock = self.path / LOCK
        if self.lock is not None and lock.exists() and lock.stat().st_ino != self.lock:
            raise in_use_error(self.path, read_text(lock)[:20], "its lock was removed: this run ends, that one goes on")

    def config(self) -> TrainConfig:
        """The stored settings. CheckpointError if there are none or they are not those of a run."""
        try:
            config: TrainConfig = from_dict(TrainConfig, stored_settings(self.path))
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"{self.path / 'config.yaml'} does not hold the settings of a run: {error}") from None
        return config

    def check_same(self, settings: Mapping[str, Any], ignored: Container[str] = RESUME_MAY_DIFFER) -> None:
        """CheckpointError that names the first setting in which the directory's run differs."""
        if differs := first_difference(to_dict(self.config()), settings, ignored=ignored):
            raise CheckpointError(
                f"{self.path} holds a run with {differs}; choose another --out, or --accept-changed NAME"
            )

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file of the directory."""
        self.check_lock()
        if self.writes:
            write_json(self.path / name, value)

    def append(self, path: Path, rows: list[dict[str, Any]]) -> None:
        self.check_lock()
        if not self.writes:
            return
        text = "".join(json.dumps(finite_row(row)) + "\n" for row in rows)
        self.hashes[path].update(text.encode())
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)

    @property
    def rows_sha256(self) -> str:
        """sha256 of all rows that this process found and appended, whatever the files hold now."""
        return join_hashes(self.hashes.values())

    def sync(self) -> None:
        """Returns when all rows are on the disk: no checkpoint may exist without the rows before it."""
        for path in filter(Path.exists, self.hashes):
            with open(path, "rb") as file:
                os.fsync(file.fileno())

    def truncate(self, step: int, sha256: str | None = None) -> None:
        """Drops rows after `step`: they will be written again by the resumed run. CheckpointError, before anything is
        written, if those up to it are not what its checkpoint knows."""
        if not self.writes:
            return
        texts: dict[Path, str] = {}
        for path in self.hashes:
            early = [row for row in read_rows(path) if isinstance(row.get("step"), int) and row["step"] <= step]
            texts[path] = "".join(json.dumps(row) + "\n" for row in early)
        self.hashes = {path: hashlib.sha256(text.encode()) for path, text in texts.items()}
        if sha256 not in (None, self.rows_sha256):
            raise CheckpointError(f"{self.path} has lost rows up to step {step}, or has others: choose another --out")
        for path in filter(os.path.lexists, texts):
            write_atomic(path, texts[path])


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
