"""Closed-form forward and backward of the geodesic update.

Output and both gradients are combinations of (x, u, grad) with a few scalars per row, so autograd through the textbook
(101 memory passes) is replaced by two rounds of reductions forward and one backward. Nothing divides by |v|. Saved for
the backward pass: x, u and three scalars per row. Notation: t tangential part of u, n2 = <t,t>, xx = <x,x>.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..norms import upcast
from .angle import AngleMap, Slopes, bias_slopes, retraction_slopes
from .. import sphere


def closed_form(x: Tensor, u: Tensor, angles: AngleMap) -> Tensor:
    """x' of shape and dtype of x; gradients to x, u and to whichever of pre, post, gain, bias are tensors."""
    out: Tensor = ClosedForm.apply(  # type: ignore[no-untyped-call]
        x, u, angles.pre, angles.post, angles.gain, angles.bias, angles.max_angle, angles.power
    )
    return out


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b).unsqueeze(-1)


def invert(xx: Tensor) -> Tensor:
    """1 / xx, and 0 for a zero row, which then gets no step and no gradient through it. NaN stays NaN."""
    return torch.where(xx == 0, 0.0, 1 / torch.where(xx == 0, 1.0, xx))


class Chain:
    """The angle map stage by stage at the ratios of a batch, kept for the derivatives of its parameters."""

    def __init__(self, ratio: Tensor, angles: AngleMap) -> None:
        self.ratio = ratio
        self.turned = retraction_slopes(ratio, angles.pre, angles.power)
        self.inner = self.turned.clamp(ratio, angles.max_angle)
        total = self.inner.times(angles.gain)
        if isinstance(angles.bias, Tensor) or angles.bias != 0:
            total = total.plus(bias_slopes(ratio, angles.bias))
        self.total = total
        self.outer = total.times(angles.post).clamp(ratio, angles.max_angle)


def step_coefficients(outer: Slopes, ratio: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """angle, a and b of x' = a x + b t; b is 0 on zero rows."""
    angle = outer.quotient * ratio
    b = torch.where(alive, outer.quotient * sphere.sinc(angle), 0.0)
    return angle, torch.cos(angle), b


class ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, u: Tensor, pre: Any, post: Any, gain: Any, bias: Any, max_angle: float, power: float) -> Tensor:
        wide, update = upcast(x), upcast(u)
        xx = row_dot(wide, wide)
        inverse = invert(xx)
        c = row_dot(wide, update) * inverse
        t = torch.addcmul(update, wide, c, value=-1)
        # second round: what rounding left along x is measured and removed without another pass over memory
        leak = row_dot(wide, t)
        n2 = (row_dot(t, t) - leak * leak * inverse).clamp(min=0)
        leak = leak * inverse
        ratio = torch.sqrt(n2 * inverse)
        chain = Chain(ratio, AngleMap(pre, post, gain, bias, max_angle, power))
        _, a, b = step_coefficients(chain.outer, ratio, xx != 0)
        out = torch.addcmul((a - b * leak) * wide, t, b)
        ctx.save_for_backward(x, u, xx, c + leak, n2, *(p for p in (pre, post, gain, bias) if isinstance(p, Tensor)))
        ctx.floats = tuple(None if isinstance(p, Tensor) else p for p in (pre, post, gain, bias))
        ctx.max_angle, ctx.power = max_angle, power
        return out.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, u, xx, c, n2, *tensors = ctx.saved_tensors
        scalars = iter(tensors)
        parameters = tuple(next(scalars) if p is None else p for p in ctx.floats)
        angles = AngleMap(*parameters, ctx.max_angle, ctx.power)
        wide, update, do = upcast(x), upcast(u), upcast(grad)

        inverse = invert(xx)
        ratio2 = n2 * inverse
        ratio = torch.sqrt(ratio2)
        chain = Chain(ratio, angles)
        slope, alive = chain.outer.slope, xx != 0
        angle, a, b = step_coefficients(chain.outer, ratio, alive)

        t = torch.addcmul(update, wide, c, value=-1)
        p = row_dot(wide, do)
        m = row_dot(t, do)
        # d(angle)/d(ratio) enters through e; bend = (slope cos - b) / ratio^2 without the division
        bend = slope * chain.outer.quotient**2 * sinc_slope(angle) + sphere.sinc(angle) * chain.outer.curvature
        e = torch.where(alive, bend * m - slope * b * p, 0.0)
        along_t = e * inverse
        along_x = b * p * inverse

        du = torch.addcmul(torch.addcmul(b * do, t, along_t), wide, along_x, value=-1)
        dx = torch.addcmul(
            torch.addcmul((a - b * c) * do, wide, c * along_x - along_t * ratio2), t, c * along_t + along_x, value=-1
        )
        return dx.to(x.dtype), du.to(u.dtype), *parameter_gradients(ctx, chain, angles, angle, p, m), None, None


def sinc_slope(angle: Tensor) -> Tensor:
    """(cos - sinc) / angle^2, by series where the difference would cancel."""
    squared = angle * angle
    small = squared < 0.04
    series = -1 / 3 + squared * (1 / 30 - squared * (1 / 840 - squared * (1 / 45360 - squared / 3991680)))
    safe = torch.where(small, 1.0, angle)
    return torch.where(small, series, (torch.cos(safe) - torch.sin(safe) / safe) / (safe * safe))


def parameter_gradients(
    ctx: Any, chain: Chain, angles: AngleMap, angle: Tensor, p: Tensor, m: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of pre, post, gain and bias: two scalars per row, summed. None for floats."""
    if not any(ctx.needs_input_grad[2:6]):
        return None, None, None, None
    ratio = chain.ratio
    bound = angles.post * chain.total.quotient * ratio >= angles.max_angle
    free = torch.where(bound, 0.0, torch.cos(angle) * m - torch.sin(angle) * ratio * p)
    # each factor is d(angle)/d(parameter) / ratio
    unclamped = torch.where(chain.inner.slope == 0, 0.0, chain.turned.slope / angles.pre)
    factors = (
        angles.post * angles.gain * unclamped,
        chain.total.quotient,
        angles.post * chain.inner.quotient,
        angles.post * bias_slopes(ratio, 1.0).quotient,
    )
    return tuple(
        (free * factor).sum() if needed else None for factor, needed in zip(factors, ctx.needs_input_grad[2:6], strict=True)
    )
