"""The directory of a simulation: what may be written where, and all of it at once, when the simulation is done.

DIR/config.yaml  environment.json  trace.jsonl  summary.json  theory.json  particles.json  figures/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .run import LOCK, difference, locked, stored_settings, write_atomic, write_json

VOLATILE = ("out", "device")


def check(out: Path, settings: Mapping[str, Any]) -> None:
    """CheckpointError, before anything is written, if `out` holds something else than this simulation."""
    if not out.exists() or not any(entry.name != LOCK for entry in out.iterdir()):
        return
    if not (out / "config.yaml").exists():
        raise CheckpointError(f"{out} is not empty and holds no simulation; choose another --out")
    if differs := difference(stored_settings(out), dict(settings), but=VOLATILE):
        raise CheckpointError(f"{out} holds a simulation with {differs}; choose another --out")


def save(out: Path, settings: Mapping[str, Any], environment: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Writes a finished simulation; files: contents of NAME.json, or a list of rows for NAME.jsonl. Each file is
    replaced whole, summary.json last."""
    import yaml

    with locked(out):
        write_atomic(out / "config.yaml", yaml.safe_dump(dict(settings), sort_keys=False))
        write_json(out / "environment.json", environment)
        for name, content in sorted(files.items(), key=lambda item: item[0] == "summary.json"):
            if name.endswith(".jsonl"):
                write_atomic(out / name, "".join(json.dumps(row, allow_nan=False) + "\n" for row in content))
            else:
                write_json(out / name, content)


@contextmanager
def progress(live: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar per scheme on stderr where someone watches; else silence."""
    if not live:
        yield lambda scheme, done: None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(scheme: str, done: float) -> None:
            if scheme not in tasks:
                tasks[scheme] = bars.add_task(scheme.replace("[", r"\["), total=1.0)
            bars.update(tasks[scheme], completed=done)

        yield show
