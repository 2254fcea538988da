"""From the velocity field to a path: the network, Euler, Runge-Kutta 4 and an adaptive pair, in time or log-time.

Radii that the scheme keeps are restored after every step (a projection, which leaves the order of the method as it is).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, exp, isfinite, log1p

import torch
from torch import Tensor

from .. import sphere
from ..errors import ConfigError, GeonormError, unknown
from .flow import Flow

METHODS = ("layers", "euler", "rk4", "adaptive")
"""layers: the network, write(h = 1) at whole times. euler, rk4: fixed step. adaptive: Dormand-Prince 5(4)."""

Slope = Callable[[Tensor, float], Tensor]


def integrate(
    flow: Flow,
    x: Tensor,
    times: Sequence[float],
    *,
    method: str = "adaptive",
    step: float = 0.1,
    tolerance: float = 1e-8,
    log_time: bool = False,
    max_steps: int = 1_000_000,
) -> Iterator[tuple[float, Tensor]]:
    """Yields (time, state) at each of `times` (ascending, from 0 on) for the state x = flow.start(...) at time 0.

    step: largest step of euler and rk4 (in log-time: of log(1 + tau)). tolerance: of the adaptive pair, relative, per
    step. log_time: steps are even in log(1 + tau), for laws that are polynomial in time. Raises ConfigError for a bad
    method or times, GeonormError where max_steps do not suffice or a state is no longer finite.
    """
    if method not in METHODS:
        raise ConfigError(unknown("method", method, METHODS))
    ordered = [float(t) for t in times]
    if not all(isfinite(t) for t in ordered):
        raise ConfigError("times must be finite")
    if any(b < a for a, b in pairwise(ordered)) or (ordered and ordered[0] < 0):
        raise ConfigError("times must ascend from 0 on")
    if step <= 0 or tolerance <= 0:
        raise ConfigError("step and tolerance must be positive")
    if method == "layers":
        if any(t != int(t) for t in ordered):
            raise ConfigError("method layers knows whole times only: the state after so many layers")
        done = 0
        for time in ordered:
            while done < time:
                x = flow.layer(x, float(done))
                done += 1
            check_finite(x, time)
            yield time, x
        return
    walker = Walker(flow, x, method, step, tolerance, log_time, max_steps)
    for time in ordered:
        walker.go(time)
        yield time, walker.x


def check_finite(x: Tensor, time: float) -> None:
    if not torch.isfinite(x).all():
        raise GeonormError(f"a particle is no longer finite at time {time:g}")


@dataclass
class Walker:
    """A state on its way: it goes from stop to stop and never steps across a time at which the velocity jumps."""

    flow: Flow
    x: Tensor
    method: str
    step: float
    tolerance: float
    log_time: bool
    max_steps: int
    tau: float = 0.0
    taken: int = 0
    size: float | None = None

    def go(self, time: float) -> None:
        for stop in [*self.flow.breaks(self.tau, time), time]:
            if stop > self.tau:
                self.segment(stop)

    def segment(self, stop: float) -> None:
        """From tau to stop under one rule: settles on its sphere first, restores the radii it keeps."""
        self.x = self.flow.settle(self.x, self.tau)
        radius = sphere.radius(self.x)
        kept = self.flow.kept(self.tau, self.x)
        some, every = bool(kept.any()), bool((kept & (radius > 0)).all())

        def restore(x: Tensor) -> Tensor:
            if every:
                return x * (radius / torch.linalg.vector_norm(x, dim=-1, keepdim=True))
            return x if not some else torch.where(kept, sphere.safe_divide(radius, sphere.radius(x)) * x, x)

        # the rule of this segment, not of its neighbours, also where exp(s) - 1 rounds
        first, last = self.tau, stop - 1e-12 * max(1.0, stop)

        def slope(x: Tensor, s: float) -> Tensor:
            if self.log_time:
                return exp(s) * self.flow.velocity(x, min(max(exp(s) - 1, first), last))
            return self.flow.velocity(x, min(max(s, first), last))

        begin, end = (log1p(self.tau), log1p(stop)) if self.log_time else (self.tau, stop)
        if self.method == "adaptive":
            self.adaptive(slope, restore, begin, end, free=not some)
        else:
            count = max(1, ceil((end - begin) / self.step - 1e-9))
            advance = {"euler": euler, "rk4": rk4}[self.method]
            for i in range(count):
                h = (end - begin) / count
                self.x = restore(advance(slope, self.x, begin + i * h, h))
                self.count(stop)
        self.tau = stop
        check_finite(self.x, stop)

    def count(self, stop: float) -> None:
        self.taken += 1
        if self.taken > self.max_steps:
            raise GeonormError(f"{self.max_steps} steps do not reach time {stop:g}: take log_time or more max_steps")

    def adaptive(self, slope: Slope, restore: Callable[[Tensor], Tensor], s: float, end: float, free: bool) -> None:
        """free: no radius is kept, so the slope at the end of a step is the one at the beginning of the next."""
        particles = -3 if self.flow.streams > 1 else -2
        first = slope(self.x, s)
        size = self.size or 1e-3 * (end - s)
        while s < end:
            h = min(size, end - s)
            ahead, error, last = dormand_prince(slope, self.x, s, h, first)
            ratio = relative_error(error, self.x, self.tolerance, particles)
            grown = h * min(5.0, max(0.2, 0.9 * max(ratio, 1e-10) ** -0.2))
            if ratio <= 1:
                self.x = restore(ahead)
                s = end if h == end - s else s + h
                if s < end:
                    first = last if free else slope(self.x, s)
                grown = max(size, grown) if h < size else grown  # a step cut short by the stop says little
            elif not grown > 1e-14 * max(1.0, abs(s)):
                raise GeonormError(f"the step size vanished at {s:g}: the velocity is not smooth or not finite there")
            self.count(end)
            size = grown
        self.size = size


def euler(f: Slope, x: Tensor, s: float, h: float) -> Tensor:
    return x + h * f(x, s)


def rk4(f: Slope, x: Tensor, s: float, h: float) -> Tensor:
    a = f(x, s)
    b = f(x.add(a, alpha=h / 2), s + h / 2)
    c = f(x.add(b, alpha=h / 2), s + h / 2)
    d = f(x.add(c, alpha=h), s + h)
    return x.add((a + d).add(b + c, alpha=2), alpha=h / 6)


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
    own = size(err - err.mean(particles, keepdim=True))
    floor = 8 * torch.finfo(x.dtype).eps
    apart = (own / (tolerance * spread).clamp(min=floor)).max().item()
    return max(apart, size(err).max().item() / max(tolerance, floor))
