"""Ladders of sizes and token budgets: loss against compute, and the effective speed-up over a baseline.

The effective speed-up of a scheme is how many times the tokens (along sizes: the compute) the baseline needs for the
same loss. It is read off the runs' own losses, between neighbouring budgets, for each seed by itself, and nothing is
extrapolated: where one loss lies outside the other's curve, only a bound is said.

The budgets of one seed are cool-downs of one trunk, so they are one observation, not several. Speed-ups and slopes are
therefore computed within a seed, whatever noise its points share, and their intervals are over seeds, with variances
that all of them moderate (significance.py). Sizes share no trunk: there a slope goes through the differences of all
seeds at once. Fits describe curves and decide nothing. Pure functions of run summaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import minimize_scalar

from .comparison import Row, Summary, aggregate, choose, paired_interval, significant
from .moderated import Estimate, contrast, find_wider, fit_prior, holm, moderate

POINTS = 4
"""Different budgets that a fit of E + A x^-a needs: one more than it has unknowns."""
GRID = 256
"""Places between neighbouring points of a curve at which it is looked up."""
ZERO = Estimate(0.0, 0.0, 1.0)
EXPONENTS = (0.02, 2.0)
"""Limits of a; a fit that ends at one of them has not found it."""


class Course(NamedTuple):
    """Losses of one scheme and seed over ln(tokens) or ln(compute), ascending, and the speed at each place."""

    x: np.ndarray[Any, Any]
    loss: np.ndarray[Any, Any]
    speed: np.ndarray[Any, Any]
    """Tokens per second."""

    def find(self, loss: float) -> float:
        """Where this loss was reached for good; -inf if all of the curve is below it, inf if it never was."""
        x, y = self.x, self.loss
        if len(x) > 1:
            x = np.interp(np.arange(GRID * (len(x) - 1) + 1) / GRID, np.arange(len(x)), x)
            y = np.exp(PchipInterpolator(self.x, np.log(self.loss))(x))
            y[::GRID] = self.loss  # to the last digit
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


def read_speedup(base: Course, other: Course, at: float) -> Reading | None:
    """ln of how many times the x of `other` at the place `at` the baseline needs for the same loss. Where that lies
    outside the baseline's curve: for the loss of the baseline at `at`, on the curve of `other`. None where one of them
    was not measured at `at`."""
    if at not in base.x or at not in other.x:
        return None
    needed = base.find(float(other.loss[other.x == at][0]))
    if math.isfinite(needed):
        return Reading(needed - at)
    reached = other.find(float(base.loss[base.x == at][0]))
    if math.isfinite(reached):
        return Reading(at - reached)
    if needed > 0:  # the baseline never gets there
        return Reading(float(max(base.x[-1] - at, at - other.x[0])), ">")
    return Reading(float(min(base.x[0] - at, at - other.x[-1])), "<")


def fit_law(x: Sequence[float], losses: Sequence[float]) -> dict[str, Any]:
    """loss = E + A x^-a by least squares, x in units of its geometric mean; or a `problem` in words."""
    places = len(set(x))
    if places < POINTS:
        return {"problem": f"E + A x^-a has three unknowns: it needs {POINTS} different places, and has {places}"}
    scale = math.exp(float(np.mean(np.log(x))))
    z, y = np.log(np.array(x) / scale), np.array(losses)

    def solve(log_a: float) -> tuple[float, Any]:
        design = np.stack([np.ones_like(z), np.exp(-math.exp(log_a) * z)], axis=1)
        found, *_ = np.linalg.lstsq(design, y, rcond=None)
        return float(np.sum((y - design @ found) ** 2)), found

    low, high = (math.log(end) for end in EXPONENTS)
    best = minimize_scalar(lambda log_a: solve(log_a)[0], bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    error, (floor, slope) = solve(best.x)
    if min(best.x - low, high - best.x) < 1e-3 or slope <= 0 or floor < 0:
        return {"problem": "the losses do not bend as E + A x^-a does: E and a cannot be told apart"}
    rms = math.sqrt(error / len(y))
    return {"E": float(floor), "A": float(slope), "a": math.exp(best.x), "scale": scale, "rms": rms, "problem": None}


def jackknife(courses: Mapping[Any, Course]) -> Row:
    """The fit through all seeds, and the 95 % intervals of E and a by leaving out one seed, with all its points, at a
    time; none with fewer than three seeds."""

    def fit(kept: Sequence[Course]) -> Row:
        places = sorted({float(x) for course in kept for x in course.x})
        means = [float(np.mean([c.loss[c.x == x][0] for c in kept if x in c.x])) for x in places]
        return fit_law([math.exp(x) for x in places], means) | {"points": len(places)}

    whole = fit(list(courses.values()))
    for name in ("E", "a"):
        others = [fit([c for seed, c in courses.items() if seed != left]).get(name) for left in courses]
        known = [value for value in others if value is not None]
        n = len(courses)
        if n > 2 and len(known) == n and name in whole:  # pseudo-values, as if they were one observation a seed
            interval = paired_interval([n * whole[name] - (n - 1) * value for value in known])
            half = (interval.high or 0.0) - interval.mean
            whole |= {f"{name}_low": whole[name] - half, f"{name}_high": whole[name] + half}
    return whole


Courses = dict[str, dict[Any, Course]]
"""By scheme and seed."""


def judge_ladder(runs: Sequence[Summary], baseline: str) -> dict[str, Any]:
    """What results.json holds of a ladder besides its runs: `points`, `speedups`, `trends` and `fits`, rows each.

    runs: summaries with `size`, `planned_tokens` and `embedding` (parameters that are only looked up).
    """
    points, counted = read_points(runs, baseline)
    sizes = {size: [row for row in points if row["size"] == size] for size in dict.fromkeys(r["size"] for r in points)}
    last = {size: max(row["tokens"] for row in rows) for size, rows in sizes.items()}
    final = [row for row in points if row["tokens"] == last[row["size"]]]
    curves = {("tokens", size): draw(rows, counted, "tokens") for size, rows in sizes.items() if several(rows)}
    slopes = dict(curves)
    if len(sizes) > 1:
        curves["compute", "all"] = draw(final, counted, "compute")
        slopes["parameters", "all"] = draw(final, counted, "parameters")
    speedups = []
    for row in final:
        where = ("tokens", row["size"]) if ("tokens", row["size"]) in curves else ("compute", "all")
        if row["scheme"] != baseline:
            kept = {key: row[key] for key in ("scheme", "size", "parameters", "tokens", "compute")}
            pairs = pair(curves.get(where, {}), baseline, row["scheme"])
            read = read_seeds(pairs, math.log(row[where[0]])) if where in curves else NO_CURVE
            speedups.append({**kept, "baseline": baseline, "along": where[0], **read})
    judge(speedups, "ln", "speedup", math.exp)
    judge(speedups, "ln_wall", "wall", math.exp)
    trends = []
    for (along, size), courses in slopes.items():
        for scheme in [name for name in courses if name != baseline]:
            pairs = pair(courses, baseline, scheme)
            about = {"scheme": scheme, "baseline": baseline, "along": along, "size": size}
            found = read_slopes(pairs)
            line, n = fit_line(pairs) if along == "parameters" else (None, len(found))
            trends.append({**about, "seeds": found, "n": n, "line": line})
    judge(trends, "seeds", "slope", float)
    fits = [
        {"scheme": scheme, "along": along, "size": size, **jackknife(courses[scheme])}
        for (along, size), courses in curves.items()
        for scheme in courses
    ]
    return {"baseline": baseline, "points": points, "speedups": speedups, "trends": trends, "fits": fits}


def read_points(runs: Sequence[Summary], baseline: str) -> tuple[list[Row], dict[Any, dict[Any, Summary]]]:
    """A row of a comparison (statistics.aggregate) per size, budget and scheme, each at its best rate, and its runs by
    seed. Sizes and compute are those of the baseline, as a run of it that ended counted them, if any did;
    `own_parameters` are the scheme's."""
    cells: dict[tuple[str, int], list[Summary]] = {}
    parameters: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: (run["scheme"] != baseline, run["val_loss"] is None)):
        cells.setdefault((run["size"], run["planned_tokens"]), []).append(run)
        parameters[run["size"]] = parameters.get(run["size"]) or int(run["parameters"] or 0)
    points, counted = [], {}
    for (size, tokens), group in sorted(cells.items(), key=lambda cell: (parameters[cell[0][0]], cell[0][1])):
        compute = 6 * max(0, parameters[size] - group[0]["embedding"]) * tokens
        about = {"size": size, "tokens": tokens, "parameters": parameters[size], "compute": compute}
        about["embedding"] = group[0]["embedding"]
        for row in aggregate(group, baseline, absent=True):
            own = [run for run in group if run["scheme"] == row["scheme"]]
            counted[size, tokens, row["scheme"]] = {run["seed"]: run for run in choose(own).runs}
            points.append({**row, **about, "own_parameters": row["parameters"]})
    return points, counted


def several(rows: Sequence[Row]) -> bool:
    """Whether these points of a size have more than one budget."""
    return len({row["tokens"] for row in rows}) > 1


def draw(rows: Sequence[Row], counted: Mapping[Any, Mapping[Any, Summary]], axis: str) -> Courses:
    """The curve of every scheme and seed through these points."""
    found: dict[str, dict[Any, list[tuple[float, float, float]]]] = {}
    for row in sorted(rows, key=lambda row: row[axis]):
        for seed, run in counted[row["size"], row["tokens"], row["scheme"]].items():
            place = math.log(row[axis]), run["val_loss"], run.get("tokens_per_second") or math.nan
            found.setdefault(row["scheme"], {}).setdefault(seed, []).append(place)
    return {
        scheme: {seed: Course(*np.array(places).T) for seed, places in seeds.items()} for scheme, seeds in found.items()
    }


def pair(courses: Courses, baseline: str, scheme: str) -> list[tuple[Course, Course]]:
    """Curves of the baseline and of a scheme that share a seed, hence the order of the data."""
    base, other = courses.get(baseline, {}), courses.get(scheme, {})
    return [(base[seed], other[seed]) for seed in sorted(other) if seed in base]


UNREAD: Row = {"ln": [], "ln_wall": [], "n": 0, "bound": None, "limit": None, "problem": None}
NO_CURVE = UNREAD | {"problem": "one size and one budget are no curve"}


def read_seeds(pairs: Sequence[tuple[Course, Course]], at: float) -> Row:
    """ln(speed-up) of each seed, in tokens and in wall time at the measured speeds; or a bound, or why there is
    neither."""
    read = [(reading, *both) for both in pairs if (reading := read_speedup(*both, at))]
    told = UNREAD | {"n": len(read)}
    values, bounds = [reading.value for reading, *_ in read], {reading.bound for reading, *_ in read} - {""}
    if not read:
        return told | {"problem": "no seed has the runs that it needs"}
    if len(bounds) > 1:
        return told | {"problem": "outside the curves, above them for some seeds and below for others"}
    if bounds:
        (bound,) = bounds
        return told | {"bound": bound, "limit": math.exp(min(values) if bound == ">" else max(values))}
    costs = [math.log(float((other.speed[other.x == at] / base.speed[base.x == at])[0])) for _, base, other in read]
    wall = [value + cost for value, cost in zip(values, costs, strict=True)]
    return told | {"ln": values, "ln_wall": wall if all(map(math.isfinite, wall)) else []}


def read_slopes(pairs: Sequence[tuple[Course, Course]]) -> list[float]:
    """Nats by which the difference to the baseline grows in a decade, of each seed that has all the places that any
    has: through fewer the slope of a curve is another one, and a short lever is mostly noise."""
    shared = [np.intersect1d(base.x, other.x) for base, other in pairs]
    most = max((len(places) for places in shared), default=0)
    return [slope(*both, places) for both, places in zip(pairs, shared, strict=True) if len(places) == most > 1]


def slope(base: Course, other: Course, shared: np.ndarray[Any, Any]) -> float:
    return float(np.polyfit(shared / math.log(10), gaps(base, other, shared), 1)[0])


def gaps(base: Course, other: Course, shared: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(other.loss[np.isin(other.x, shared)] - base.loss[np.isin(base.x, shared)])


def fit_line(pairs: Sequence[tuple[Course, Course]]) -> tuple[Estimate | None, int]:
    """The slope of one line through the differences of all seeds, with n - 2 degrees of freedom, and their number n;
    None where fewer than three, or one place, leave nothing to judge by."""
    shared = [np.intersect1d(base.x, other.x) for base, other in pairs]
    x = np.concatenate([np.empty(0), *shared]) / math.log(10)
    y = np.concatenate([np.empty(0), *(gaps(*both, places) for both, places in zip(pairs, shared, strict=True))])
    if len(x) < 3 or np.ptp(x) == 0:
        return None, len(x)
    spread = float(np.sum((x - x.mean()) ** 2))
    steep = float((x - x.mean()) @ y) / spread
    rest = y - y.mean() - steep * (x - x.mean())
    return Estimate(steep, float(rest @ rest) / (len(x) - 2) / spread, float(len(x) - 2)), len(x)


def judge(rows: Sequence[Row], samples: str, name: str, shown: Callable[[float], float]) -> None:
    """Adds to each row the mean over seeds of its `samples`, with a 95 % interval under variances that those of all
    rows along the same axis moderate, p and Holm's p of its being 0; None where there is no seed, or no spread to judge
    by. `_scatter` is how many times as far its seeds scatter as those of these rows, where an F test sees that. A row
    with a `line` of its own has that instead, which is taken out."""
    spreads = {place: float(np.var(row[samples], ddof=1)) for place, row in enumerate(rows) if len(row[samples]) > 1}
    priors, scatter = {}, dict[int, tuple[float, float] | None]()
    for along in {row["along"] for row in rows}:
        own = [place for place in spreads if rows[place]["along"] == along]
        dofs, sizes = [len(rows[place][samples]) - 1 for place in own], [rows[place]["size"] for place in own]
        variances = [spreads[place] for place in own]
        priors[along] = fit_prior(variances, dofs, sizes)
        scatter |= zip(own, find_wider(variances, dofs), strict=True)
    for place, row in enumerate(rows):
        prior = priors[row["along"]]
        n = len(row[samples])
        variance, df = spreads.get(place, 0.0), float(n - 1)
        if prior and n:
            variance, df = moderate(variance, df, prior)
        mean = float(np.mean(row[samples])) if n else None
        found = contrast(Estimate(mean, variance / n, df), ZERO) if mean is not None and df > 0 else None
        if line := row.pop("line", None):
            mean, found = line.value, contrast(line, ZERO, line.df)
        row[name] = None if mean is None else shown(mean)
        row |= {f"{name}_{end}": shown(getattr(found, end)) if found else None for end in ("low", "high")}
        row[f"{name}_p"] = found.p if found else None
        wider = scatter.get(place) if line is None else None
        row[f"{name}_scatter"] = wider[0] if wider and significant(wider[1]) else None
    for row, p in zip(rows, holm([row[f"{name}_p"] for row in rows]), strict=True):
        row[f"{name}_p_holm"] = p
