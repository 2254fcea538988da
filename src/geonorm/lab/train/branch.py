"""Several lengths from one run: under wsd all lengths share a prefix, and differ only in where they cool down; under a
constant rate the longer one begins with the shorter.

A run with `branch` begins in a checkpoint of a run of another length, made before either of the two cools down. Until
there the two are one run (the rate of every step is compared), so that it ends bit for bit as if it had been trained
from its first step. A run that is extended (more --steps, the same folder) goes back to such a checkpoint of its own.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ...errors import CheckpointError, ConfigError
from ...settings import to_dict
from ..checkpoint import read_and_verify
from ..config import TrainConfig
from ..distributed.ranks import ALONE
from ..resolve import resolve
from ..runs.folder import VOLATILE, RunFolder, first_difference, read_text, write_atomic, write_settings
from ..runs.loggers import TRACKED
from ..storage import saved_steps
from .optim import rate_share

APART = (*VOLATILE, "steps", "evaluation.every", "evaluation.whole", "checkpoint.every")
"""Settings in which a run and its branch may differ."""
LONGER = (*VOLATILE, "steps", "optim.warmup", "optim.warmup_steps", "evaluation.every", "evaluation.whole",
          "checkpoint.every")  # fmt: skip
"""Settings that may change when a run is extended, if no learning rate so far was another."""


def shared_steps(config: TrainConfig, other: TrainConfig) -> int:
    """Steps that a run and one of another length have in common. ConfigError if their settings leave none."""
    if other.scheme == config.scheme:  # else its text is not read: it may name code
        other = resolve(other).config
    if differs := first_difference(to_dict(other), to_dict(config), but=APART):
        raise ConfigError(f"cannot branch from {config.branch}: it is a run with {differs}")
    if config.optim.schedule != "wsd":
        raise ConfigError(f"--branch needs --optim.schedule wsd, not {config.optim.schedule}")
    last = min(run.optim.stable_end(run.steps) for run in (config, other))
    if (step := first_other_rate(config, other, last)) is not None:
        raise ConfigError(
            f"cannot branch from {config.branch}: another learning rate at step {step}; give both the same "
            "--optim.warmup-steps"
        )
    return min(last, config.evaluation.averaging_start(config.steps))


def first_other_rate(config: TrainConfig, other: TrainConfig, last: int) -> int | None:
    """The first step up to `last` at which the two runs have another share of their highest rate."""
    shares = ([rate_share(run.optim, step, run.steps) for run in (config, other)] for step in range(1, last + 1))
    return next((step for step, (ours, theirs) in enumerate(shares, 1) if ours != theirs), None)


@dataclass(frozen=True)
class SharedPrefix:
    """The run that another branches from, and the last step that both share."""

    folder: RunFolder
    last: int

    def copy_rows(self, run: RunFolder, resumed: bool) -> None:
        """Copies its measurements, if the run resumes in its checkpoint; `truncate` drops those after that step."""
        for name in ("metrics", "trace", "norms") if run.writes and resumed else ():
            if text := read_text(getattr(self.folder, name)):
                write_atomic(getattr(run, name), text)


def find_shared_prefix(config: TrainConfig) -> SharedPrefix | None:
    """GeonormError, before anything is written, if `branch` names no run or one that does not fit."""
    if config.branch is None:
        return None
    folder = RunFolder(Path(config.branch))
    return SharedPrefix(folder, shared_steps(config, folder.config()))


@dataclass(frozen=True)
class Extension:
    """A run whose folder holds it with fewer steps."""

    config: TrainConfig
    last: int
    """The last step up to which both are one run."""

    def begin(self, run: RunFolder) -> None:
        """Drops what the shorter run did after that, with its summary, and makes it the longer one. Whatever moment
        this is cut short at, the folder holds a run, the shorter or the longer, that goes on from a checkpoint of
        both."""
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
        write_settings(run.path / "config.yaml", to_dict(self.config))


def find_extension(config: TrainConfig) -> Extension | None:
    """None where config.out does not hold this run with fewer steps. CheckpointError, before anything is written, where
    more steps would have made another run of it, or nothing is left of it to go on from."""
    folder = RunFolder(Path(config.out))
    if config.resume == "never" or not (folder.path / "config.yaml").exists():
        return None
    stored = folder.config()
    if config.steps <= stored.steps:
        return None
    folder.check_same(config, but=LONGER)
    before, after = resolve(stored).config, resolve(config).config
    where = f"{folder.path} holds a run with steps {stored.steps}, not {config.steps}"
    if (summary := folder.summary()) and summary.status == "diverged":
        raise CheckpointError(f"{where}, that diverged and with more would again; choose another --out")
    if after.optim.schedule == "cosine":
        raise CheckpointError(
            f"{where}: under a cosine every rate after warm-up would have been another; choose another --out (wsd and "
            "constant can be extended)"
        )
    wsd = after.optim.schedule == "wsd"
    shared = before.optim.stable_end(stored.steps) if wsd else stored.steps
    if first_other_rate(before, after, shared) is not None:
        warmup = before.optim.warmup_end(stored.steps)
        raise CheckpointError(f"{where}, with {warmup} of warm-up: add --optim.warmup-steps {warmup} to extend it")
    last = min(shared, after.evaluation.averaging_start(after.steps))
    steps = saved_steps(folder.checkpoints)
    if min(steps, default=last + 1) > last and (steps or folder.summary()):
        raise CheckpointError(
            f"{where}, and none of its checkpoints is of the first {last}, which more steps would share; choose "
            "another --out"
        )
    return Extension(config, last)
