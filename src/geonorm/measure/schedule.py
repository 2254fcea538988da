"""The schedule that a network follows without saying so: its implied step size |P_x(x'-x)|/|x| over depth, and the law
of GeoNorm's decay that it is nearest to.

With t = block + 1 of L blocks, each law has one free number, the scale alpha: harmonic alpha/t, sqrt alpha/sqrt(t),
linear alpha (L - t + 1)/L, constant alpha. All are fitted to the logarithms, where every block counts alike; on the raw
scale the first block, several times as large as the rest, decides alone. r2 = 1 - sum of squares about the law / sum of
squares about the mean, both of logarithms: the constant has 0, and a law that is worse than the mean has less than 0.
spread: root mean square of the logarithm of value / law. Beside them power: alpha t^-exponent, both numbers fitted,
with the 95 % interval low to high of the exponent (Student's t of the residuals).

best: the law with the least spread, where that is at most LEAST_SPREAD, or where the law explains LEAST_R2 of the
variance and its residuals show no trend over the later depths (`trend_p`: such a trend means another power of t, or one
that drifts); else none.
"""

from collections.abc import Iterable, Mapping
from math import exp, log, sqrt
from typing import Any

import numpy as np

from ..decay import LAWS, schedule

LEAST_R2 = 0.9
"""Among powers, harmonic then covers exponents from 0.76 to 1.46 and sqrt those from 0.38 to 0.73."""
LEAST_SPREAD = 0.1
"""10 %: the bar for steps that hardly change, so that no law explains much of their variance."""
TREND_LEVEL = 0.05
"""p below which residuals count as having a trend."""
LEAST_FREE = 3
"""Fewest degrees of freedom of the scatter about a trend; with fewer it is not tested."""
LEAST_SCATTER = 0.02
"""Relative scatter that steps are taken to have at least: to take a sine for its angle is no trend."""


def fit(points: Iterable[tuple[float, float]], depth: int) -> dict[str, Any] | None:
    """Laws of step sizes (t, value): {best, law: {alpha, r2, spread}, power}. None below 3 depths, and where a step is
    0, which no law gives."""
    known = [(float(t), float(value)) for t, value in points]
    if len({t for t, _ in known}) < 3 or min(value for _, value in known) <= 0:
        return None
    values = [log(value) for _, value in known]
    total = squares(values)
    laws: dict[str, Any] = {}
    for name in LAWS:
        rest = [value - log(schedule(name, 1.0, t, depth)) for value, (t, _) in zip(values, known, strict=True)]
        laws[name] = describe_fit(rest, total)
    best = min(LAWS, key=lambda name: float(laws[name]["spread"]))
    logs = [log(t) for t, _ in known]
    later = [(log(t), log(value / schedule(best, 1.0, t, depth))) for t, value in known if t > min(known)[0]]
    explained = (laws[best]["r2"] or 0.0) >= LEAST_R2 and trend_p(later) >= TREND_LEVEL
    fits = laws[best]["spread"] <= LEAST_SPREAD or explained
    return {"best": best if fits else "none", **laws, "power": power(logs, values, total)}


def power(logs: list[float], values: list[float], total: float) -> dict[str, Any]:
    """alpha t^-exponent through the logarithms of t and of the values."""
    from scipy.special import stdtrit

    n, centre, width = len(logs), sum(logs) / len(logs), squares(logs)
    slope = sum((a - centre) * b for a, b in zip(logs, values, strict=True)) / width
    rest = [b - slope * a for a, b in zip(logs, values, strict=True)]
    half = float(stdtrit(n - 2, 0.975)) * sqrt(squares(rest) / (n - 2) / width)
    return describe_fit(rest, total) | {"exponent": -slope, "low": -slope - half, "high": -slope + half}


def trend_p(points: list[tuple[float, float]]) -> float:
    """p of an F test that the residuals of a law have no trend, a slope and a bend, over depth: how often independent
    scatter has as much of one. points: (log t, log of value / law). F has 2 and n - 3 degrees of freedom; 1 with fewer
    than six points, which say little."""
    logs, rest = [a for a, _ in points], [b for _, b in points]
    free = len(points) - 3
    if free < LEAST_FREE:
        return 1.0
    basis, _ = np.linalg.qr(np.vander(logs, 3, increasing=True))  # the mean, a slope, a bend
    trend = float(((basis[:, 1:].T @ rest) ** 2).sum())
    scatter = max(squares(rest) - trend, free * LEAST_SCATTER**2)
    return float((1 + trend / scatter) ** (-free / 2))


def describe_fit(rest: list[float], total: float) -> dict[str, float | None]:
    """alpha, r2 and spread of a law, from the logarithms of value / law; r2 is None where all values are the same."""
    left = squares(rest)
    return {
        "alpha": exp(sum(rest) / len(rest)),
        "r2": 1 - left / total if total > 1e-24 * len(rest) else None,
        "spread": sqrt(left / len(rest)),
    }


def squares(values: list[float]) -> float:
    """Sum of squares about the mean."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def implied(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Laws of the rows of one model's trace: by stack, for each kind of site, and for the mean of each block's sites
    ('all')."""
    series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row.get("ratio") is not None:
            kinds = series.setdefault(str(row.get("stack", "decoder")), {})
            kinds.setdefault(str(row["kind"]), []).append((float(row["t"]), float(row["ratio"])))
    laws = {}
    for stack, kinds in series.items():
        every = [point for points in kinds.values() for point in points]
        blocks = {t: [value for at, value in every if at == t] for t, _ in sorted(every)}
        means = [(t, sum(values) / len(values)) for t, values in blocks.items()]
        depth = int(max(blocks))
        laws[stack] = {kind: fit(points, depth) for kind, points in [*kinds.items(), ("all", means)]}
    return laws
