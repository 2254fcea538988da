"""Closed-form forward and backward of the geodesic update, in the frame of a token: the directions of x and of t, the
tangential part of u, and the part of a gradient that is orthogonal to both.

There both passes are a few numbers per token, and nothing cancels, so autograd through the textbook (101 memory passes)
is replaced by 11 forward and 20 backward. Saved for the backward pass: x, u and four numbers per token. Notation:
n = |t|, ratio = n / |x|, c = <x,u> / <x,x>.
"""

from typing import Any

import torch
from torch import Tensor

from .angle import AngleMap
from .reference import differentiated, gradients_of, reference


def closed_form(x: Tensor, u: Tensor, angles: AngleMap) -> Tensor:
    """x' of shape and dtype of x; gradients to x, u and to whichever of pre, post, gain, bias are tensors."""
    if not torch.is_grad_enabled():
        return step(angles, *flatten_rows(x, u))[0].view(x.shape).to(x.dtype)
    return ClosedForm.apply(x, u, angles.pre, angles.post, angles.gain, angles.bias, angles.max_angle, angles.power)


def flatten_rows(x: Tensor, u: Tensor, *others: Tensor) -> list[Tensor]:
    """Each as (tokens, dim), contiguous, in the dtype of the maths: fp64 if x or u is, else fp32."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, u.dtype), torch.float32)
    return [t.to(dtype).reshape(-1, t.shape[-1]).contiguous() for t in (x, u, *others)]


def orthogonal_part(y: Tensor, x: Tensor, radius: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """scale / radius times the part of y that is orthogonal to x, and the length of the other part, signed; radius is
    |x|."""
    if y.is_cpu and y.numel() and not torch.compiler.is_compiling():
        # the backward pass of weight normalisation, one kernel for what else takes four
        kernel: Any = torch.ops.aten._weight_norm_interface_backward.default
        return kernel(y, x, scale, radius, 0)
    along = (y * x).sum(-1, keepdim=True) / radius
    return torch.addcmul(y, x, along / radius, value=-1) * (scale / radius), along


def step(angles: AngleMap, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x', and what the backward pass needs of every row, (tokens, 1): |x|, ratio, cos(angle), sin(angle) |x| / ratio. A
    row that is 0, or too short for a square, counts as |x| = 0, and has no step and no gradient through it."""
    length, least = torch.linalg.vector_norm(x, dim=-1, keepdim=True), torch.finfo(x.dtype).tiny ** 0.5
    moving, radius = torch.threshold(length, least, 0.0), torch.threshold(length, least, 1.0)
    t, _ = orthogonal_part(u, x, radius, moving)
    # 1e-12 stands for smaller ratios: cos and sinc of the angle are those at 0 here, and nothing is divided by 0
    ratio = torch.linalg.vector_norm(t, dim=-1, keepdim=True).div_(radius).clamp_(min=1e-12)
    angle = angles(ratio).view_as(ratio)
    cos, pull = torch.cos(angle), torch.sin(angle).div_(ratio).mul_(moving)
    # second round: what rounding left along x is measured and removed
    out, _ = orthogonal_part(t, x, radius, pull)
    return out.addcmul_(x, cos), moving, ratio, cos, pull


def gradients(
    angles: AngleMap, x: Tensor, u: Tensor, grad: Tensor, moving: Tensor, ratio: Tensor, cos: Tensor, pull: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """dx, du, and the gradients of pre, post, gain and bias unless the map is plain."""
    radius = torch.threshold(moving, 0.0, 1.0)
    n, b = ratio * radius, pull / radius
    t, c = orthogonal_part(u, x, radius, moving)
    du, along_x = orthogonal_part(grad, x, radius, radius)
    c, along_x = c.div_(radius), along_x.div_(radius)
    dx, along_t = orthogonal_part(du, t, n, torch.addcmul(cos, b, c, value=-1).mul_(n))
    along_t = along_t.div_(n)
    turn = (cos * along_t).addcmul_(b, along_x, value=-1)  # the gradient of the angle over n |x|
    slope, *learned = angles.chain_rule(ratio, turn)
    pushed = torch.addcmul(slope, b, along_t, value=-1)
    du.mul_(b).addcmul_(t, pushed)
    dx.addcmul_(t, torch.addcmul(turn, c, slope, value=-1))
    dx.addcmul_(x, along_x.mul_(cos).addcmul_(ratio * ratio, pushed, value=-1))
    return dx, du, tuple((n * radius * each).sum() for each in learned)


class ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, u: Tensor, pre: Any, post: Any, gain: Any, bias: Any, max_angle: float, power: float
    ) -> Tensor:
        parameters = (pre, post, gain, bias)
        out, *stats = step(AngleMap(pre, post, gain, bias, max_angle, power), *flatten_rows(x, u))
        ctx.save_for_backward(x, u, *stats, *(p for p in parameters if isinstance(p, Tensor)))
        ctx.floats = tuple(None if isinstance(p, Tensor) else p for p in parameters)
        ctx.max_angle, ctx.power = max_angle, power
        if torch.compiler.is_compiling():
            # torch 2.11 makes the gradients zero of an output that was written in place or cast to its own dtype
            return out.view(x.shape).to(x.dtype, copy=True)
        return out.resize_(x.shape).to(x.dtype)  # no view: FSDP2 warns of a block that ends in one

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, u, *saved = ctx.saved_tensors
        scalars = iter(saved[4:])
        parameters = [next(scalars) if p is None else p for p in ctx.floats]
        if differentiated(grad):

            def textbook(x: Tensor, u: Tensor, pre: Any, post: Any, gain: Any, bias: Any) -> tuple[Tensor]:
                return (reference(x, u, AngleMap(pre, post, gain, bias, ctx.max_angle, ctx.power)),)

            return *gradients_of(textbook, (x, u, *parameters), ctx.needs_input_grad[:6], (grad,)), None, None
        wanted = ctx.needs_input_grad[2:6]
        pre, post, gain, bias = parameters
        angles = AngleMap(pre, post, gain, bias, ctx.max_angle, ctx.power)
        dx, du, sums = gradients(angles, *flatten_rows(x, u, grad), *saved[:4])
        learned: list[Tensor | None] = [None] * 4
        if sums:
            learned = [g.view_as(p) if want else None for g, p, want in zip(sums, parameters, wanted, strict=True)]
        return dx.view(x.shape).to(x.dtype), du.view(u.shape).to(u.dtype), *learned, None, None
