"""Several lengths from one run: under wsd all lengths share a trunk, and differ only in where they cool down.

A run with `branch` begins in a checkpoint of a run of another length, made before either of the two cools down. Until
there the two are one run (the rate of every step is compared), so that it ends bit for bit as if it had been trained
from its first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from ...settings import to_dict
from ..config import TrainConfig
from ..resolve import resolve
from ..runs.run import VOLATILE, RunFolder, first_difference, read_text, write_atomic
from .optim import rate_share, trunk_end

APART = (*VOLATILE, "steps", "phase", "evaluation.every", "evaluation.whole", "checkpoint.every")
"""What a run and its branch may say differently."""


def shared_steps(config: TrainConfig, other: TrainConfig) -> int:
    """Steps that a run and one of another length have in common. ConfigError if their settings leave none."""
    if other.scheme == config.scheme:  # else its text is not read: it may name code
        other = resolve(other).config
    if differs := first_difference(to_dict(other), to_dict(config), but=APART):
        raise ConfigError(f"cannot branch from {config.branch}: it is a run with {differs}")
    if config.optim.schedule != "wsd":
        raise ConfigError(f"--branch needs --optim.schedule wsd, not {config.optim.schedule}")
    last = min(trunk_end(run.optim, run.steps) for run in (config, other))
    for step in range(1, last + 1):
        if rate_share(config.optim, step, config.steps) != rate_share(other.optim, step, other.steps):
            raise ConfigError(
                f"cannot branch from {config.branch}: another learning rate at step {step}; give both the same "
                "--optim.warmup-steps"
            )
    averaged = max(1, round(config.evaluation.average * config.steps)) if config.evaluation.average else 0
    return min(last, config.steps - averaged)


@dataclass(frozen=True)
class Trunk:
    """The run that another branches from, and the last step that both share."""

    folder: RunFolder
    last: int

    def copy_rows(self, run: RunFolder, found: bool) -> None:
        """What it has measured, if a checkpoint was found; `truncate` drops what is later than that."""
        for name in ("metrics", "trace", "norms") if run.writes and found else ():
            if text := read_text(getattr(self.folder, name)):
                write_atomic(getattr(run, name), text)


def find_trunk(config: TrainConfig) -> Trunk | None:
    """GeonormError, before anything is written, if `branch` names no run or one that does not fit."""
    if config.branch is None:
        return None
    folder = RunFolder(Path(config.branch))
    return Trunk(folder, shared_steps(config, folder.config()))
