"""When a run has collapsed, and by which law 1 - cos vanishes at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError

CLOCKS: dict[str, Callable[[Any], Any]] = {"exponential": lambda t: t, "polynomial": np.log, "stretched": np.sqrt}
"""The function of depth-time t = tau + 1 in which log(1 - cos) is a straight line under each law."""

LEAST_POINTS = 8
NEAR = 1e-2
"""1 - cos below which tokens count as together: a law of the end is read off there alone."""
MOST_DRIFT = 0.05
"""By what share the rate may still change on the way to its limit, for a law to be stated."""
PIECES = 4
STUDENT = 3.182
"""97.5 % point of Student's t with PIECES - 1 = 3 degrees of freedom."""
CLEAR = 2.0
"""Standard errors from which on a drift is told from noise."""
WINDOW = 100.0
"""The window of a law: two decades of 1 - cos."""
LEAST_R2 = 0.999


@dataclass(frozen=True)
class Law:
    """kind: exponential e^(-rate t) | polynomial t^(-rate) | stretched e^(-rate sqrt t) | none | early: the run is not
    at its end; t = tau + 1.

    low, high: 95 % interval of the rate from the slopes of four successive pieces of the window, so that a rate that
    still drifts shows (the residuals of a smooth curve would claim far too much), and what it drifts to. r2: of the
    straight line. drift: by what share the rate at infinite time differs from that of the window, if the slope goes on
    to drift as it does, else 0 (`limit_of`). None where there is no law.

    >>> geonorm.dynamics.Law("polynomial", rate=2.0).kind
    'polynomial'
    """

    kind: str
    rate: float | None = None
    low: float | None = None
    high: float | None = None
    r2: float | None = None
    drift: float | None = None


def series(times: Sequence[float], gap: Sequence[float]) -> tuple[Any, Any]:
    t, g = np.asarray(times, dtype=np.float64), np.asarray(gap, dtype=np.float64)
    if t.shape != g.shape or t.ndim != 1 or (np.diff(t) <= 0).any():
        raise ConfigError(f"times must ascend and be as many as gaps, got {t.shape} and {g.shape}")
    return t, g


def collapse_time(times: Sequence[float], gap: Sequence[float], eps: float = 1e-3) -> float | None:
    """First time at which 1 - cos is below eps, interpolated in its logarithm; None if it never is.

    >>> geonorm.dynamics.collapse_time([0.0, 1.0, 2.0], [1.0, 0.1, 0.01], eps=0.1**1.5)
    1.5
    """
    t, g = series(times, gap)
    below = np.nonzero(g < eps)[0]
    if not len(below):
        return None
    i = int(below[0])
    if i == 0 or g[i] <= 0:
        return float(t[i])
    share = (np.log(g[i - 1]) - np.log(eps)) / (np.log(g[i - 1]) - np.log(g[i]))
    return float(t[i - 1] + share * (t[i] - t[i - 1]))


def terminal_law(times: Sequence[float], gap: Sequence[float], floor: float = 1e-28) -> Law:
    """The law of the end of a run: a straight line of log(1 - cos) in t, log t or sqrt t, whichever fits best.

    times: simulator times; gap: 1 - cos. The window is the last two decades of 1 - cos above `floor` (rounding), at
    least 8 points. All three lines have two parameters, so the smallest residual is also the smallest AIC. none: too
    few points, a gap that falls by less than a factor 3 in the window, or no line with r2 of 0.999.

    >>> t = [float(i) for i in range(20)]
    >>> geonorm.dynamics.terminal_law(t, [0.3**i for i in t]).kind
    'exponential'
    """
    t, g = series(times, gap)
    bad = np.nonzero(~(g > floor))[0]
    end = int(bad[0]) if len(bad) else len(g)
    if end < LEAST_POINTS:
        return Law("none")
    t, g = t[:end] + 1.0, g[:end]
    high = np.nonzero(g > g[-1] * WINDOW)[0]
    begin = min(int(high[-1]) + 1 if len(high) else 0, end - LEAST_POINTS)
    t, y = t[begin:], np.log(g[begin:])
    if y[0] - y[-1] < np.log(3.0):
        return Law("none")
    residual = {kind: float(line(clock(t), y)[1]) for kind, clock in CLOCKS.items()}
    kind = min(residual, key=lambda name: residual[name])
    r2 = 1 - residual[kind] / float(((y - y.mean()) ** 2).sum())
    if r2 < LEAST_R2:
        return Law("none", r2=r2)
    clock = CLOCKS[kind](t)
    rate = -line(clock, y)[0]
    pieces = zip(np.array_split(clock, PIECES), np.array_split(y, PIECES), strict=True)
    slopes = np.array([-line(a, b)[0] for a, b in pieces])
    half = STUDENT * slopes.std(ddof=1) / PIECES**0.5
    limit = limit_of(clock, y, rate)
    low, top = min(rate, slopes.mean() - half, limit), max(rate, slopes.mean() + half, limit)
    return Law(kind, float(rate), float(low), float(top), r2, float(abs(limit / rate - 1)))


def limit_of(clock: Any, y: Any, rate: float) -> float:
    """The rate to which a slope drifts: that of y = a - rate c + k log(1 + c), where a factor (1 + c)^k stands in front
    of the law. Its slope comes to its limit as 1/c, slower than all that is known of these systems (other modes fade as
    powers of t or exponentially), so that it is a cautious guess. `rate` where it is not told from that by noise."""
    columns = np.stack((np.ones_like(clock), -clock, np.log1p(clock)), axis=1)
    fitted, *_ = np.linalg.lstsq(columns, y, rcond=None)
    left = y - columns @ fitted
    spread = float((left**2).sum()) / (len(y) - 3) * np.linalg.pinv(columns.T @ columns)[1, 1]
    return float(fitted[1]) if abs(fitted[1] - rate) > CLEAR * spread**0.5 else rate


def law_at_end(times: Sequence[float], gap: Sequence[float], floor: float = 1e-28) -> Law:
    """terminal_law of what lies below 1 - cos = 0.01, or `early` where the run has not fallen ten times further, has
    fewer than 8 points there, or its rate would still change by more than 5 % if it went on to drift as it does: until
    then it is a slope of the way to the end. What a theory foresees has no part in this."""
    t, g = series(times, gap)
    late = (g < NEAR) & (g > floor)
    if late.sum() < LEAST_POINTS or g[late].min() > NEAR / 10:
        return Law("early")
    law = terminal_law(t[late].tolist(), g[late].tolist(), floor=floor)
    return Law("early") if (law.drift or 0) > MOST_DRIFT else law


def line(a: Any, b: Any) -> tuple[float, float]:
    """(slope, sum of squared residuals) of the least-squares line of b on a."""
    centred = a - a.mean()
    slope = float((centred * (b - b.mean())).sum() / (centred**2).sum())
    return slope, float(((b - b.mean() - slope * centred) ** 2).sum())
