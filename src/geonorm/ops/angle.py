"""From the size of an update to the angle of the step: the one scalar function inside the geodesic update.

    angle = min(post * (gain * min(R(pre * ratio), max_angle) + bias), max_angle),   ratio = |v| / |x|

R is the angle of the retraction. The decay of a scheme stands in `post` (after the clamp) or in `pre` (before it).
Everything here has one number per token; the (..., dim) work is in `geodesic` and `closed_form`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi

import torch
from torch import Tensor

from .. import sphere

BIAS_SOFTNESS = 1e-3
"""The bias turns even a vanishing update, whose direction is noise. It acts as bias * ratio / sqrt(ratio^2 + this^2),
so that the step and its gradient stay finite at v = 0; at ratios above a percent it is the constant of the paper."""


@dataclass(frozen=True)
class AngleMap:
    """Parameters of the angle. `pre`, `post`, `gain`, `bias`: floats or 0-d tensors (learned or per layer);
    `max_angle` in radians; `power` p of the retraction phi_p(t) = p atan(t / p), infinity for the exponential map."""

    pre: float | Tensor = 1.0
    post: float | Tensor = 1.0
    gain: float | Tensor = 1.0
    bias: float | Tensor = 0.0
    max_angle: float = pi / 4
    power: float = inf

    def __call__(self, ratio: Tensor) -> Tensor:
        """Angle in radians for ratio >= 0 of any shape: plain differentiable PyTorch, the definition."""
        turn = sphere.retraction_angle(self.pre * ratio, self.power).clamp(max=self.max_angle)
        turn = self.gain * turn
        if isinstance(self.bias, Tensor) or self.bias != 0:
            turn = turn + self.bias * ratio * torch.rsqrt(ratio * ratio + BIAS_SOFTNESS**2)
        return (self.post * turn).clamp(max=self.max_angle)

    def clamped(self, ratio: Tensor) -> Tensor:
        """Whether either minimum binds, boolean, same shape as ratio."""
        inner = sphere.retraction_angle(self.pre * ratio, self.power) >= self.max_angle
        return inner | (self(ratio) >= self.max_angle)


@dataclass
class Slopes:
    """An angle map at given ratios, in the three forms its derivatives need; none of them divides by a vanishing ratio.

    quotient  = angle / ratio
    slope     = d angle / d ratio
    curvature = (slope - quotient) / ratio^2
    """

    quotient: Tensor
    slope: Tensor
    curvature: Tensor

    def times(self, factor: float | Tensor) -> Slopes:
        if isinstance(factor, float) and factor == 1.0:
            return self
        return Slopes(factor * self.quotient, factor * self.slope, factor * self.curvature)

    def plus(self, other: Slopes) -> Slopes:
        return Slopes(
            self.quotient + other.quotient, self.slope + other.slope, self.curvature + other.curvature
        )

    def clamp(self, ratio: Tensor, ceiling: float) -> Slopes:
        """min(angle, ceiling): where it binds the angle is constant. NaN compares false and passes through."""
        binds = self.quotient * ratio >= ceiling
        level = ceiling / torch.where(binds, ratio, 1.0)
        return Slopes(
            torch.where(binds, level, self.quotient),
            torch.where(binds, 0.0, self.slope),
            torch.where(binds, -level / ratio / ratio, self.curvature),
        )


def retraction_slopes(ratio: Tensor, pre: float | Tensor, power: float) -> Slopes:
    """Slopes of R(pre * ratio)."""
    if power == inf:
        constant = torch.zeros_like(ratio) + pre
        return Slopes(constant, constant, torch.zeros_like(ratio))
    z = pre * ratio / power
    squared = z * z
    small = squared < 1e-2
    safe = torch.where(small, 1.0, z)
    slope = 1 / (1 + squared)
    quotient = torch.where(
        small,
        1 - squared * (1 / 3 - squared * (1 / 5 - squared * (1 / 7 - squared * (1 / 9 - squared * (1 / 11 - squared / 13))))),
        torch.atan(safe) / safe,
    )
    bend = torch.where(
        small,
        -2 / 3 + squared * (4 / 5 - squared * (6 / 7 - squared * (8 / 9 - squared * (10 / 11 - squared * (12 / 13 - squared * 14 / 15))))),
        (slope - quotient) / (safe * safe),
    )
    return Slopes(pre * quotient, pre * slope, pre * (pre / power) ** 2 * bend)


def bias_slopes(ratio: Tensor, bias: float | Tensor) -> Slopes:
    """Slopes of the softened bias."""
    root = torch.rsqrt(ratio * ratio + BIAS_SOFTNESS**2)
    cube = root * root * root
    return Slopes(bias * root, bias * BIAS_SOFTNESS**2 * cube, -bias * cube)
