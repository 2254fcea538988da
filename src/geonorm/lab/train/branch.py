"""Several lengths from one run: under wsd all lengths share a prefix, and differ only in where they cool down; under a
constant rate the longer one begins with the shorter.

A run with `branch` begins in a checkpoint of a run of another length, made before either of the two cools down. Until
there the two are one run (the rate of every step is compared), so that it ends bit for bit as if it had been trained
from its first step. A run that is extended (more --steps, the same folder) goes back to such a checkpoint of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, ConfigError
from ...settings import to_dict
from ..checkpoint import read_and_verify
from ..distributed.ranks import ALONE
from ..resolve import FolderPart, resolve
from ..runs.folder import APART, LONGER, RunFolder, first_difference, read_text, write_atomic, write_settings
from ..runs.loggers import TRACKED
from ..schedule import Schedule
from ..storage import saved_steps


@dataclass(frozen=True)
class SharedPrefix:
    """The run that another branches from, and the last step that both share."""

    folder: RunFolder
    last: int

    def copy_rows(self, run: RunFolder) -> None:
        """Copy its measurements; `truncate` drops those after the step in which the run begins."""
        for name in ("metrics", "trace", "norms") if run.writes else ():
            if text := read_text(getattr(self.folder, name)):
                write_atomic(getattr(run, name), text)


def find_shared_prefix(folder: FolderPart, schedule: Schedule) -> SharedPrefix | None:
    """GeonormError, before anything is written, if `branch` names no run or one that does not fit."""
    if folder.branch is None:
        return None
    trunk = RunFolder(Path(folder.branch))
    stored = trunk.config()
    if differs := first_difference(to_dict(stored), folder.settings, but=APART):
        raise ConfigError(f"cannot branch from {folder.branch}: it is a run with {differs}")
    if schedule.optim.schedule != "wsd":
        raise ConfigError(f"--branch needs --optim.schedule wsd, not {schedule.optim.schedule}")
    other = resolve(stored).schedule
    last = min(schedule.stable_end, other.stable_end)
    if (step := schedule.first_other_share(other, last)) is not None:
        raise ConfigError(
            f"cannot branch from {folder.branch}: another learning rate at step {step}; give both the same "
            "--optim.warmup-steps"
        )
    return SharedPrefix(trunk, min(last, schedule.averaging_start))


@dataclass(frozen=True)
class Extension:
    """A run whose folder holds it with fewer steps."""

    settings: Mapping[str, Any]
    last: int
    """The last step up to which both are one run."""

    def begin(self, run: RunFolder) -> None:
        """Drop what the shorter run did after that, with its summary, and make it the longer one. Whatever moment this
        is cut short at, the folder holds a run, the shorter or the longer, that goes on from a checkpoint of both."""
        steps = saved_steps(run.checkpoints)
        usable = [step for step in steps if step <= self.last]
        for step in reversed(usable):
            try:
                read_and_verify(run.checkpoints / f"step-{step}", ALONE, everything=True)
                break
            except CheckpointError:
                if step == usable[0]:
                    raise
        for step in set(steps) - set(usable):
            shutil.rmtree(run.checkpoints / f"step-{step}")
        for name in ("summary.json", TRACKED):
            (run.path / name).unlink(missing_ok=True)
        write_settings(run.path / "config.yaml", self.settings)


def find_extension(folder: FolderPart, schedule: Schedule) -> Extension | None:
    """None where the folder does not hold this run with fewer steps. CheckpointError, before anything is written, where
    more steps would have made another run of it, or nothing is left of it to go on from."""
    run = RunFolder(folder.path)
    if not folder.resume or not (run.path / "config.yaml").exists():
        return None
    stored = run.config()
    if schedule.steps <= stored.steps:
        return None
    run.check_same(folder.settings, but=LONGER)
    where = f"{run.path} holds a run with steps {stored.steps}, not {schedule.steps}"
    if (summary := run.summary()) and summary.status == "diverged":
        raise CheckpointError(f"{where}, that diverged and with more would again; choose another --out")
    if schedule.optim.schedule == "cosine":
        raise CheckpointError(
            f"{where}: under a cosine every rate after warm-up would have been another; choose another --out (wsd and "
            "constant can be extended)"
        )
    before = resolve(stored).schedule
    shared = before.branch_step or stored.steps
    if schedule.first_other_share(before, shared) is not None:
        warmup = before.warmup_end
        raise CheckpointError(f"{where}, with {warmup} of warm-up: add --optim.warmup-steps {warmup} to extend it")
    last = min(shared, schedule.averaging_start)
    steps = saved_steps(run.checkpoints)
    if min(steps, default=last + 1) > last and (steps or run.summary()):
        raise CheckpointError(
            f"{where}, and none of its checkpoints is of the first {last}, which more steps would share; choose "
            "another --out"
        )
    return Extension(folder.settings, last)
