"""What is done when a step goes wrong: the loss is not finite, or it jumps. Every rank comes to the same decision,
because losses and gradient norms are the same on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from ...errors import GeonormError
from ..config import Guard
from ..statistics.spikes import SpikeWatch

Action = Literal["stop", "skip", "rewind"]
LIMIT = 10
"""Most skips and rewinds of a run."""


@dataclass(frozen=True)
class Anomaly:
    """A step that went wrong: which, in what, and what is to be done about it."""

    step: int
    what: str
    action: Action
    loss: float | None

    def __str__(self) -> str:
        return f"{self.what} at step {self.step}"


class Diverged(GeonormError):
    """The loss is not finite; the message is the diagnosis, on every rank the same."""

    agreed = True


class AnomalyGuard:
    """Watches losses and gradient norms, and records what was done. Its state goes into checkpoints, so that a resumed
    run decides as an uninterrupted one."""

    def __init__(self, config: Guard) -> None:
        self.config = config
        self.watch = SpikeWatch()
        self.events: list[dict[str, Any]] = []

    @property
    def every_step(self) -> bool:
        """True if each loss must be known before the weights change, which on a GPU means to wait for it."""
        return "skip" in (self.config.nan, self.config.spike)

    def before_step(self, pending: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> Anomaly | None:
        """The anomaly of a row whose step is not made yet, or of pending rows that nobody has looked at: the first bad
        one counts, because all after it were made with its weights."""
        for each in (*pending, row):
            if "skipped" not in each and (anomaly := self.not_finite(each, self.config.nan)):
                return anomaly
        return self.jump(row["step"], float(row["loss"])) if self.config.spike == "skip" else None

    def after_step(self, rows: Sequence[Mapping[str, Any]]) -> Anomaly | None:
        """The first anomaly of complete rows: their steps cannot be skipped any more."""
        for row in rows:
            if "skipped" in row:
                continue
            if anomaly := self.not_finite(row, "rewind" if self.config.nan == "rewind" else "stop"):
                return anomaly
            if self.config.spike in ("stop", "rewind") and (anomaly := self.jump(row["step"], row["loss"])):
                return anomaly
        return None

    def not_finite(self, row: Mapping[str, Any], action: Action) -> Anomaly | None:
        """The first number of a row that is not finite; None stands for such a number."""
        for key, what in (("loss", "loss"), ("grad_norm", "gradient norm"), ("val_loss", "validation loss")):
            value = row.get(key, 0.0)
            if value is None or not isfinite(value):
                return Anomaly(row["step"], f"{what} is not finite", action, row["loss"])
        return None

    def jump(self, step: int, loss: float) -> Anomaly | None:
        """An anomaly if the loss is a spike."""
        if self.watch(loss) and self.config.spike != "ignore":
            return Anomaly(step, f"loss jumps to {loss:.4g}", self.config.spike, loss)
        return None

    def record(self, anomaly: Anomaly) -> None:
        """Adds what is done about an anomaly to the events of the run. Diverged if there are too many."""
        if len(self.events) >= LIMIT:
            raise Diverged(f"{anomaly}; {len(self.events)} steps were skipped or rewound before; a lower --lr may help")
        loss = float(anomaly.loss) if anomaly.loss is not None and isfinite(anomaly.loss) else None
        self.events.append({"step": anomaly.step, "action": anomaly.action, "what": anomaly.what, "loss": loss})

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"losses": list(self.watch.recent), "streak": self.watch.streak, "events": list(self.events)}

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of `state`."""
        self.watch = SpikeWatch(recent=state["losses"], streak=state["streak"])
        self.events = list(state["events"])
