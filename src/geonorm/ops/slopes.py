"""Row maths of the closed form under any angle map: coefficients of x' and their derivatives, one number per token.

An angle map is kept as three quantities, none of which divides by a vanishing ratio:

    quotient  = angle / ratio
    slope     = d angle / d ratio
    curvature = (slope - quotient) / ratio^2
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial, inf

import torch
from torch import Tensor

from .. import sphere
from .angle import BIAS_SOFTNESS, AngleMap


@dataclass
class Slopes:
    """An angle map at given ratios, each (..., 1)."""

    quotient: Tensor
    slope: Tensor
    curvature: Tensor

    def times(self, factor: float | Tensor) -> Slopes:
        return Slopes(factor * self.quotient, factor * self.slope, factor * self.curvature)

    def plus(self, other: Slopes) -> Slopes:
        return Slopes(self.quotient + other.quotient, self.slope + other.slope, self.curvature + other.curvature)

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
    # atan(z)/z = sum (-s)^k / (2k+1);  (1/(1+s) - atan(z)/z) / s = sum over k of (-s)^k * -(2k+2)/(2k+3)
    quotient = torch.where(small, sphere.power_series(squared, sphere.ATAN), torch.atan(safe) / safe)
    bend = torch.where(
        small,
        sphere.power_series(squared, [(-1) ** (k + 1) * (2 * k + 2) / (2 * k + 3) for k in range(8)]),
        (slope - quotient) / (safe * safe),
    )
    return Slopes(pre * quotient, pre * slope, pre * (pre / power) ** 2 * bend)


def bias_slopes(ratio: Tensor, bias: float | Tensor) -> Slopes:
    """Slopes of the softened bias."""
    root = torch.rsqrt(ratio * ratio + BIAS_SOFTNESS**2)
    cube = root * root * root
    return Slopes(bias * root, bias * BIAS_SOFTNESS**2 * cube, -bias * cube)


def sinc_bend(angle: Tensor) -> Tensor:
    """(cos - sinc) / angle^2, by series where the difference would cancel."""
    squared = angle * angle
    small = squared < 0.04
    safe = torch.where(small, 1.0, angle)
    return torch.where(
        small, sphere.power_series(squared, BEND[:6]), (torch.cos(safe) - torch.sin(safe) / safe) / (safe * safe)
    )


BEND = [(-1) ** k * 2 * k / float(factorial(2 * k + 1)) for k in range(1, 12)]
"""(cos - sinc) / angle^2 in powers of angle^2."""


class General:
    """Coefficients and derivatives of the step under any angle map."""

    def __init__(self, angles: AngleMap, ratio2: Tensor, dead: Tensor) -> None:
        self.angles, self.dead = angles, dead
        ratio = torch.sqrt(ratio2)
        self.ratio = ratio
        self.turned = retraction_slopes(ratio, angles.pre, angles.power)
        self.inner = self.turned.clamp(ratio, angles.max_angle)
        total = self.inner.times(angles.gain)
        if angles.biased:
            total = total.plus(bias_slopes(ratio, angles.bias))
        self.total = total
        self.outer = total.times(angles.post).clamp(ratio, angles.max_angle)
        self.angle = self.outer.quotient * ratio
        self.a = torch.cos(self.angle)
        self.b = (self.outer.quotient * sphere.sinc(self.angle)).masked_fill(dead, 0.0)

    def turn(self, p: Tensor, m: Tensor) -> Tensor:
        """What the change of the angle adds to the gradient, from p = <x, grad> and m = <t, grad>."""
        slope, quotient = self.outer.slope, self.outer.quotient
        # (slope cos - b) / ratio^2 without the division
        bend = slope * quotient**2 * sinc_bend(self.angle) + sphere.sinc(self.angle) * self.outer.curvature
        return (bend * m - slope * self.b * p).masked_fill(self.dead, 0.0)

    def parameter_gradients(self, p: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of pre, post, gain and bias: sums over rows."""
        angles, ratio = self.angles, self.ratio
        held = self.turned.quotient * ratio >= angles.max_angle
        # a held angle is the ceiling to the last bit: with a gain of 1, as it begins, rounding would say who is bound
        turn = angles.gain * torch.where(held, angles.max_angle, self.turned.quotient * ratio)
        if angles.biased:
            turn = turn + bias_slopes(ratio, angles.bias).quotient * ratio
        bound = angles.post * turn >= angles.max_angle
        free = torch.cos(self.angle) * m - torch.sin(self.angle) * ratio * p
        free = free.masked_fill(bound | self.dead, 0.0)
        # each factor is d(angle)/d(parameter) / ratio
        slope = 1 / (1 + (angles.pre * ratio / angles.power) ** 2)
        factors = (
            angles.post * angles.gain * slope.masked_fill(held, 0.0),
            self.total.quotient,
            angles.post * self.inner.quotient,
            angles.post * bias_slopes(ratio, 1.0).quotient,
        )
        pre, post, gain, bias = ((free * factor).sum() for factor in factors)
        return pre, post, gain, bias


class Plain:
    """The same for the paper's map, angle = min(post * min(ratio, max_angle), max_angle) with nothing learned and
    max_angle <= 1, in half as many small operations."""

    def __init__(self, angles: AngleMap, ratio2: Tensor, dead: Tensor) -> None:
        self.post, self.dead, self.ratio2 = angles.post, dead, ratio2
        ceiling = torch.rsqrt(ratio2).mul_(angles.max_angle)  # infinite where nothing moves
        self.quotient = torch.minimum(ceiling.clamp(max=1.0).mul_(angles.post), ceiling)
        self.free = ceiling >= (post.clamp(min=1.0) if isinstance(post := angles.post, Tensor) else max(post, 1.0))
        self.angle = torch.sqrt(ratio2).mul_(self.quotient)
        self.a = torch.cos(self.angle)
        self.b = torch.sinc(self.angle / torch.pi).mul_(self.quotient).masked_fill_(dead, 0.0)

    @staticmethod
    def fits(angles: AngleMap) -> bool:
        return angles.bare and angles.power == inf and angles.max_angle <= 1.0

    def turn(self, p: Tensor, m: Tensor) -> Tensor:
        """As `General.turn`."""
        terms = BEND if p.dtype == torch.float64 else BEND[:6]
        bend = sphere.power_series(self.angle.square(), terms).mul_(self.post).mul_(self.post).mul_(m)
        moving = torch.addcmul(bend, self.b, p, value=-1).mul_(self.post)
        held = (self.b * m).div_(self.ratio2).neg_()
        return torch.where(self.free, moving, held).masked_fill_(self.dead, 0.0)
