"""Hooks: what a training loop does besides training. It calls them at named points."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...progress import Pace, Unwatched
from .state import TrainState
from .summary import loss_text, progress_line

Row = dict[str, Any]
"""A row of metrics.jsonl; numbers of the last steps may still be tensors."""
LINE_INTERVAL = 15
"""Seconds between two lines about a run, evaluations apart."""


class Hook:
    """A part of a run that it could do without. Every rank has the same hooks in the same order, so that they may
    communicate. The profile alone, which does not, exists on the first rank only."""

    tensors: Mapping[str, Tensor] = {}
    """Tensors of this hook that a checkpoint holds, by KIND.NAME; loading one fills these tensors in place."""

    def after_backward(self, state: TrainState, evaluating: bool) -> None:
        """Called when the gradients of a step are complete, before clipping. evaluating: the step ends with an
        evaluation."""

    def after_step(self, state: TrainState, row: Row) -> None:
        """Called after the optimizers' step. row: that of the step in metrics.jsonl."""

    def on_evaluation(self, state: TrainState, row: Row) -> None:
        """Called after an evaluation, whose losses are in the row. The model runs in the precision of the run."""

    def on_log(self, state: TrainState, rows: list[Row]) -> None:
        """Called with the rows since the last call, when they are complete and written, and none is an anomaly."""


class ProgressReport(Hook):
    """The progress bar; a line at each evaluation, and every 15 seconds where nobody sees the bar."""

    def __init__(self, state: TrainState, name: str, say: Callable[[str], None], progress: Unwatched) -> None:
        self.name, self.say, self.progress = name, say, progress
        self.pace: Pace | None = None
        self.last_line = time.monotonic()

    def before_evaluation(self, state: TrainState) -> None:
        """Show in the bar that an evaluation is running."""
        step, steps = state.step, state.schedule.steps
        self.progress.show(
            self.name, step / steps, f"{step}/{steps} evaluating", self.pace.left(step, steps) if self.pace else None
        )

    def on_log(self, state: TrainState, rows: list[Row]) -> None:
        step, steps, row = state.step, state.schedule.steps, rows[-1]
        self.pace = self.pace or Pace(step)  # the first step may compile
        left = self.pace.left(step, steps)
        self.progress.show(
            self.name, step / steps, f"{step}/{steps} {state.schedule.phase(step)} {loss_text(row)}", left
        )
        overdue = time.monotonic() - self.last_line > LINE_INTERVAL and not self.progress.watched
        if "val_loss" in row or overdue:
            self.say(progress_line(row, steps, left))
            self.last_line = time.monotonic()
