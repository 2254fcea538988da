"""What happens at which step of a run: the learning rate, evaluations, checkpoints, averaging. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from ..errors import require
from .config import Optim


@dataclass(frozen=True)
class Schedule:
    """The steps of a run, from 1 to `steps`.

    >>> schedule = Schedule(Optim(schedule="wsd", warmup=0.1, cooldown=0.2, floor=0.0), lr=0.5, steps=100)
    >>> [schedule.rate(step) for step in (5, 10, 80, 90, 100)]
    [0.25, 0.5, 0.5, 0.25, 0.0]
    """

    optim: Optim
    lr: float
    """Highest learning rate."""
    steps: int
    evaluate_every: int = 1
    save_every: int = 1
    average: float = 0.0
    """Share of the steps, the last ones, whose weights are averaged."""

    def __post_init__(self) -> None:
        """ConfigError where warm-up does not end before what follows it: the rate would never be the highest."""
        end, what = (self.stable_end, "cool-down") if self.optim.schedule == "wsd" else (self.steps, "end")
        require(
            self.warmup_end <= end,
            f"warm-up of {self.warmup_end} of {self.steps} steps goes beyond step {end}, the {what}: shorten "
            "--optim.warmup_steps or --optim.warmup, or train longer",
        )

    @property
    def warmup_end(self) -> int:
        """The last step of warm-up."""
        steps = self.optim.warmup_steps
        return round(self.optim.warmup * self.steps) if steps is None else steps

    @property
    def stable_end(self) -> int:
        """The last step before the cool-down of wsd: up to there a longer run is the same run."""
        return self.steps - max(1, round(self.optim.cooldown * self.steps))

    @property
    def branch_step(self) -> int | None:
        """The step whose checkpoint longer runs begin in, under wsd."""
        return self.stable_end if self.optim.schedule == "wsd" else None

    @property
    def averaging_start(self) -> int:
        """The step after which weights are averaged; the last one if they are not."""
        return self.steps - (max(1, round(self.average * self.steps)) if self.average else 0)

    def evaluates(self, step: int) -> bool:
        return step == self.steps or step % self.evaluate_every == 0

    def saves(self, step: int) -> bool:
        return step == self.steps or step % self.save_every == 0 or step == self.branch_step

    def share(self, step: int) -> float:
        """The learning rate of a step as a share of the highest."""
        optim, warmup = self.optim, self.warmup_end
        if step <= warmup:
            return step / max(1, warmup)
        if optim.schedule == "cosine":
            progress = (step - warmup) / max(1, self.steps - warmup)
            return optim.floor + (1 - optim.floor) * (1 + cos(pi * progress)) / 2
        if optim.schedule == "wsd":
            return max(optim.floor, min(1.0, (self.steps - step) / (self.steps - self.stable_end)))
        return 1.0

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.lr * self.share(step)

    def phase(self, step: int) -> str:
        """warm-up, training or cool-down."""
        if step <= self.warmup_end:
            return "warm-up"
        return "cool-down" if step > (self.branch_step or self.steps) else "training"

    def first_other_share(self, other: Schedule, last: int) -> int | None:
        """The first step up to `last` at which another run has another share of its highest rate."""
        return next((step for step in range(1, last + 1) if self.share(step) != other.share(step)), None)
