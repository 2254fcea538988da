"""What is done when a step goes wrong: the loss is not finite, or it jumps. Every rank comes to the same decision,
because losses and gradient norms are the same on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Literal

from ...errors import GeonormError
from ..config import Guard
from ..statistics.spikes import SpikeWatch

Action = Literal["stop", "skip", "rewind"]
LIMIT = 10
"""Most skips and rewinds of a run."""


class Trouble(Exception):
    """A step that went wrong: which, in what, and what is to be done about it."""

    def __init__(self, step: int, what: str, action: Action, loss: float | None) -> None:
        super().__init__(f"{what} at step {step}")
        self.step, self.what, self.action, self.loss = step, what, action, loss


class Diverged(GeonormError):
    """The loss is not finite; the message is the diagnosis, on every rank the same."""

    agreed = True


class Judge:
    """Watches losses and gradient norms, and keeps the record of what was done. Its state goes into checkpoints, so
    that a resumed run decides as an uninterrupted one."""

    def __init__(self, config: Guard) -> None:
        self.config = config
        self.watch = SpikeWatch()
        self.events: list[dict[str, Any]] = []

    @property
    def every_step(self) -> bool:
        """Whether each loss must be known before the weights change, which on a GPU means to wait for it."""
        return "skip" in (self.config.nan, self.config.spike)

    def before(self, step: int, loss: float, grad_norm: float) -> None:
        """Raises Trouble before a bad gradient reaches the weights."""
        self.finite(step, loss, grad_norm)
        if self.config.spike == "skip":
            self.jump(step, loss)

    def unread(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raises Trouble for the first bad one of steps that were made and not looked at yet: the first is what is
        reported and gone back behind, for all after it were made with its weights."""
        for row in rows:
            if "skipped" not in row:
                self.finite(row["step"], float(row["loss"]), float(row["grad_norm"]))

    def finite(self, step: int, loss: float, grad_norm: float) -> None:
        for what, value in (("loss", loss), ("gradient norm", grad_norm)):
            if not isfinite(value):
                raise Trouble(step, f"{what} is not finite", self.config.nan, loss)

    def after(self, row: dict[str, Any]) -> None:
        """The same for a step that has been made: it cannot be skipped any more."""
        if "skipped" in row:
            return
        for key, what in (("loss", "loss"), ("grad_norm", "gradient norm"), ("val_loss", "validation loss")):
            if row.get(key, 0.0) is None:
                action: Action = "rewind" if self.config.nan == "rewind" else "stop"
                raise Trouble(row["step"], f"{what} is not finite", action, row["loss"])
        if self.config.spike in ("stop", "rewind"):
            self.jump(row["step"], row["loss"])

    def jump(self, step: int, loss: float) -> None:
        if self.watch(loss) and self.config.spike != "ignore":
            raise Trouble(step, f"loss jumps to {loss:.4g}", self.config.spike, loss)

    def note(self, trouble: Trouble, **more: Any) -> None:
        """Records what is done about it. Diverged if that is too often."""
        if len(self.events) >= LIMIT:
            raise Diverged(f"{trouble}; {len(self.events)} steps were skipped or rewound before; a lower --lr may help")
        loss = trouble.loss if trouble.loss is not None and isfinite(trouble.loss) else None
        event = {"step": trouble.step, "action": trouble.action, "what": trouble.what, "loss": loss}
        self.events.append({**event, **more})

    def state(self) -> dict[str, Any]:
        return {"losses": list(self.watch.recent), "streak": self.watch.streak, "events": list(self.events)}

    def restore(self, state: dict[str, Any]) -> None:
        self.watch = SpikeWatch(recent=state["losses"], streak=state["streak"])
        self.events = list(state["events"])
