"""From the velocity field to a path: by whole layers, or by an adaptive Runge-Kutta pair, in time or log-time.

Radii that the scheme keeps are restored after every step (a projection, which does not lower the method's order).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import exp, log1p
from typing import Literal

import torch
from torch import Tensor

from .. import sphere
from ..errors import ConfigError, GeonormError, require, unknown
from .flow import Flow

METHODS = ("layers", "adaptive")
Slope = Callable[[Tensor, float], Tensor]
Restore = Callable[[Tensor], Tensor]


def integrate(
    flow: Flow,
    x: Tensor,
    times: Sequence[float],
    *,
    method: Literal["layers", "adaptive"] = "adaptive",
    tolerance: float = 1e-8,
    log_time: bool = False,
) -> Iterator[tuple[float, Tensor]]:
    """Yield (time, state) at each of `times` (ascending, from 0 on) for the state x = flow.start(...) at time 0.

    method: layers, the network, write(h = 1) at whole times; or adaptive, Dormand-Prince 5(4). tolerance: of that pair,
    relative, per step. log_time: steps in log(1 + tau), for laws that are polynomial in time. Raises ConfigError for
    bad times or another method, GeonormError where a state is no longer finite or the velocity is not smooth.

    >>> flow = geonorm.dynamics.Flow("pre", geonorm.dynamics.Attention())
    >>> x = flow.start(geonorm.dynamics.equiangular(4, 4))
    >>> walk = geonorm.dynamics.integrate(flow, x, [1, 10])
    >>> [(time, round(geonorm.dynamics.gap(flow.tokens(x)).item(), 3)) for time, x in walk]
    [(1.0, 0.626), (10.0, 0.02)]
    """
    ordered = [0.0, *map(float, times)]
    require(all(a <= b < float("inf") for a, b in pairwise(ordered)), "times must be finite and ascend from 0 on")
    if method not in METHODS:
        raise ConfigError(unknown("method", method, METHODS))
    require(
        method != "layers" or all(time == int(time) for time in ordered),
        "method layers has whole times only: the state after so many layers",
    )
    size = None
    for begin, end in pairwise(ordered):
        if method == "layers":
            for layer in range(int(begin), int(end)):
                x = flow.layer(x, float(layer))
        elif end > begin:
            for tau, stop in pairwise([begin, *flow.breaks(begin, end), end]):
                x = flow.settle(x, tau)
                slope, restore = slope_between(flow, tau, stop, log_time), hold_radii(flow, x, tau)
                span = (log1p(tau), log1p(stop)) if log_time else (tau, stop)
                x, size = walk_adaptively(slope, restore, x, *span, size, tolerance, -3 if flow.streams > 1 else -2)
        require(torch.isfinite(x).all(), f"a particle is no longer finite at time {end:g}", GeonormError)
        yield end, x


def slope_between(flow: Flow, tau: float, stop: float, log_time: bool) -> Slope:
    """dx/ds in s = log(1 + tau) or tau. Always by the rule that acts from tau to stop, not by that before or after,
    even where exp(s) - 1 is rounded."""
    last = stop - 1e-12 * max(1.0, stop)

    def slope(x: Tensor, s: float) -> Tensor:
        if log_time:
            return exp(s) * flow.velocity(x, min(max(exp(s) - 1, tau), last))
        return flow.velocity(x, min(max(s, tau), last))

    return slope


def hold_radii(flow: Flow, x: Tensor, tau: float) -> Restore | None:
    """A function that restores the radii of x in the streams that stay on their sphere; None where none does."""
    radius, fixed = sphere.radius(x), flow.keeps_radius(tau).to(x.device)
    if not fixed.any():
        return None
    if (fixed & (radius > 0)).all():
        return lambda x: x * (radius / torch.linalg.vector_norm(x, dim=-1, keepdim=True))
    return lambda x: torch.where(fixed, sphere.safe_divide(radius, sphere.radius(x)) * x, x)


def walk_adaptively(
    slope: Slope,
    restore: Restore | None,
    x: Tensor,
    s: float,
    end: float,
    size: float | None,
    tolerance: float,
    particles: int,
) -> tuple[Tensor, float]:
    """The state at `end`, and the step size to go on with. particles: the axis of particles."""
    first = slope(x, s)
    size = size or 1e-3 * (end - s)
    while s < end:
        h = min(size, end - s)
        ahead, error, last = dormand_prince(slope, x, s, h, first)
        ratio = relative_error(error, x, tolerance, particles)
        grown = h * min(5.0, max(0.2, 0.9 * max(ratio, 1e-10) ** -0.2))
        if ratio <= 1:
            x = ahead if restore is None else restore(ahead)
            s = end if h == end - s else s + h
            if s < end:  # the slope at the end of a step is that at the beginning of the next, if nothing was restored
                first = last if restore is None else slope(x, s)
            grown = max(size, grown) if h < size else grown  # a step cut short by the stop says little
        elif not grown > 1e-14 * max(1.0, abs(s)):
            raise GeonormError(f"the step size vanished at {s:g}: the velocity is not smooth or not finite there")
        size = grown
    return x, size


NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
FOURTH = (5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)


def dormand_prince(f: Slope, x: Tensor, s: float, h: float, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(fifth-order result, its difference from the embedded fourth order, the slope there)."""
    slopes = [first]
    for node, stage in zip(NODES[1:], STAGES[1:], strict=True):
        ahead = x + h * combine(stage, slopes)
        slopes.append(f(ahead, s + node * h))
    weights = [a - b for a, b in zip((*STAGES[-1], 0.0), FOURTH, strict=True)]
    return ahead, h * combine(weights, slopes), slopes[-1]


def combine(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    total = weights[0] * slopes[0]
    for weight, slope in zip(weights[1:], slopes[1:], strict=True):
        if weight:
            total = total.add(slope, alpha=weight)
    return total


def relative_error(error: Tensor, x: Tensor, tolerance: float, particles: int) -> float:
    """Error over tolerance. What all particles share counts against their size; what tells them apart counts against
    how far apart they still are (down to rounding), so that the law of a collapse is followed to its end."""
    radius = sphere.radius(x)
    theta, err = sphere.safe_divide(x, radius), sphere.safe_divide(error, radius)

    def size(rows: Tensor) -> Tensor:
        return sphere.dot(rows, rows).mean(particles).sqrt()

    spread = size(theta - theta.mean(particles, keepdim=True))
    relative = size(err - err.mean(particles, keepdim=True))
    floor = 8 * torch.finfo(x.dtype).eps
    apart = (relative / (tolerance * spread).clamp(min=floor)).max().item()
    return max(apart, size(err).max().item() / max(tolerance, floor))
