"""Several lengths from one run: under wsd all lengths share a prefix, and differ only in where they cool down; under a
constant rate the longer one begins with the shorter.

A run with `branch` begins in a checkpoint of a run of another length, made before either of the two cools down. Until
there the two are one run (the rate of every step is compared), so that it ends bit for bit as if it had been trained
from its first step. A run that is extended (more --steps, the same folder) goes back to such a checkpoint of its own.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from ...errors import CheckpointError, ConfigError
from ...settings import to_dict
from ..resolve import FolderPart, resolve
from ..runs.folder import (
    BRANCH_MAY_DIFFER,
    EXTENSION_MAY_DIFFER,
    RunFolder,
    first_difference,
    read_summary,
    read_text,
    write_atomic,
)
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
    """The run that `branch` names; None without one, and for a branch with checkpoints of its own. GeonormError, before
    anything is written, if it is no run or does not fit."""
    if folder.branch is None or saved_steps(folder.path / "checkpoints"):
        return None
    prefix = RunFolder(Path(folder.branch))
    stored = prefix.config()
    if differs := first_difference(to_dict(stored), folder.settings, ignored=BRANCH_MAY_DIFFER):
        raise ConfigError(f"cannot branch from {folder.branch}: it is a run with {differs}")
    other = resolve(stored).schedule
    last = min(schedule.stable_end, other.stable_end)
    if (step := schedule.first_other_share(other, last)) is not None:
        raise ConfigError(
            f"cannot branch from {folder.branch}: another learning rate at step {step}; give both the same "
            "--optim.warmup-steps under a wsd schedule"
        )
    return SharedPrefix(prefix, min(last, schedule.averaging_start))


def drop_later_steps(run: RunFolder, last: int) -> None:
    """Remove the checkpoints of a shorter run after the last step that it shares with the longer one, and its
    summary."""
    for step in saved_steps(run.checkpoints):
        if step > last:
            shutil.rmtree(run.checkpoints / f"step-{step}")
    for name in ("summary.json", TRACKED):
        (run.path / name).unlink(missing_ok=True)


def find_extension(folder: FolderPart, schedule: Schedule) -> int | None:
    """The last step that this run shares with the shorter one that its folder holds; None where it holds none.
    CheckpointError, before anything is written, where more steps would have made another run of it, or nothing is left
    of it to go on from."""
    run = RunFolder(folder.path)
    if not folder.resume or not (run.path / "config.yaml").exists():
        return None
    stored = run.config()
    if schedule.steps <= stored.steps:
        return None
    run.check_same(folder.settings, ignored={*EXTENSION_MAY_DIFFER, *folder.accepted})
    where = f"{run.path} holds a run with steps {stored.steps}, not {schedule.steps}"
    before = resolve(stored).schedule
    shared = before.branch_step or stored.steps
    if schedule.first_other_share(before, shared) is not None:
        raise CheckpointError(
            f"{where}, which would have had other rates: a wsd or constant schedule with --optim.warmup-steps "
            f"{before.warmup_end} can be extended"
        )
    last = min(shared, schedule.averaging_start)
    steps = saved_steps(run.checkpoints)
    if min(steps, default=last + 1) > last and (steps or read_summary(run.path)):
        raise CheckpointError(
            f"{where}, and none of its checkpoints is of the first {last}, which more steps would share; choose "
            "another --out"
        )
    return last
