"""The closed equation of equiangular particles (`theory`), solved."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1, log, log1p
from typing import Any

import torch
from scipy.integrate import solve_ivp

from ..errors import GeonormError
from ..schemes import Scheme
from .theory import Frame, velocity


@dataclass(frozen=True)
class ClosedCurve:
    """Depth by depth 1 - gamma, the radius r, the speed factor s, and gamma'."""

    times: list[float]
    gap: list[float]
    radius: list[float]
    speed: list[float]
    velocity: list[float]


@torch.no_grad()
def solve_equiangular(
    scheme: str | Scheme,
    n: int,
    beta: float,
    times: Sequence[float],
    depth: int = 1,
    gamma: float = 0.0,
    tolerance: float = 1e-8,
) -> ClosedCurve:
    """Solve the closed equation from cosine `gamma` and report it at `times` (ascending from 0 on).

    The state is (log(1 - gamma), log r) in log(1 + tau), by scipy's solve_ivp with error `tolerance` per step, so that
    a collapse is followed to 1e-300. Raises ConfigError for a scheme that has no (rho, sigma) law; GeonormError where
    particles meet before the end.
    """
    frame = Frame(scheme, depth)
    states = {0.0: (log(1 - gamma), log(frame.settle(1.0, 0.0)))}
    stops = [0.0, *frame.flow.breaks(0.0, times[-1]), *({times[-1]} - {0.0})]
    for begin, stop in pairwise(stops):
        inside = sorted({stop, *(time for time in times if begin < time < stop)})
        states |= solve_segment(frame, n, beta, *states[begin], begin, inside, tolerance)
    rows = []
    for time in times:
        w, r = states[time][0], exp(states[time][1])
        rate, _, _, s = velocity(frame, n, beta, w, r, time)
        rows.append((time, exp(w), r, s, rate))
    return ClosedCurve(*map(list, zip(*rows, strict=True)))


def solve_segment(
    frame: Frame, n: int, beta: float, w: float, log_r: float, begin: float, times: list[float], tolerance: float
) -> dict[float, tuple[float, float]]:
    """(log(1 - gamma), log r) at `times`, under the rule that acts from `begin` up to the last of them."""
    last = times[-1] - 1e-12 * max(1.0, times[-1])

    def slope(s: float, state: Any) -> list[float]:
        tau, r = min(max(expm1(s), begin), last), exp(state[1])
        _, shrink, growth, _ = velocity(frame, n, beta, min(state[0], log(n / (n - 1))), r, tau)
        return [(1 + tau) * shrink, (1 + tau) * growth / r]

    span, settled = (log1p(begin), log1p(times[-1])), [w, log(frame.settle(exp(log_r), begin))]
    log_times = [log1p(time) for time in times]
    solution = solve_ivp(slope, span, settled, "DOP853", log_times, rtol=tolerance, atol=tolerance)
    if not solution.success:
        raise GeonormError(f"the closed equation is not smooth before time {times[-1]:g}: {solution.message}")
    return dict(zip(times, map(tuple, solution.y.T.tolist()), strict=True))
