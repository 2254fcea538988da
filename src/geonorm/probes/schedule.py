"""The schedule that a network follows without saying so: its implied step size |P_x(x'-x)|/|x| over depth, and the law
of GeoNorm's decay that it is nearest to.

With t = block + 1 of L blocks, each law has one free number, the scale alpha, and is fitted by least squares:
harmonic alpha/t, sqrt alpha/sqrt(t), linear alpha (L - t + 1)/L, constant alpha. R^2 = 1 - sum of squares about the law
/ sum of squares about the mean: the constant has 0, and a law that is worse than the mean has less than 0. Beside them
power: alpha t^-p with both numbers fitted to the logarithms, its R^2 of the values themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import exp, log, sqrt
from typing import Any

LAWS: dict[str, Callable[[float, int], float]] = {
    "harmonic": lambda t, depth: 1 / t,
    "sqrt": lambda t, depth: 1 / sqrt(t),
    "linear": lambda t, depth: (depth - t + 1) / depth,
    "constant": lambda t, depth: 1.0,
}


def fit(points: Iterable[tuple[float, float]], depth: int) -> dict[str, Any] | None:
    """Laws of step sizes (t, value): {law: {alpha, r2}}, the best of the four by R^2; None below 3 depths."""
    known = [(t, value) for t, value in points]
    if len({t for t, _ in known}) < 3:
        return None
    values = [value for _, value in known]
    mean = sum(values) / len(values)
    total = sum((value - mean) ** 2 for value in values)
    laws: dict[str, Any] = {}
    for name, law in LAWS.items():
        shape = [law(t, depth) for t, _ in known]
        alpha = sum(s * v for s, v in zip(shape, values, strict=True)) / sum(s * s for s in shape)
        laws[name] = {"alpha": alpha, "r2": r2(values, [alpha * s for s in shape], total)}
    best = max(laws, key=lambda name: laws[name]["r2"] if laws[name]["r2"] is not None else -1.0)
    found = {"best": best if total > 1e-24 * mean * mean else "constant", **laws}
    if min(values) > 0:
        logs = [(log(t), log(value)) for t, value in known]
        x, y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
        slope = sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs)
        scale = exp(y - slope * x)
        fitted = [scale * t**slope for t, _ in known]
        found["power"] = {"alpha": scale, "exponent": -slope, "r2": r2(values, fitted, total)}
    return found


def r2(values: list[float], fitted: list[float], total: float) -> float | None:
    """None where all values are the same."""
    if total == 0:
        return None
    return 1 - sum((v - f) ** 2 for v, f in zip(values, fitted, strict=True)) / total


def implied(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Laws of the rows of one model's trace: by stack, for each kind of site, and for the mean of each block's sites
    ('all')."""
    series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row.get("ratio") is not None:
            kinds = series.setdefault(str(row.get("stack", "decoder")), {})
            kinds.setdefault(str(row["kind"]), []).append((float(row["t"]), float(row["ratio"])))
    found = {}
    for stack, kinds in series.items():
        every = [point for points in kinds.values() for point in points]
        blocks = {t: [value for at, value in every if at == t] for t, _ in sorted(every)}
        means = [(t, sum(values) / len(values)) for t, values in blocks.items()]
        depth = int(max(blocks))
        found[stack] = {kind: fit(points, depth) for kind, points in [*kinds.items(), ("all", means)]}
    return found
