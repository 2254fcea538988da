"""Closed-form forward and backward of the geodesic update.

Output and both gradients are combinations of (x, u, grad) with a few scalars per row, so autograd through the textbook
(101 memory passes) is replaced by two rounds of reductions forward and one backward. Nothing divides by |v|. Saved for
the backward pass: x, u and three scalars per row. Notation: t tangential part of u, n2 = <t,t>, xx = <x,x>.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import sphere
from ..norms import upcast
from .angle import AngleMap
from .reference import differentiated, gradients_of, reference
from .slopes import General, Plain


def closed_form(x: Tensor, u: Tensor, angles: AngleMap) -> Tensor:
    """x' of shape and dtype of x; gradients to x, u and to whichever of pre, post, gain, bias are tensors."""
    if not torch.is_grad_enabled():
        return step(x, u, angles)[0].to(x.dtype)
    out: Tensor = ClosedForm.apply(
        x, u, angles.pre, angles.post, angles.gain, angles.bias, angles.max_angle, angles.power
    )
    return out


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def row_square(a: Tensor) -> Tensor:
    return torch.linalg.vector_norm(a, dim=-1, keepdim=True).square_()


def invert(xx: Tensor) -> tuple[Tensor, Tensor]:
    """1 / xx, and 0 for a row that is 0 or too small for a square (1 / xx would overflow), which gets no step and no
    gradient through it; and which rows those are."""
    dead = sphere.vanishes(xx)
    return xx.reciprocal().masked_fill_(dead, 0.0), dead


def step(x: Tensor, u: Tensor, angles: AngleMap) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x' in the dtype of the maths; then <x,x>, c and n2 of every row, (..., 1): what the backward pass needs."""
    wide, update = upcast(x), upcast(u)
    xx = row_square(wide)
    inverse, dead = invert(xx)
    c = row_dot(wide, update).mul_(inverse)
    t = torch.addcmul(update, wide, c, value=-1)
    # second round: what rounding left along x is measured, and removed in the coefficients, not in memory
    leak = row_dot(wide, t)
    correction = leak * inverse
    n2 = torch.addcmul(row_square(t), leak, correction, value=-1).clamp_(min=0).abs_()  # no -0, whose rsqrt is -inf
    rows = (Plain if Plain.fits(angles) else General)(angles, n2 * inverse, dead)
    out = (rows.a - rows.b * correction) * wide
    return out.addcmul_(t, rows.b), xx, c + correction, n2


def gradients(
    grad: Tensor, x: Tensor, u: Tensor, xx: Tensor, c: Tensor, n2: Tensor, angles: AngleMap, learned: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """dx and du in the dtype of the maths, and if `learned` the gradients of pre, post, gain and bias."""
    wide, update, do = upcast(x), upcast(u), upcast(grad)
    inverse, dead = invert(xx)
    ratio2 = n2 * inverse
    plain = not learned and Plain.fits(angles)
    rows = Plain(angles, ratio2, dead) if plain else General(angles, ratio2, dead)

    t = torch.addcmul(update, wide, c, value=-1)
    p = row_dot(wide, do)
    m = row_dot(t, do)
    a, b = rows.a, rows.b
    along_t = rows.turn(p, m).mul_(inverse)
    along_x = (b * p).mul_(inverse)
    du = (b * do).addcmul_(t, along_t).addcmul_(wide, along_x, value=-1)
    dx = torch.addcmul(a, b, c, value=-1) * do
    dx.addcmul_(wide, torch.addcmul(c * along_x, along_t, ratio2, value=-1))
    dx.addcmul_(t, torch.addcmul(along_x, c, along_t), value=-1)
    return dx, du, rows.parameter_gradients(p, m) if learned and isinstance(rows, General) else ()


class ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, u: Tensor, pre: Any, post: Any, gain: Any, bias: Any, max_angle: float, power: float
    ) -> Tensor:
        parameters = (pre, post, gain, bias)
        out, *stats = step(x, u, AngleMap(pre, post, gain, bias, max_angle, power))
        ctx.save_for_backward(x, u, *stats, *(p for p in parameters if isinstance(p, Tensor)))
        ctx.floats = tuple(None if isinstance(p, Tensor) else p for p in parameters)
        ctx.max_angle, ctx.power = max_angle, power
        # compiling, torch 2.11 makes the gradients zero of an output that was written in place or cast to its own dtype
        return out.to(x.dtype, copy=torch.compiler.is_compiling())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, u, xx, c, n2, *tensors = ctx.saved_tensors
        scalars = iter(tensors)
        parameters = [next(scalars) if p is None else p for p in ctx.floats]
        if differentiated(grad):

            def textbook(x: Tensor, u: Tensor, pre: Any, post: Any, gain: Any, bias: Any) -> tuple[Tensor]:
                return (reference(x, u, AngleMap(pre, post, gain, bias, ctx.max_angle, ctx.power)),)

            return *gradients_of(textbook, (x, u, *parameters), ctx.needs_input_grad[:6], (grad,)), None, None
        wanted = ctx.needs_input_grad[2:6]
        pre, post, gain, bias = parameters
        angles = AngleMap(pre, post, gain, bias, ctx.max_angle, ctx.power)
        dx, du, sums = gradients(grad, x, u, xx, c, n2, angles, any(wanted))
        learned: list[Tensor | None] = [None] * 4
        if sums:
            learned = [g.view_as(p) if want else None for g, p, want in zip(sums, parameters, wanted, strict=True)]
        return dx.to(x.dtype), du.to(u.dtype), *learned, None, None
