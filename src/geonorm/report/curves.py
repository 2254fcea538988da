"""Curves and profiles of runs: means over seeds with the range of the seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..lab.load import Run
from ..lab.runs.records import Record
from ..lab.statistics.comparison import paired_interval

Array = NDArray[np.float64]
Measured = tuple[float, float, float]
"""Step, place on the axis, value."""


class Place(NamedTuple):
    """A value at a sub-layer, with its range."""

    layer: float
    kind: str
    value: float
    low: float | None = None
    high: float | None = None


class Curve(NamedTuple):
    """A mean over seeds with the range of the seeds."""

    x: Array
    mean: Array
    low: Array
    high: Array

    def thinned(self, bins: int) -> Curve:
        """Means of at most `bins` neighbouring groups of points."""
        if len(self.x) <= bins:
            return self
        edges = np.linspace(0, len(self.x), bins + 1).astype(int)[:-1]
        sizes = np.diff(np.append(edges, len(self.x)))
        return Curve(*(np.add.reduceat(values, edges) / sizes for values in self))


def value_of(record: Record, key: str) -> float:
    """A column as a float, NaN where it is missing or null."""
    value = record.get(key)
    return float(value) if isinstance(value, (int, float)) else math.nan


def on_shared_text(record: Record, key: str) -> float:
    """A measurement on the held-out text that every evaluation of a run reads; the last one may read more."""
    return value_of(record, key if record.get(f"{key}_part") is None else f"{key}_part")


def metric_curve(runs: Sequence[Run], key: str) -> Curve | None:
    """A column of metrics.jsonl over tokens; None where no run has it."""
    rows = [row for run in runs for row in run.metrics]
    return _summarise(_groups((value_of(r, "step"), value_of(r, "tokens"), on_shared_text(r, key)) for r in rows))


def paired_gap(runs: Sequence[Run], base: Sequence[Run]) -> Curve | None:
    """Mean difference of val_loss to the baseline over tokens, paired by seed at each step, with its 95 % interval."""
    losses = {(run.summary.seed, value_of(row, "step")): on_shared_text(row, "val_loss")
              for run in base for row in run.metrics}  # fmt: skip
    gaps: list[Measured] = []
    for seed, row in [(run.summary.seed, row) for run in runs for row in run.metrics]:
        step = value_of(row, "step")
        gap = on_shared_text(row, "val_loss") - losses.get((seed, step), math.nan)
        gaps.append((step, value_of(row, "tokens"), gap))
    groups = _groups(gaps)
    mean, intervals = _summarise(groups), [paired_interval(group[:, 1]) for group in groups]
    low = np.array([i.mean if i.low is None else i.low for i in intervals])
    high = np.array([i.mean if i.high is None else i.high for i in intervals])
    return mean and mean._replace(low=low, high=high)


def profile(runs: Sequence[Run], key: str) -> list[Place]:
    """A column of the trace at each sub-layer, at the last evaluation of each run: mean and range of the seeds."""
    values: dict[tuple[float, str], list[float]] = {}
    for run in runs:
        last = max((value_of(record, "step") for record in run.trace), default=0.0)
        for record in run.trace:
            value = value_of(record, key)
            if value_of(record, "step") == last and math.isfinite(value):
                values.setdefault((value_of(record, "layer"), str(record.get("kind"))), []).append(value)
    return [Place(*place, float(np.mean(v)), min(v), max(v)) for place, v in values.items()]


def spread_evenly(layers: Sequence[float]) -> list[float]:
    """Places on an axis of layers: the first of a layer at its number, the others evenly after it."""
    passed: Counter[float] = Counter()
    places, counts = [], Counter(layers)
    for layer in layers:
        places.append(layer + passed[layer] / counts[layer])
        passed[layer] += 1
    return places


def spans_decades(values: Iterable[float], factor: float = 30.0) -> bool:
    """True if positive values span more than `factor`, so that a logarithmic scale reads better."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > factor


def _groups(points: Iterable[Measured]) -> list[Array]:
    """(x, value) of each run at the steps that as many runs as possible share, in order, so that no seed enters or
    leaves on the way."""
    groups: dict[float, list[tuple[float, float]]] = {}
    for step, x, value in points:
        if math.isfinite(x) and math.isfinite(value):
            groups.setdefault(step, []).append((x, value))
    most = max(map(len, groups.values()), default=0)
    return [np.array(groups[step]) for step in sorted(groups) if len(groups[step]) == most]


def _summarise(groups: Sequence[Array]) -> Curve | None:
    """Mean, lowest and highest value of each group; None where there is none."""
    if not groups:
        return None
    means = np.array([group.mean(0) for group in groups])
    low, high = (np.array([end(group[:, 1]) for group in groups]) for end in (np.min, np.max))
    return Curve(means[:, 0], means[:, 1], low, high)
