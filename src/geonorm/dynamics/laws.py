"""What is measured on particles: how far they have collapsed, how fast, and by which law 1 - cos vanishes at the end.

theta: unit directions (..., n, dim) as Flow.tokens gives them; results have the leading shape. 1 - cos is never
computed by subtraction: mean_{i != j} (1 - cos) = n/(n-1) mean_i |theta_i - mean theta|^2 resolves 1e-28 in fp64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sin
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import sphere
from .flow import Flow
from .rates import slope

CLOCKS: dict[str, Callable[[Any], Any]] = {"exponential": lambda t: t, "polynomial": np.log, "stretched": np.sqrt}
"""The function of depth-time t = tau + 1 in which log(1 - cos) is a straight line under each law."""

LEAST_POINTS = 8
NEAR = 1e-2
"""1 - cos below which tokens count as together: a terminal law is fitted there alone."""
MOST_DRIFT = 0.05
"""Relative difference of the rate from its limit, up to which a law is stated."""
PIECES = 4
STUDENT = 3.182
"""97.5 % point of Student's t with PIECES - 1 = 3 degrees of freedom."""
CLEAR = 2.0
"""Standard errors beyond which a drift is no noise."""
WINDOW = 100.0
"""Factor of 1 - cos over which a law is fitted: two decades."""
LEAST_R2 = 0.999


def variance(theta: Tensor) -> Tensor:
    """(1/n) sum |theta_i - mean theta|^2, shape (...).

    >>> geonorm.dynamics.variance(torch.eye(2))
    tensor(0.5000)
    """
    return (theta - theta.mean(-2, keepdim=True)).square().sum(-1).mean(-1)


def gap(theta: Tensor) -> Tensor:
    """1 - mean cosine between different particles, shape (...); 0 for a single particle.

    >>> geonorm.dynamics.gap(torch.eye(2))
    tensor(1.)
    """
    n = theta.shape[-2]
    return variance(theta) * (n / max(1, n - 1))


def order_parameter(theta: Tensor) -> Tensor:
    """|mean theta|: 1 when all particles are together, about 1/sqrt(n) for uniform ones.

    >>> geonorm.dynamics.order_parameter(torch.eye(4))
    tensor(0.5000)
    """
    return sphere.radius(theta.mean(-2)).squeeze(-1)


def radius_cv(radius: Tensor) -> Tensor:
    """Standard deviation over mean of the radii (..., n), shape (...).

    >>> geonorm.dynamics.radius_cv(torch.tensor([1.0, 3.0]))
    tensor(0.5000)
    """
    return radius.std(-1, correction=0) / radius.mean(-1)


def cosine_rate(flow: Flow, x: Tensor, tau: float = 0.0) -> Tensor:
    """Derive the mean cosine by tau, exact from the velocity field, shape (...).

    >>> flow = geonorm.dynamics.Flow("post", geonorm.dynamics.Attention(beta=0.0))
    >>> geonorm.dynamics.cosine_rate(flow, flow.start(torch.eye(2)))  # 2 / (e^beta + n - 1)
    tensor(1.)
    """
    velocity, settled = flow.velocity(x, tau), flow.settle(x, tau)
    # a scheme that takes over puts tokens on its sphere, and its velocity is theirs there
    x = x if torch.allclose(x, settled, rtol=8 * torch.finfo(x.dtype).eps, atol=0) else settled
    theta, moving = slope(lambda h: flow.tokens(x + h * velocity), x)
    # <theta_i', theta_i> = 0, and sum_i over the difference from the mean is accurate near collapse
    away = theta - theta.mean(-2, keepdim=True)
    return -2 * (moving * away).sum((-1, -2)) / max(1, theta.shape[-2] - 1)


def clusters(theta: Tensor, angle: float = 0.1) -> Tensor:
    """Count the clusters, int64 (...), by single linkage: two particles are linked when the angle between them is at
    most `angle` radians, from 1e-7 (rounding of cosines in fp64) to pi. Memory n^2.

    >>> geonorm.dynamics.clusters(torch.tensor([[1.0, 0.0], [0.999, 0.04], [0.0, 1.0]]))
    tensor(2)
    """
    systems = theta.detach().double().reshape(-1, *theta.shape[-2:])
    counts = [count_components(system, 2 * sin(angle / 2)) for system in systems]
    return torch.tensor(counts, device=theta.device).view(theta.shape[:-2])


def count_components(points: Tensor, chord: float) -> int:
    """The number of connected components of points (n, dim) that are linked up to a distance."""
    from scipy.sparse.csgraph import connected_components

    away = points - points.mean(0)  # chords of differences: exact also where all are together
    square = away.square().sum(-1)
    near = square[:, None] + square - 2 * away @ away.mT <= chord**2
    return int(connected_components(near.cpu().numpy())[0])


@dataclass(frozen=True)
class Law:
    """kind: exponential e^(-rate t) | polynomial t^(-rate) | stretched e^(-rate sqrt t) | none | early: the run is not
    at its end; t = tau + 1.

    low, high: 95 % interval of the rate from the slopes of four successive pieces of the window, so that a rate that
    still drifts shows (the residuals of a smooth curve would claim far too much), and the limit to which it drifts.
    None where there is no law.

    >>> geonorm.dynamics.Law("polynomial", rate=2.0).kind
    'polynomial'
    """

    kind: str
    rate: float | None = None
    low: float | None = None
    high: float | None = None


def collapse_time(times: Sequence[float], gap: Sequence[float], eps: float = 1e-3) -> float | None:
    """First of the ascending times at which 1 - cos is below eps, interpolated in its logarithm; None if it never is.

    >>> geonorm.dynamics.collapse_time([0.0, 1.0, 2.0], [1.0, 0.1, 0.01], eps=0.1**1.5)
    1.5
    """
    t, g = np.asarray((times, gap), dtype=np.float64)
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

    times: of the simulator, ascending; gap: 1 - cos. The window is the last two decades of 1 - cos, at least 8 points,
    of what lies between 0.01 and `floor` (rounding). All three lines have two parameters, so the smallest residual is
    also the smallest AIC. early: the run has not fallen to 0.001, has fewer than 8 points there, or its rate would
    still change by more than 5 % if it went on to drift as it does: until then it is a slope of the way to the end.
    none: a gap that falls by less than a factor 3 in the window, or no line with r2 of 0.999. No theory has
    a part in this.

    >>> t = [float(i) for i in range(20)]
    >>> geonorm.dynamics.terminal_law(t, [0.3**i for i in t]).kind
    'exponential'
    """
    t, g = np.asarray((times, gap), dtype=np.float64)
    late = (g < NEAR) & (g > floor)
    t, g = t[late] + 1.0, g[late]
    if len(g) < LEAST_POINTS or g.min() > NEAR / 10:
        return Law("early")
    high = np.nonzero(g > g[-1] * WINDOW)[0]
    begin = min(int(high[-1]) + 1 if len(high) else 0, len(g) - LEAST_POINTS)
    t, y = t[begin:], np.log(g[begin:])
    residual = {kind: float(line(clock(t), y)[1]) for kind, clock in CLOCKS.items()}
    kind = min(residual, key=lambda name: residual[name])
    r2 = 1 - residual[kind] / float(((y - y.mean()) ** 2).sum())
    if y[0] - y[-1] < np.log(3.0) or r2 < LEAST_R2:
        return Law("none")
    clock = CLOCKS[kind](t)
    rate = -line(clock, y)[0]
    pieces = zip(np.array_split(clock, PIECES), np.array_split(y, PIECES), strict=True)
    slopes = np.array([-line(a, b)[0] for a, b in pieces])
    half = STUDENT * slopes.std(ddof=1) / PIECES**0.5
    limit = limit_of(clock, y, rate)
    if abs(limit / rate - 1) > MOST_DRIFT:
        return Law("early")
    low, top = min(rate, slopes.mean() - half, limit), max(rate, slopes.mean() + half, limit)
    return Law(kind, float(rate), float(low), float(top))


def limit_of(clock: Any, y: Any, rate: float) -> float:
    """The limit of a slope that drifts: `rate` in a fit of y = a - rate c + k log(1 + c), a law with a factor (1 + c)^k
    in front. This slope approaches its limit like 1/c, as slowly as the slowest drift known in these systems (whole
    layers of `sqrt`; other modes fade as powers of t or exponentially), so that the guess is cautious. The `rate` that
    was given, where noise explains the difference."""
    columns = np.stack((np.ones_like(clock), -clock, np.log1p(clock)), axis=1)
    fitted, *_ = np.linalg.lstsq(columns, y, rcond=None)
    left = y - columns @ fitted
    spread = float((left**2).sum()) / (len(y) - 3) * np.linalg.pinv(columns.T @ columns)[1, 1]
    return float(fitted[1]) if abs(fitted[1] - rate) > CLEAR * spread**0.5 else rate


def line(a: Any, b: Any) -> tuple[float, float]:
    """(slope, sum of squared residuals) of the least-squares line of b on a."""
    centred = a - a.mean()
    slope = float((centred * (b - b.mean())).sum() / (centred**2).sum())
    return slope, float(((b - b.mean() - slope * centred) ** 2).sum())
