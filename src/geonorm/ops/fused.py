"""The Triton kernels as two PyTorch operators, and the autograd function around them.

    geonorm::geodesic_forward   x', y (no elements if nobody reads) and the scalars of every row
    geonorm::geodesic_backward  dx, du and the gradients of the norm's gains and biases (no elements if nobody asks)

y is x' in the dtype of the next sub-layer or, with norm = rms | layer instead of none, N(x'); weight and shift are the
gains and biases of N, (dim,). Raw operators with autograd outside cost a third of `custom_op` with `register_autograd`
per call. Each knows its shapes (torch.compile, meta tensors), its CPU form (the closed form, or the kernels under
Triton's interpreter) and how it may be sharded. `numbers` are post, max_angle, 1 / power (0 for an
infinite one) and the one angle of all tokens (0 if each has its own); a tensor `post` replaces the first. stats is
(3, *batch) fp32, of a norm (5, *batch).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..norms import LayerNorm, RMSNorm, upcast
from . import closed_form, launch
from .angle import AngleMap
from .available import interpreting
from .reference import differentiated, gradients_of, reference

LIBRARY = torch.library.Library("geonorm", "DEF")
for schema in (
    "geodesic_forward(Tensor x, Tensor u, Tensor? post, float[] numbers, ScalarType? read, "
    "str norm, float eps, Tensor? weight, Tensor? shift) -> (Tensor, Tensor, Tensor)",
    "geodesic_backward(Tensor? grad, Tensor? read_grad, Tensor x, Tensor u, Tensor stats, Tensor? post, "
    "float[] numbers, str norm, Tensor? weight, bool dweight, bool dshift) -> (Tensor, Tensor, Tensor, Tensor)",
):
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


@dataclass(frozen=True)
class RowNorm:
    """A norm of rows that the kernels know, as the numbers they need. kind: none | rms | layer."""

    kind: str = "none"
    eps: float = 0.0
    weight: Tensor | None = None
    shift: Tensor | None = None


def row_norm(norm: nn.Module | None, x: Tensor) -> RowNorm | None:
    """The norm as numbers, None if the kernels cannot take it on rows like those of x. A module that somebody watches
    or has changed (hooks, a parametrisation, a subclass) is called instead, so that it is seen."""
    if norm is None:
        return RowNorm()
    if not isinstance(norm, (RMSNorm, LayerNorm)) or type(norm) not in (RMSNorm, LayerNorm):
        return None
    hooks = (norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks, norm._backward_pre_hooks)
    if any(hooks) or norm.dim != x.shape[-1] or norm.dim > launch.MAX_NORM_DIM:
        return None
    shift = norm.bias
    if any(t is not None and (t.dtype not in launch.DTYPES or t.device != x.device) for t in (norm.weight, shift)):
        return None
    return RowNorm("layer" if isinstance(norm, LayerNorm) else "rms", norm.eps, norm.weight, shift)


def update(x: Tensor, u: Tensor, angles: AngleMap) -> Tensor:
    """x' by the kernels. Arguments have been checked by the caller."""
    out: Tensor = Fused.apply(x, u, angles.post, numbers_of(angles), None, "none", 0.0, None, None)
    return out


def update_and_read(
    x: Tensor, u: Tensor, angles: AngleMap, read: torch.dtype, norm: RowNorm | None = None
) -> tuple[Tensor, Tensor]:
    """x', and x' or N(x') in the dtype `read`, one tensor if both are the same; their gradients are added on chip."""
    norm = norm or RowNorm()
    # N has the dtype of its input, so a wider one would hold digits that it does not give
    narrow = read if read.itemsize <= x.dtype.itemsize else x.dtype
    scalars = (angles.post, numbers_of(angles))
    out, y = Fused.apply(x, u, *scalars, narrow, norm.kind, norm.eps, norm.weight, norm.shift)
    return out, y.to(read)


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        u: Tensor,
        post: float | Tensor,
        numbers: list[float],
        read: torch.dtype | None,
        norm: str,
        eps: float,
        weight: Tensor | None,
        shift: Tensor | None,
    ) -> Any:
        tensor = post if isinstance(post, Tensor) else None
        apart = read if norm != "none" or read != x.dtype else None
        tell_shard_rules(x)
        out, y, stats = torch.ops.geonorm.geodesic_forward(x, u, tensor, numbers, apart, norm, eps, weight, shift)
        ctx.save_for_backward(x, u, stats, tensor, weight, shift)
        ctx.numbers, ctx.read, ctx.norm, ctx.eps = numbers, read, norm, eps
        ctx.set_materialize_grads(False)
        if read is None:
            return out
        return out, out.view_as(out) if apart is None else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, read_grad: Tensor | None = None) -> Any:
        x, u, stats, post, weight, shift = ctx.saved_tensors
        if differentiated(grad, read_grad):

            def textbook(x: Tensor, u: Tensor, weight: Any, shift: Any) -> tuple[Tensor, ...]:
                out = reference(x, u, angle_map(post, ctx.numbers))
                if ctx.read is None:
                    return (out,)
                return out, apply_norm(upcast(out), ctx.norm, ctx.eps, weight, shift).to(ctx.read)

            wanted = (*ctx.needs_input_grad[:2], *ctx.needs_input_grad[7:])
            grads = (grad,) if ctx.read is None else (grad, read_grad)
            dx, du, gains, biases = gradients_of(textbook, (x, u, weight, shift), wanted, grads)
        elif grad is None and read_grad is None:
            dx = du = gains = biases = None
        else:
            norm = "none" if read_grad is None else ctx.norm
            dweight, dshift = [needed and norm != "none" for needed in ctx.needs_input_grad[7:]]
            dx, du, gains, biases = torch.ops.geonorm.geodesic_backward(
                grad, read_grad, x, u, stats, post, ctx.numbers, norm, weight, dweight, dshift
            )
            gains = gains.to(weight.dtype) if dweight else None
            biases = biases.to(shift.dtype) if dshift else None
        return dx, du, None, None, None, None, None, gains, biases


def apply_norm(x: Tensor, norm: str, eps: float, weight: Tensor | None, shift: Tensor | None) -> Tensor:
    """N(x) as `norms` computes it."""
    gains, biases = (None if t is None else t.to(x.dtype) for t in (weight, shift))
    size = (x.shape[-1],)
    if norm == "none":
        return x
    return F.layer_norm(x, size, gains, biases, eps) if norm == "layer" else F.rms_norm(x, size, gains, eps)


# what the operators do on each device

Forward = tuple[Tensor, Tensor, Tensor]
Backward = tuple[Tensor, Tensor, Tensor, Tensor]


def numbers_of(angles: AngleMap) -> list[float]:
    """An angle map as the operators take it, and back: `angle_map`."""
    rate = 0.0 if isinstance(angles.post, Tensor) else float(angles.post)
    level = float(angles.bias) if angles.levelled else 0.0
    return [rate, float(angles.max_angle), 0.0 if angles.power == inf else 1.0 / angles.power, level]


def angle_map(post: Tensor | None, numbers: list[float]) -> AngleMap:
    if numbers[3]:
        return AngleMap(post=numbers[0] if post is None else post, gain=0.0, bias=numbers[3], max_angle=numbers[1])
    power = 1 / numbers[2] if numbers[2] else inf
    return AngleMap(post=numbers[0] if post is None else post, max_angle=numbers[1], power=power)


def forward_cpu(x: Tensor, u: Tensor, post: Tensor | None, numbers: list[float], *rest: Any) -> Forward:
    if interpreting():
        return launch.forward(x, u, post, numbers, *rest)
    read, norm, eps, weight, shift = rest
    out, *stats = closed_form.step(x, u, angle_map(post, numbers))
    out = out.to(x.dtype).contiguous()
    if norm != "none":
        wide = upcast(out)
        mean = wide.mean(-1, keepdim=True) if norm == "layer" else torch.zeros_like(wide[..., :1])
        stats += [mean, torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + eps)]
    y = out.new_empty(0) if read is None else apply_norm(upcast(out), norm, eps, weight, shift)
    return out, y.to(read or out.dtype, copy=True).contiguous(), torch.stack([s.squeeze(-1) for s in stats])


def backward_cpu(grad: Tensor | None, read_grad: Tensor | None, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    if interpreting():
        return launch.backward(grad, read_grad, x, u, *rest)
    stats, post, numbers, norm, weight, dweight, dshift = rest
    angles = angle_map(post, numbers)
    xx, c, n2, *moments = stats.unsqueeze(-1).unbind(0)
    _, _, gains, biases = launch.backward_outputs(x, u, dweight, dshift)
    total = torch.zeros_like(upcast(x)) if grad is None else upcast(grad)
    if read_grad is not None:
        dy = upcast(read_grad)
        if norm != "none":
            mean, scale = moments
            a, b = closed_form.rotation(xx, n2, angles)
            wide = upcast(x)
            y = ((a * wide + b * (upcast(u) - c * wide)).to(x.dtype).to(wide.dtype) - mean) * scale
            gains = (dy * y).sum_to_size(dy.shape[-1]).float() if dweight else gains
            biases = dy.sum_to_size(dy.shape[-1]).float() if dshift else biases
            dy = dy if weight is None else dy * weight
            along = (dy * y).mean(-1, keepdim=True) * y
            dy = (dy - dy.mean(-1, keepdim=True) if norm == "layer" else dy) - along
            dy = dy * scale
        total = total + dy
    dx, du, _ = closed_form.gradients(total, x, u, xx, c, n2, angles, learned=False)
    return dx.to(x.dtype).contiguous(), du.to(u.dtype).contiguous(), gains, biases


def forward_fake(x: Tensor, u: Tensor, post: Tensor | None, numbers: list[float], *rest: Any) -> Forward:
    return launch.forward_outputs(x, rest[0], rest[1] != "none")


def backward_fake(grad: Tensor | None, read_grad: Tensor | None, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    return launch.backward_outputs(x, u, *rest[-2:])


for name, cuda, cpu, fake in (
    ("geodesic_forward", launch.forward, forward_cpu, forward_fake),
    ("geodesic_backward", launch.backward, backward_cpu, backward_fake),
):
    LIBRARY.impl(name, cuda, "CUDA")
    LIBRARY.impl(name, cpu, "CPU")
    torch.library.register_fake(f"geonorm::{name}", fake, lib=LIBRARY)


# how they may be sharded


def tell_shard_rules(x: Tensor) -> None:
    """Tells DTensor about the operators when the first one arrives, so that nobody else pays for its import."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and isinstance(x, tensors.DTensor):
        register_shard_rules()


@cache
def register_shard_rules() -> None:
    """For DTensor: rows are independent, so every dimension but the last may be sharded. What every row needs is there
    in full, the scalar of the angle and the gains of a norm; gradients of gains and biases are partial sums."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    whole = Replicate()

    def shards(x: Any) -> list[tuple[Any, Any, Any]]:
        """Placements of rows, of stats and of sums over rows."""
        last = x.ndim - 1
        if any(placement.is_shard(last) for placement in x.placements):
            raise ConfigError(
                "the fused geodesic update needs whole rows, but the last dimension of x is sharded: "
                "shard tokens instead, or use backend='closed'"
            )
        return [(whole, whole, whole), *((Shard(d), Shard(d + 1), Partial()) for d in range(last))]

    def place(t: Any, placement: Any = whole) -> Any:
        return None if t is None else placement

    def forward(
        x: Any, u: Any, post: Any, numbers: Any, read: Any, norm: Any, eps: Any, weight: Any, shift: Any
    ) -> Any:
        ends = [place(post), None, None, None, None, place(weight), place(shift)]
        return [([row, whole if read is None else row, stat], [row, row, *ends]) for row, stat, _ in shards(x)]

    def backward(grad: Any, read_grad: Any, x: Any, u: Any, stats: Any, post: Any, numbers: Any, *rest: Any) -> Any:
        _, weight, _, _ = rest
        ends = [place(post), None, None, place(weight), None, None]
        return [
            ([row, row, total, total], [place(grad, row), place(read_grad, row), row, row, stat, *ends])
            for row, stat, total in shards(x)
        ]

    register_sharding(torch.ops.geonorm.geodesic_forward.default)(forward)
    register_sharding(torch.ops.geonorm.geodesic_backward.default)(backward)
