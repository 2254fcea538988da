"""Ladders of sizes and token budgets: loss against compute, and the effective speed-up over a baseline.

The effective speed-up of a scheme is how many times the tokens (along sizes: the compute) the baseline needs for the
same loss. It is read off the runs' own losses, between neighbouring budgets, for each seed by itself, and nothing is
extrapolated: where one loss lies outside the other's curve, only a bound is said.

The budgets of one seed share a prefix of training, so they are one observation, not several. Speed-ups and slopes are
therefore computed within a seed, whatever noise its points share, and their intervals are over seeds, with variances
that all of them moderate (moderated.py). Sizes share no prefix: there a slope goes through the differences of all
seeds at once. Pure functions of run summaries.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator

from ..runs.ladder_records import LadderPoint, SpeedupRow, TrendRow
from ..runs.records import Record, Summary
from .comparison import aggregate, choose, significant
from .moderated import Contrast, Estimate, Prior, contrast, find_wider, fit_prior, holm, moderate
from .synthesis import ZERO

SUBDIVISIONS = 256
"""Parts into which the stretch between two neighbouring points of a curve is divided to look it up."""


class LossCurve(NamedTuple):
    """Losses of one scheme and seed over ln(tokens) or ln(compute), ascending."""

    x: np.ndarray[Any, Any]
    loss: np.ndarray[Any, Any]

    def find(self, loss: float) -> float:
        """Where this loss was reached for good; -inf if the whole curve is below it, inf if it never was reached."""
        x, y = self.x, self.loss
        if len(x) > 1:
            x = np.interp(np.arange(SUBDIVISIONS * (len(x) - 1) + 1) / SUBDIVISIONS, np.arange(len(x)), x)
            y = np.exp(PchipInterpolator(self.x, np.log(self.loss))(x))
            y[::SUBDIVISIONS] = self.loss  # to the last digit
        above = np.flatnonzero(y >= loss)
        if not above.size:
            return -math.inf
        last = int(above[-1])
        if last + 1 == len(y):
            return float(x[last]) if y[last] == loss else math.inf
        share = (y[last] - loss) / (y[last] - y[last + 1])
        return float(x[last] + share * (x[last + 1] - x[last]))


class Reading(NamedTuple):
    """ln(speed-up) of one seed; with a `bound` (> or <) only its limit is known."""

    value: float
    bound: str = ""


def read_speedup(base: LossCurve, other: LossCurve, at: float) -> Reading | None:
    """ln(speed-up) at x = `at`: how many times that x the baseline needs for the loss of `other` there. Where the
    baseline's curve does not reach this loss, `other`'s curve is searched for the baseline's loss instead; where that
    fails too, there is a bound. None where one of them was not measured at `at`."""
    if at not in base.x or at not in other.x:
        return None
    needed = base.find(float(other.loss[other.x == at][0]))
    if math.isfinite(needed):
        return Reading(needed - at)
    reached = other.find(float(base.loss[base.x == at][0]))
    if math.isfinite(reached):
        return Reading(at - reached)
    most, least = max(base.x[-1] - at, at - other.x[0]), min(base.x[0] - at, at - other.x[-1])
    return Reading(float(most), ">") if needed > 0 else Reading(float(least), "<")  # > 0: the baseline never gets there


LossCurves = dict[str, dict[Any, LossCurve]]
"""By scheme and seed."""


def judge_ladder(summaries: Sequence[Summary], baseline: str) -> dict[str, Any]:
    """Return what results.json holds of a ladder besides its runs: the objects of `points` (LadderPoint), `speedups`
    (SpeedupRow) and `trends` (TrendRow).

    summaries: with `size`, `planned_tokens` and `embedding` (parameters that are only looked up).
    """
    points, counted = read_points(summaries, baseline)
    sizes = {size: [row for row in points if row.size == size] for size in dict.fromkeys(row.size for row in points)}
    last = {size: max(row.tokens or 0 for row in rows) for size, rows in sizes.items()}
    final = [row for row in points if row.tokens == last[row.size]]
    curves = {
        ("tokens", size): seed_curves(rows, counted, "tokens")
        for size, rows in sizes.items()
        if len({row.tokens for row in rows}) > 1
    }
    slopes = dict(curves)
    if len(sizes) > 1:
        curves["compute", "all"] = seed_curves(final, counted, "compute")
        slopes["parameters", "all"] = seed_curves(final, counted, "parameters")
    tables: dict[str, Sequence[Record]] = {
        "points": points,
        "speedups": read_speedups(final, curves, baseline),
        "trends": read_trends(slopes, baseline),
    }
    return {"baseline": baseline} | {name: [row.row() for row in rows] for name, rows in tables.items()}


def read_points(
    runs: Sequence[Summary], baseline: str
) -> tuple[list[LadderPoint], dict[tuple[str, int, str], dict[Any, Summary]]]:
    """A row of a comparison (comparison.aggregate) per size, budget and scheme, each at its best rate, and its runs by
    seed. Sizes and compute are those of the baseline, as a run of it that ended counted them, if any did;
    `own_parameters` are the scheme's."""
    cells: dict[tuple[str, int], list[Summary]] = {}
    parameters: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: (run.scheme != baseline, run.val_loss is None)):
        size = run.size or ""
        cells.setdefault((size, run.planned_tokens or 0), []).append(run)
        parameters[size] = parameters.get(size) or int(run.parameters or 0)
    points, counted = [], {}
    for (size, tokens), group in sorted(cells.items(), key=lambda cell: (parameters[cell[0][0]], cell[0][1])):
        embedding = group[0].embedding or 0
        place = {
            "size": size,
            "tokens": tokens,
            "parameters": parameters[size],
            "compute": 6 * max(0, parameters[size] - embedding) * tokens,
            "embedding": embedding,
        }
        for row in aggregate(group, baseline, absent=True):
            of_scheme = [run for run in group if run.scheme == row.scheme]
            counted[size, tokens, row.scheme] = {run.seed: run for run in choose(of_scheme).runs}
            points.append(LadderPoint(**vars(row) | place, own_parameters=row.parameters))
    return points, counted


def read_speedups(
    final: Sequence[LadderPoint], curves: Mapping[tuple[str, str], LossCurves], baseline: str
) -> list[SpeedupRow]:
    """The speed-up of each scheme at the largest budget of each size."""
    points = [row for row in final if row.scheme != baseline]
    readings, along = [], []
    for row in points:
        where = ("tokens", row.size) if ("tokens", row.size) in curves else ("compute", "all")
        along.append(where[0])
        if where in curves:
            place = math.log(getattr(row, where[0]))
            readings.append(read_seeds(pair(curves[where], baseline, row.scheme), place))
        else:
            readings.append(SeedReadings(problem="one size and one budget are no curve"))
    sizes = [row.size for row in points]
    speedups = estimate([reading.ln for reading in readings], along, sizes, transform=math.exp)
    return [
        SpeedupRow(
            scheme=row.scheme,
            size=row.size,
            parameters=row.parameters,
            tokens=row.tokens or 0,
            compute=row.compute,
            baseline=baseline,
            along=axis,
            **vars(reading),
            **speedup.columns("speedup"),
        )
        for row, axis, reading, speedup in zip(points, along, readings, speedups, strict=True)
    ]


def read_trends(slopes: Mapping[tuple[str, str], LossCurves], baseline: str) -> list[TrendRow]:
    """The slope of the difference of each scheme, along each axis."""
    rows: list[dict[str, Any]] = []  # the columns that are known before all rows are
    lines: list[Estimate | None] = []
    for (along, size), curves in slopes.items():
        for name in curves:
            if name != baseline:
                both = pair(curves, baseline, name)
                seeds = read_slopes(both)
                line, n = fit_line(both) if along == "parameters" else (None, len(seeds))
                lines.append(line)
                rows.append({"scheme": name, "along": along, "size": size, "seeds": seeds, "n": n})
    seeds_of, axes, sizes = ([row[column] for row in rows] for column in ("seeds", "along", "size"))
    means = estimate(seeds_of, axes, sizes, lines)
    return [TrendRow(baseline=baseline, **row, **mean.columns("slope")) for row, mean in zip(rows, means, strict=True)]


def seed_curves(
    rows: Sequence[LadderPoint], counted: Mapping[tuple[str, int, str], Mapping[Any, Summary]], axis: str
) -> LossCurves:
    """The curve of every scheme and seed through these points."""
    curves: dict[str, dict[Any, list[tuple[float, float]]]] = {}
    for row in sorted(rows, key=lambda row: float(getattr(row, axis))):
        for seed, run in counted[row.size, row.tokens or 0, row.scheme].items():
            place = math.log(getattr(row, axis)), run.val_loss or math.nan
            curves.setdefault(row.scheme, {}).setdefault(seed, []).append(place)
    return {
        scheme: {seed: LossCurve(*np.array(places).T) for seed, places in seeds.items()}
        for scheme, seeds in curves.items()
    }


def pair(curves: LossCurves, baseline: str, scheme: str) -> list[tuple[LossCurve, LossCurve]]:
    """Curves of the baseline and of a scheme that share a seed, hence the order of the data."""
    base, other = curves.get(baseline, {}), curves.get(scheme, {})
    return [(base[seed], other[seed]) for seed in sorted(other) if seed in base]


@dataclass
class SeedReadings:
    """ln(speed-up) of each seed; or a bound, or why there is neither."""

    ln: list[float] = field(default_factory=list)
    n: int = 0
    bound: str | None = None
    limit: float | None = None
    problem: str | None = None


def read_seeds(pairs: Sequence[tuple[LossCurve, LossCurve]], at: float) -> SeedReadings:
    """The speed-up of each seed at a place of its curves."""
    readings = [reading for both in pairs if (reading := read_speedup(*both, at))]
    values, bounds = [reading.value for reading in readings], {reading.bound for reading in readings} - {""}
    if not readings:
        return SeedReadings(problem="no seed has the runs that it needs")
    if len(bounds) > 1:
        return SeedReadings(
            n=len(readings), problem="outside the curves, above them for some seeds and below for others"
        )
    if bounds:
        (bound,) = bounds
        limit = math.exp(min(values) if bound == ">" else max(values))
        return SeedReadings(n=len(readings), bound=bound, limit=limit)
    return SeedReadings(values, len(readings))


def read_slopes(pairs: Sequence[tuple[LossCurve, LossCurve]]) -> list[float]:
    """Nats by which the difference to the baseline grows in a decade, of each seed that has all the places that any
    has: through fewer the slope of a curve is another one, and a short lever is mostly noise."""
    shared = [np.intersect1d(base.x, other.x) for base, other in pairs]
    most = max((len(places) for places in shared), default=0)
    return [
        float(np.polyfit(places / math.log(10), differences_at(*both, places), 1)[0])
        for both, places in zip(pairs, shared, strict=True)
        if len(places) == most > 1
    ]


def differences_at(base: LossCurve, other: LossCurve, shared: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(other.loss[np.isin(other.x, shared)] - base.loss[np.isin(base.x, shared)])


def fit_line(pairs: Sequence[tuple[LossCurve, LossCurve]]) -> tuple[Estimate | None, int]:
    """The slope of one line through the differences of all seeds, with n - 2 degrees of freedom, and their number n;
    None where fewer than three, or one place, leave nothing to judge by."""
    shared = [np.intersect1d(base.x, other.x) for base, other in pairs]
    x = np.concatenate([np.empty(0), *shared]) / math.log(10)
    y = np.concatenate(
        [np.empty(0), *(differences_at(*both, places) for both, places in zip(pairs, shared, strict=True))]
    )
    if len(x) < 3 or np.ptp(x) == 0:
        return None, len(x)
    (steep, _), spread = np.polyfit(x, y, 1, cov=True)
    return Estimate(float(steep), float(spread[0, 0]), float(len(x) - 2)), len(x)


class SeedEstimate(NamedTuple):
    """A mean over seeds with its 95 % interval, p and Holm's p; None where there is no seed, or no spread to judge by.
    `scatter`: how many times as far its seeds scatter as those of the other rows, where an F test sees that."""

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    scatter: float | None

    def columns(self, name: str) -> dict[str, Any]:
        """By the names of a row's columns."""
        return {name if key == "value" else f"{name}_{key}": value for key, value in self._asdict().items()}


def estimate(
    samples: Sequence[Sequence[float]],
    along: Sequence[str],
    sizes: Sequence[str],
    lines: Sequence[Estimate | None] | None = None,
    transform: Callable[[float], float] = float,
) -> list[SeedEstimate]:
    """The mean over seeds of each row, under variances that those of all rows along the same axis moderate. A row with
    a line of its own has that instead. transform: of what is returned, such as exp of a logarithm."""
    spreads = {place: float(np.var(values, ddof=1)) for place, values in enumerate(samples) if len(values) > 1}
    priors, scatter = {}, dict[int, tuple[float, float] | None]()
    for axis in set(along):
        places = [place for place in spreads if along[place] == axis]
        dofs, variances = [len(samples[place]) - 1 for place in places], [spreads[place] for place in places]
        priors[axis] = fit_prior(variances, dofs, [sizes[place] for place in places])
        scatter |= zip(places, find_wider(variances, dofs), strict=True)
    rows = zip(samples, lines or [None] * len(samples), along, strict=True)
    means = [mean_over_seeds(values, line, priors[axis]) for values, line, axis in rows]
    adjusted = holm([interval and interval.p for _, interval in means])
    estimates = []
    for place, (middle, interval) in enumerate(means):
        value = None if middle is None else transform(middle)
        low, high, p = (transform(interval.low), transform(interval.high), interval.p) if interval else [None] * 3
        wider = None if lines and lines[place] else scatter.get(place)
        times = wider[0] if wider is not None and significant(wider[1]) else None
        estimates.append(SeedEstimate(value, low, high, p, adjusted[place], times))
    return estimates


def mean_over_seeds(
    values: Sequence[float], line: Estimate | None, prior: Prior | None
) -> tuple[float | None, Contrast | None]:
    """The mean of a row with its interval, or those of its line; None for what its seeds do not say."""
    n = len(values)
    if line:
        return line.value, contrast(line, ZERO, line.df)
    if n == 0:
        return None, None
    variance, df = (float(np.var(values, ddof=1)), n - 1.0) if n > 1 else (0.0, 0.0)
    if prior:
        variance, df = moderate(variance, df, prior)
    mean = float(np.mean(values))
    return mean, contrast(Estimate(mean, variance / n, df), ZERO) if df > 0 else None
