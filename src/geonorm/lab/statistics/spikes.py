"""Spikes: values far above those before them, and at which steps a run has them."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..runs.records import MetricRow

MIN_WINDOW = 20
"""Values after which judgement starts."""
SIGMAS = 6.0
"""Standard deviations above the mean beyond which a value is a spike."""
STEPS = {"spikes": "spike_steps", "grad_spikes": "grad_spike_steps"}
"""Columns of summary.json: from the number of spikes to the steps at which they are."""
MEASURED = {"spikes": "loss", "grad_spikes": "grad_norm"}
"""From the number of spikes to the column of metrics.jsonl that has them."""


class SpikeWatch:
    """Judges values one by one: a spike lies more than SIGMAS standard deviations above the mean of the last `window`
    values that were no spikes.

    NaN and infinity are spikes. Judgement starts after MIN_WINDOW values. After a whole window of spikes in a row the
    level has moved for good, and the window starts again.
    """

    def __init__(self, window: int = 100, recent: Iterable[float] = ()) -> None:
        self.window, self.streak = window, 0
        self.recent = deque(recent, maxlen=window)

    def __call__(self, value: float) -> bool:
        spike = not math.isfinite(value)
        if not spike and len(self.recent) >= min(MIN_WINDOW, self.window):
            recent = np.fromiter(self.recent, dtype=float)
            mean = float(recent.mean())
            spike = value > mean + SIGMAS * float(recent.std()) + 1e-9 * abs(mean)
        self.streak = self.streak + 1 if spike else 0
        if not spike:
            self.recent.append(value)
        elif self.streak >= self.window:
            self.recent.clear()
            self.streak = 0
        return spike


def spikes(values: Iterable[float], window: int = 100) -> list[int]:
    """Indices of the values that are spikes, as `SpikeWatch` judges them."""
    watch = SpikeWatch(window)
    return [index for index, value in enumerate(values) if watch(value)]


def find_spikes(rows: Sequence[MetricRow]) -> dict[str, Any]:
    """The spikes of a run's loss and gradient norm: how many, and at which steps, as summary.json has them."""
    counts: dict[str, Any] = {}
    for kind, column in MEASURED.items():
        steps = [rows[index].step for index in spikes(getattr(row, column) for row in rows)]
        counts |= {kind: len(steps), STEPS[kind]: steps}
    return counts
