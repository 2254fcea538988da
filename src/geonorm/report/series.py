"""Curves and profiles out of runs: what the charts of the page and the figures for print both draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..lab.statistics.comparison import paired_interval
from ..lab.statistics.spikes import spikes
from .atomic import Record
from .runs import Run

Array = NDArray[np.float64]
Point = tuple[float, float, float]
"""Step, place on the axis, value."""
KINDS = ("attn", "mlp", "parallel")


class Curve(NamedTuple):
    """A mean over seeds with the range of the seeds."""

    x: Array
    mean: Array
    low: Array
    high: Array

    def thinned(self, bins: int) -> Curve:
        """Means of at most `bins` neighbouring groups of points: less noise, and less to draw."""
        if len(self.x) <= bins:
            return self
        edges = np.linspace(0, len(self.x), bins + 1).astype(int)[:-1]
        sizes = np.diff(np.append(edges, len(self.x)))
        return Curve(*(np.add.reduceat(values, edges) / sizes for values in self))


class SiteKey(NamedTuple):
    """A place where a residual stands, as a trace names it."""

    layer: float
    kind: str


def number(record: Record, key: str) -> float:
    """A value as a float, NaN where it is missing or null."""
    value = record.get(key)
    return float(value) if isinstance(value, (int, float)) else math.nan


def shared(record: Record, key: str) -> float:
    """A measurement on the held-out text that every evaluation of a run sees: the last one may see more."""
    return number(record, f"{key}_part" if f"{key}_part" in record else key)


def clock(run: Run) -> dict[float, float]:
    """Wall seconds in training steps, without evaluations and checkpoints, by step. Where recorded seconds drop, a
    resumed run started anew."""
    total = previous = 0.0
    passed = {}
    for record in run.metrics:
        now = number(record, "seconds")
        if math.isnan(now):
            continue
        total += now - previous if now >= previous else now
        previous = now
        passed[number(record, "step")] = total
    return passed


def curve(runs: Sequence[Run], key: str, x: str = "tokens") -> Curve | None:
    """A measurement of metrics.jsonl over tokens, seconds or steps; None where no run has it."""
    found: list[Point] = []
    for run in runs:
        seconds = clock(run) if x == "seconds" else {}
        for record in run.metrics:
            step = number(record, "step")
            at = seconds.get(step, math.nan) if x == "seconds" else number(record, x)
            found.append((step, at, shared(record, key)))
    return _summarise(_groups(found))


def paired_gap(runs: Sequence[Run], base: Sequence[Run]) -> Curve | None:
    """Mean difference of val_loss to the baseline over tokens, paired by seed at each step, with its 95 % interval."""
    others = {run.summary.get("seed"): {number(r, "step"): shared(r, "val_loss") for r in run.metrics} for run in base}
    found: list[Point] = []
    for run in runs:
        other = others.get(run.summary.get("seed"), {})
        for record in run.metrics:
            step = number(record, "step")
            found.append((step, number(record, "tokens"), shared(record, "val_loss") - other.get(step, math.nan)))
    groups = _groups(found)
    mean = _summarise(groups)
    if mean is None:
        return None
    intervals = [paired_interval(group[:, 1]) for group in groups]
    low = [i.mean if i.low is None else i.low for i in intervals]
    high = [i.mean if i.high is None else i.high for i in intervals]
    return mean._replace(low=np.array(low), high=np.array(high))


def course(runs: Sequence[Run], measure: str) -> Curve | None:
    """The mean over all sites of a traced measurement, over tokens."""
    found: list[Point] = []
    for run in runs:
        sites: dict[float, list[float]] = {}
        for record in run.trace:
            value = read_measure(record, measure)
            if math.isfinite(value):
                sites.setdefault(number(record, "step"), []).append(value)
        found += [(step, step * _tokens_per_step(run), float(np.mean(values))) for step, values in sites.items()]
    return _summarise(_groups(found))


class NormKey(NamedTuple):
    """A norm of the stream, as norms.jsonl names it."""

    layer: float
    kind: str
    norm: str

    def __str__(self) -> str:
        layer = "" if self.kind in ("entry", "exit") else f"{self.layer:g} "
        return f"{layer}{self.kind} {self.norm}"


def norm_courses(runs: Sequence[Run], measure: str) -> dict[NormKey, Curve]:
    """A measurement of each norm over tokens, norms in the order in which the stream meets them."""
    points: dict[NormKey, list[Point]] = {}
    for run in runs:
        for record in run.norms:
            step = number(record, "step")
            where = NormKey(number(record, "layer"), str(record.get("kind")), str(record.get("norm")))
            points.setdefault(where, []).append((step, step * _tokens_per_step(run), number(record, measure)))
    places = sorted(points, key=lambda p: (p.kind == "exit", p.kind != "entry", p.layer, rank_kind(p.kind)))
    curves = {where: _summarise(_groups(points[where])) for where in places}
    return {where: curve for where, curve in curves.items() if curve}


def over_norms(courses: dict[NormKey, Curve]) -> Curve | None:
    """Mean over norms with the lowest and the highest of them, at the steps that all have."""
    if not courses:
        return None
    shared = set.intersection(*({float(x) for x in curve.x} for curve in courses.values()))
    kept = [curve.mean[[float(x) in shared for x in curve.x]] for curve in courses.values()]
    stacked = np.stack(kept) if shared else np.empty((len(kept), 0))
    if not stacked.size:
        return None
    return Curve(np.array(sorted(shared)), stacked.mean(0), stacked.min(0), stacked.max(0))


def profile(runs: Sequence[Run], measure: str) -> dict[SiteKey, tuple[float, float, float]]:
    """Mean, lowest and highest value over seeds at each site, at the last evaluation of each run."""
    values: dict[SiteKey, list[float]] = {}
    for run in runs:
        last = max((number(record, "step") for record in run.trace), default=0.0)
        for record in run.trace:
            value = read_measure(record, measure)
            if number(record, "step") == last and math.isfinite(value):
                site = SiteKey(number(record, "layer"), str(record.get("kind")))
                values.setdefault(site, []).append(value)
    return {site: (float(np.mean(v)), min(v), max(v)) for site, v in values.items()}


def read_measure(record: Record, measure: str) -> float:
    """A column of the trace, or the inverse of one: `1/speed`, finite where a site hardly turns a token."""
    if measure.startswith("1/"):
        value = number(record, measure[2:])
        return 1 / value if value else math.nan
    return number(record, measure)


def all_sites(profiles: Iterable[dict[SiteKey, tuple[float, float, float]]]) -> list[SiteKey]:
    """Sites in the order in which the stream meets them."""
    sites = {site for found in profiles for site in found}
    return sorted(sites, key=lambda site: (site.layer, rank_kind(site.kind)))


def rank_kind(kind: str) -> int:
    """Where a kind of site stands in its block; one that is not known comes last."""
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def spread_evenly(layers: Sequence[float]) -> list[float]:
    """Places on an axis of layers: the first of a layer at its number, the others evenly behind it."""
    seen: Counter[float] = Counter()
    places, counts = [], Counter(layers)
    for layer in layers:
        places.append(layer + seen[layer] / counts[layer])
        seen[layer] += 1
    return places


def events(runs: Sequence[Run], key: str) -> list[tuple[Run, float, float]]:
    """Logged spikes of a measurement: the run, the tokens seen by then, and the value."""
    found = []
    for run in runs:
        records = [record for record in run.metrics if key in record]
        for index in spikes(number(record, key) for record in records):
            found.append((run, number(records[index], "tokens"), number(records[index], key)))
    return found


def spans_decades(values: Iterable[float], factor: float = 30.0) -> bool:
    """Whether positive values span more than `factor`, so that a logarithmic scale reads better."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > factor


def _tokens_per_step(run: Run) -> float:
    last = run.metrics[-1] if run.metrics else run.summary
    steps = number(last, "step") if run.metrics else number(last, "steps")
    tokens = number(last, "tokens")
    return tokens / steps if steps and math.isfinite(tokens / steps) else 1.0


def _groups(found: Iterable[Point]) -> list[Array]:
    """(x, value) of each run at the steps that as many runs as possible share, in order, so that no seed enters or
    leaves on the way."""
    points: dict[float, list[tuple[float, float]]] = {}
    for step, x, value in found:
        if math.isfinite(x) and math.isfinite(value):
            points.setdefault(step, []).append((x, value))
    most = max(map(len, points.values()), default=0)
    return [np.array(points[step]) for step in sorted(points) if len(points[step]) == most]


def _summarise(groups: Sequence[Array]) -> Curve | None:
    """Mean, lowest and highest value of each group; None where there is none."""
    if not groups:
        return None
    means = np.array([group.mean(0) for group in groups])
    low, high = (np.array([end(group[:, 1]) for group in groups]) for end in (np.min, np.max))
    return Curve(means[:, 0], means[:, 1], low, high)
