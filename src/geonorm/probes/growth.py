"""How the length of the stream grows over depth: by which law, and whether updates add up along it or across it.

Two limits are known (docs/theory.md 4): one V for all depths, whose updates point one way, gives r ~ t; weights of each
layer's own, whose updates are at right angles, give r ~ sqrt(t). A stream whose updates grow with it is exponential. In
all three a power of the length, r^order, grows by equal amounts: order 2 (sqrt), 1 (linear), 0 (exponential, log r).
So the order of a stream is the one at which the increments of r^order from site to site have no trend over depth (least
squares), and its 95 % interval holds those orders at which the trend is within Student's t of none: a test turned
round, which asks of the increments only that they scatter alike at the true order.

best: the law whose order lies in the interval, or within SAME of it, if it is one alone, its curve explains the
lengths (`schedule`'s LEAST_R2 or LEAST_SPREAD, of logarithms), and the increments of its r^order have no slope and no
bend over the logarithm of depth (`left_course`, the test of the laws of steps; from six increments on): a power that
drifts is no law, though on the whole it be near to one. "undecided" where several orders do; "none" where none does;
"constant" where the stream is no longer at its end than LEAST_GROWTH above its start. Error rates on planted streams:
docs/probe.md.

Beside it, exact and without a fit: |x'|^2 - |x|^2 = 2 <x, x'-x> + |x'-x|^2. `aligned` is the first term's share of all
growth: 0 for sqrt, 1 - 1/sites for steps along the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, isfinite, log, sqrt
from typing import Any

from .schedule import LEAST_R2, LEAST_SPREAD, SEEN, describe_fit, left_course, student

Law = dict[str, Any]
ORDERS = {"sqrt": 2.0, "linear": 1.0, "exponential": 0.0}
LOWEST, HIGHEST, CLOSE = -6.0, 12.0, 1e-4
"""The orders that are tried, and how closely one is found. An interval that meets an end has no bound there (None)."""
SAME = 0.1
"""Orders as near as this are the same law: without scatter an interval is so short that it excludes every other number.
"""
LEAST_GROWTH = 0.05
FEWEST = 4
"""Increments that a fit needs: a trend and its error take three numbers."""


def fit_growth(radii: Sequence[float]) -> Law | None:
    """The law of lengths after 0, 1, 2, ... sites: {best, fits, order, low, high, growth, sqrt, linear, exponential},
    each law with r2 and spread of the logarithms about its curve. None for fewer than five lengths, and where one is
    not positive and finite.

    fits: the laws that could be best; growth: last over first length.
    """
    if len(radii) <= FEWEST or not all(isfinite(r) and r > 0 for r in radii):
        return None
    logs = [log(r) for r in radii]
    laws = {name: describe_curve(logs, order) for name, order in ORDERS.items()}
    growth = exp(logs[-1] - logs[0])
    found: Law = {"best": "constant", "fits": [], "order": None, "low": None, "high": None, "growth": growth, **laws}
    if growth < 1 + LEAST_GROWTH:
        return found
    most = student(len(radii) - 3)
    order = level(logs)
    low, high = (border(lambda q: abs(trend(logs, q)) <= most, order, end) for end in (LOWEST, HIGHEST))
    fits = [name for name, of in ORDERS.items() if low - SAME <= of <= high + SAME]
    best = "none" if not fits else fits[0] if len(fits) == 1 else "undecided"
    if best in laws:
        curve = laws[best]["spread"] <= LEAST_SPREAD or (laws[best]["r2"] or 0.0) >= LEAST_R2
        best = best if curve and drift(logs, ORDERS[best]) >= SEEN else "none"
    return found | {
        "best": best,
        "fits": fits,
        "order": order,
        "low": low if low > LOWEST else None,
        "high": high if high < HIGHEST else None,
    }


def level(logs: Sequence[float]) -> float:
    """The order at which increments have no trend; the end of those that are tried if there is none."""
    low, high = LOWEST, HIGHEST
    if trend(logs, low) >= 0 or trend(logs, high) <= 0:
        return low if trend(logs, low) >= 0 else high
    while high - low > CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if trend(logs, middle) < 0 else (low, middle)
    return (low + high) / 2


def border(inside: Callable[[float], bool], start: float, end: float) -> float:
    """How far one comes from `start` towards `end` without leaving what is inside: by quarters, then halves of them.
    (Far from the order of a stream one increment is all there is, and no trend stands out again.)"""
    step = 0.25 if end > start else -0.25
    while inside(start + step):
        start += step
        if abs(end - start) <= 0.25:
            return end
    while abs(step) > CLOSE:
        step /= 2
        start = start + step if inside(start + step) else start
    return start


def power(logs: Sequence[float], order: float) -> list[float]:
    """(r^order - 1)/order, log r at 0, of lengths over the last, or over the first where that is larger so."""
    centre = logs[-1] if order > 0 else logs[0]
    if abs(order) < CLOSE:
        return [value - centre for value in logs]
    return [(exp(order * (value - centre)) - 1) / order for value in logs]


def trend(logs: Sequence[float], order: float) -> float:
    """Slope of the increments of r^order over depth, in its own standard errors: its sign rises with the order, which
    weighs late increments more."""
    walk = power(logs, order)
    steps = [b - a for a, b in pairwise(walk)]
    n, mean = len(steps), sum(steps) / len(steps)
    places = [i - (n - 1) / 2 for i in range(n)]
    width = sum(place**2 for place in places)
    slope = sum(place * step for place, step in zip(places, steps, strict=True)) / width
    rest = sum((step - mean - slope * place) ** 2 for place, step in zip(places, steps, strict=True))
    return slope / max(sqrt(rest / (n - 2) / width), 1e-12 * abs(mean), 1e-300)


def drift(logs: Sequence[float], order: float) -> float:
    """How often even scatter has as much of a slope and a bend as the increments of r^order (`left_course`)."""
    steps = [b - a for a, b in pairwise(power(logs, order))]
    mean = sum(steps) / len(steps)
    return left_course([(log(place), step / mean) for place, step in enumerate(steps, 1)])


def describe_curve(logs: Sequence[float], order: float) -> Law:
    """Of the curve through both ends on which r^order is linear: r2 and spread of the logarithms of length / curve."""
    walk, last = power(logs, order), len(logs) - 1
    centre = logs[-1] if order > 0 else logs[0]
    line = [walk[0] + (walk[-1] - walk[0]) * s / last for s in range(last + 1)]
    curve = [w + centre if abs(order) < CLOSE else log(1 + order * w) / order + centre for w in line]
    mean = sum(logs) / len(logs)
    rest = [value - on for value, on in zip(logs, curve, strict=True)]
    fitted = describe_fit(rest, sum((value - mean) ** 2 for value in logs))
    return {"r2": fitted["r2"], "spread": sqrt(sum(value**2 for value in rest) / len(rest))}


def growth(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """By stack, the law of the lengths of a trace's rows in their order: of `all` sites, and without those of the first
    block (`later`), which often moves a short stream by several times its length. Each with the share `aligned` of the
    growth. Over tokens but the first of each sequence, whose length may be of another order (a sink)."""
    stacks: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("radius_rest") is not None:
            stacks.setdefault(str(row.get("stack", "decoder")), []).append(row)
    return {
        stack: {"all": law_of(sites), "later": law_of([row for row in sites if row["layer"] > 0])}
        for stack, sites in stacks.items()
    }


def law_of(sites: Sequence[Mapping[str, Any]]) -> Law | None:
    law = fit_growth([*(row["radius_rest"] for row in sites), *(row["radius_after_rest"] for row in sites[-1:])])
    along, across = (sum(row[f"{name}_rest"] for row in sites) for name in ("aligned", "squared"))
    grows = law is not None and law["best"] != "constant" and along + across > 0
    return None if law is None else law | {"aligned": along / (along + across) if grows else None}
