"""Decides what to do when a step goes wrong: when the loss is not finite, or jumps. Every rank decides alike, because
losses and gradient norms are the same on all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from ...errors import GeonormError
from ..statistics.spikes import SpikeWatch

MOST_REWINDS = 10
"""Most rewinds of a run."""


@dataclass(frozen=True)
class Anomaly:
    """A step that went wrong: which, in what, and what is to be done about it."""

    step: int
    what: str
    action: Literal["stop", "rewind"]
    loss: float | None

    def __str__(self) -> str:
        return f"{self.what} at step {self.step}"


class Diverged(GeonormError):
    """The loss is not finite; the message is the diagnosis, on every rank the same."""

    agreed = True


class AnomalyGuard:
    """Watches losses and gradient norms, and records what was done. Its state is part of a checkpoint, so that a
    resumed run decides as an uninterrupted one would."""

    def __init__(self, setting: str) -> None:
        """setting: stop, rewind or spikes."""
        self.setting = setting
        self.watch = SpikeWatch()
        self.events: list[dict[str, Any]] = []

    def first_not_finite(self, rows: Iterable[Mapping[str, Any]]) -> Anomaly | None:
        """The first row with a number that is not finite (or None, which stands for that): all rows after it come from
        the weights of its step."""
        for row in rows:
            for key, what in (("loss", "loss"), ("grad_norm", "gradient norm"), ("val_loss", "validation loss")):
                value = row.get(key, 0.0)
                if value is None or not isfinite(value):
                    return Anomaly(
                        row["step"],
                        f"{what} is not finite",
                        "stop" if self.setting == "stop" else "rewind",
                        row["loss"],
                    )
        return None

    def first_spike(self, rows: Iterable[Mapping[str, Any]]) -> Anomaly | None:
        """The first row whose loss is a spike, if spikes are rewound. Call it once for each row."""
        if self.setting == "spikes":
            for row in rows:
                if self.watch(row["loss"]):
                    return Anomaly(row["step"], f"loss jumps to {row['loss']:.4g}", "rewind", row["loss"])
        return None

    def record(self, anomaly: Anomaly) -> None:
        """Adds what is done about an anomaly to the events of the run. Diverged if there are too many."""
        if len(self.events) >= MOST_REWINDS:
            raise Diverged(f"{anomaly}; the run was rewound {len(self.events)} times before; a lower --lr may help")
        loss = float(anomaly.loss) if anomaly.loss is not None and isfinite(anomaly.loss) else None
        self.events.append({"step": anomaly.step, "action": anomaly.action, "what": anomaly.what, "loss": loss})

    def state(self) -> dict[str, Any]:
        """Its part of a checkpoint. No checkpoint is written in a streak of spikes, since each of them is rewound."""
        return {"losses": list(self.watch.recent), "events": list(self.events)}

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of `state`."""
        self.watch = SpikeWatch(recent=state["losses"])
        self.events = list(state["events"])
