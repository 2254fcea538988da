"""Trains the runs of an experiment one after the other in one process, through the command line.

A grid is {name: arguments of `geonorm train`}. Finished runs are skipped and a stopped one goes on, so the same command
continues; a run that diverges or fails is reported and stops no other.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from programme import Grid

from geonorm.cli.main import main


def train(grid: Grid, out: str, *words: str) -> int:
    """Trains those with one of the words in their name, or all: 0, or 130 if it was interrupted."""
    grid = {name: arguments for name, arguments in grid.items() if not words or any(word in name for word in words)}
    for number, (name, arguments) in enumerate(grid.items(), 1):
        print(f"[{number}/{len(grid)}] {name}: geonorm train {shlex.join(arguments)}", flush=True)
        status = main(["train", *arguments, "--out", str(Path(out) / "runs" / name)])
        if status == 130:
            return status
        if status:
            print(f"{name}: status {status}", file=sys.stderr, flush=True)
    return 0
