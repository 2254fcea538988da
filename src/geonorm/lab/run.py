"""The run directory: what is in it, written so that a crash at any moment leaves it readable."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .config import TrainConfig, from_dict, to_dict

# what a resumed run may say differently: nothing here changes the numbers
VOLATILE = ("out", "resume")


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


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line that a crash cut short ends it."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)


class Run:
    """A directory of one training run. Open it with `Run.opened`, which locks it against a second process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.trace = path / "trace.jsonl"
        self.checkpoints = path / "checkpoints"

    @staticmethod
    @contextmanager
    def opened(config: TrainConfig) -> Iterator[Run]:
        """Creates or re-enters config.out. CheckpointError if another process works in it, if it holds another run, or
        if it holds this run and resume is `never`; nothing is written in any of these cases."""
        import yaml

        run = Run(Path(config.out))
        stored = run.path / "config.yaml"
        if run.path.exists() and not run.path.is_dir():
            raise CheckpointError(f"{run.path} is a file; choose another --out")
        if stored.exists():
            if config.resume == "never":
                raise CheckpointError(f"{run.path} already holds a run; choose another --out or --resume auto")
            run.check_same(config)
        elif run.path.exists() and any(run.path.iterdir()):
            raise CheckpointError(f"{run.path} is not empty and holds no run; choose another --out")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            lock = open(run.path / ".lock", "w")  # noqa: SIM115 held until the run ends
        except OSError as error:
            raise CheckpointError(f"cannot write to {run.path}: {error.strerror}; choose another --out") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CheckpointError(
                    f"{run.path} is in use by another process; wait for it or choose another --out"
                ) from None
            if not stored.exists():
                write_atomic(stored, yaml.safe_dump(to_dict(config), sort_keys=False))
            yield run

    def config(self) -> TrainConfig:
        """The stored settings. CheckpointError if there are none or they cannot be read."""
        import yaml

        stored = self.path / "config.yaml"
        if not stored.exists():
            raise CheckpointError(f"{self.path} holds no run (no config.yaml)")
        try:
            values = yaml.safe_load(stored.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            raise CheckpointError(f"{stored} is not readable YAML") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{stored} is not a mapping of settings")
        config: TrainConfig = from_dict(TrainConfig, values)
        return config

    def check_same(self, config: TrainConfig) -> None:
        """CheckpointError that names the first setting in which the directory's run differs."""
        old, new = flatten(to_dict(self.config())), flatten(to_dict(config))
        for key in new:
            if key not in VOLATILE and old.get(key) != new[key]:
                raise CheckpointError(
                    f"{self.path} holds a run with {key} {old.get(key)}, not {new[key]}; choose another --out"
                )

    def append(self, path: Path, rows: list[dict[str, Any]]) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def truncate(self, step: int) -> None:
        """Drops rows after `step`: they will be written again by the resumed run."""
        for path in (self.metrics, self.trace):
            kept = [json.dumps(row) + "\n" for row in read_rows(path) if row["step"] <= step]
            if path.exists():
                write_atomic(path, "".join(kept))

    def summary(self) -> dict[str, Any] | None:
        """What a finished run left, or None."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        try:
            summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return None
        return summary


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
