"""Closed-form forward and backward of the geodesic update.

Output and both gradients are combinations of (x, u, grad) with a few scalars per row, so autograd through the textbook
(101 memory passes) is replaced by two rounds of reductions forward and one backward. Nothing divides by |v|. Saved for
the backward pass: x, u and three scalars per row. Notation: t tangential part of u, n2 = <t,t>, xx = <x,x>.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, isfinite, nan, sin, sqrt
from typing import Any

import torch
from torch import Tensor

from .. import sphere
from ..norms import one_row, upcast
from .angle import AngleMap
from .reference import differentiated, gradients_of, reference
from .slopes import General, Plain


def closed_form(x: Tensor, u: Tensor, angles: AngleMap) -> Tensor:
    """x' of shape and dtype of x; gradients to x, u and to whichever of pre, post, gain, bias are tensors."""
    if not torch.is_grad_enabled():
        if one_row(x) and one_row(u) and Plain.fits(angles):
            return step_of_one(x, u, angles)
        return step(x, u, angles)[0].to(x.dtype)
    out: Tensor = ClosedForm.apply(
        x, u, angles.pre, angles.post, angles.gain, angles.bias, angles.max_angle, angles.power
    )
    return out


def step_of_one(x: Tensor, u: Tensor, angles: AngleMap) -> Tensor:
    """As `step` under the paper's map for one token, without gradient: a quarter of the operations."""
    wide = upcast(x).reshape(-1)
    update = u.reshape(-1).to(wide.dtype)
    xx = float(torch.dot(wide, wide))
    if xx < torch.finfo(wide.dtype).tiny:
        return torch.add(wide, update, alpha=0.0).view_as(x).to(x.dtype)  # x, and NaN where u is not finite
    radial = float(torch.dot(wide, update)) / xx
    if not abs(radial) <= torch.finfo(wide.dtype).max:  # PyTorch refuses such a factor
        return torch.full_like(x, nan)
    t = torch.add(update, wide, alpha=-radial)
    leak = float(torch.dot(wide, t))
    n2 = max(float(torch.dot(t, t)) - leak * leak / xx, 0.0)
    if not isfinite(n2 + xx):
        return torch.full_like(x, nan)
    ratio = sqrt(n2 / xx)
    angle = min(float(angles.post) * min(ratio, angles.max_angle), angles.max_angle)
    b = sin(angle) / ratio if ratio > 0 else 0.0
    return torch.add((cos(angle) - b * leak / xx) * wide, t, alpha=b).view_as(x).to(x.dtype)


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def row_square(a: Tensor) -> Tensor:
    return torch.linalg.vector_norm(a, dim=-1, keepdim=True).square_()


def invert(xx: Tensor) -> tuple[Tensor, Tensor]:
    """1 / xx, and 0 for a row that is 0 or too small for a square (1 / xx would overflow), which gets no step and no
    gradient through it; and which rows those are."""
    dead = sphere.vanishes(xx)
    return xx.reciprocal().masked_fill_(dead, 0.0), dead


def once(*scalars: Tensor) -> Sequence[Tensor]:
    """The same row scalars, but code compiled for a CPU computes them once for a row.

    PyTorch's compiler writes what it knows of a row, sines and divisions included, into the loop over the columns,
    where they are computed again for every 16 or 32 numbers: a quarter of the time. What is stacked is kept in memory.
    """
    compiling = torch.compiler.is_compiling() and scalars[0].device.type == "cpu"
    return torch.stack(scalars).unbind() if compiling else scalars


def step(x: Tensor, u: Tensor, angles: AngleMap) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x' in the dtype of the maths; then <x,x>, c and n2 of every row, (..., 1): what the backward pass needs."""
    wide, update = upcast(x), upcast(u)
    xx = row_square(wide)
    inverse, dead = invert(xx)
    (c,) = once(row_dot(wide, update).mul_(inverse))
    t = torch.addcmul(update, wide, c, value=-1)
    # second round: what rounding left along x is measured, and removed in the coefficients, not in memory
    leak = row_dot(wide, t)
    correction = leak * inverse
    n2 = torch.addcmul(row_square(t), leak, correction, value=-1).clamp_(min=0).abs_()  # no -0, whose rsqrt is -inf
    rows = (Plain if Plain.fits(angles) else General)(angles, n2 * inverse, dead)
    a, b = once(rows.a - rows.b * correction, rows.b)
    out = a * wide
    return out.addcmul_(t, b), xx, c + correction, n2


def rotation(xx: Tensor, n2: Tensor, angles: AngleMap) -> tuple[Tensor, Tensor]:
    """a and b of x' = a x + b t, (..., 1), from what `step` keeps."""
    inverse, dead = invert(xx)
    rows = (Plain if Plain.fits(angles) else General)(angles, n2 * inverse, dead)
    return rows.a, rows.b


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
    of_do, of_x, of_t = (
        torch.addcmul(a, b, c, value=-1),
        torch.addcmul(c * along_x, along_t, ratio2, value=-1),
        torch.addcmul(along_x, c, along_t),
    )
    b, along_t, along_x, of_do, of_x, of_t = once(b, along_t, along_x, of_do, of_x, of_t)
    du = (b * do).addcmul_(t, along_t).addcmul_(wide, along_x, value=-1)
    dx = (of_do * do).addcmul_(wide, of_x).addcmul_(t, of_t, value=-1)
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
