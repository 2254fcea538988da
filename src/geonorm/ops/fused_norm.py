"""The kernels that end in a norm as PyTorch operators, with the autograd function around them: see fused.py.

    geonorm::geodesic_forward_norm   x', y = N(x') and the scalars of every row, stats (5, *batch)
    geonorm::geodesic_backward_norm  dx, du, the gradients of pre, post, gain, bias, and of the norm's gains and biases

N is RMSNorm or, centred, LayerNorm; weight and shift are its gains and biases, (dim,).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms import LayerNorm, RMSNorm, upcast
from . import closed_form, fused, launch, launch_norm
from .angle import AngleMap
from .available import interpreting
from .fused import LIBRARY, SCALARS, angle_map, by_rows, everywhere, fields, handed_out, split, stacked
from .reference import differentiated, gradients_of, reference

for schema in (
    f"geodesic_forward_norm(Tensor x, Tensor u, {SCALARS}, Tensor? weight, Tensor? shift, float eps, bool centred, "
    "ScalarType read) -> (Tensor, Tensor, Tensor)",
    f"geodesic_backward_norm(Tensor? grad, Tensor read_grad, Tensor x, Tensor u, Tensor stats, {SCALARS}, "
    "bool learned, Tensor? weight, bool centred, bool dweight, bool dshift) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
):
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


@dataclass(frozen=True)
class RowNorm:
    """A norm of rows that the kernels know, as the numbers they need."""

    weight: Tensor | None
    shift: Tensor | None
    eps: float
    centred: bool


def row_norm(norm: nn.Module, x: Tensor) -> RowNorm | None:
    """The norm as numbers, if the kernels can take it on rows like those of x. A module that somebody watches or has
    changed (hooks, a parametrisation, a subclass) is called instead, so that it is seen."""
    if not isinstance(norm, (RMSNorm, LayerNorm)) or type(norm) not in (RMSNorm, LayerNorm):
        return None
    hooks = (norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks, norm._backward_pre_hooks)
    if any(hooks) or norm.dim != x.shape[-1] or norm.dim > launch_norm.MAX_DIM:
        return None
    shift = norm.bias if isinstance(norm, LayerNorm) else None
    if any(t is not None and (t.dtype not in launch.DTYPES or t.device != x.device) for t in (norm.weight, shift)):
        return None
    return RowNorm(norm.weight, shift, norm.eps, isinstance(norm, LayerNorm))


def update_and_norm(x: Tensor, u: Tensor, angles: AngleMap, norm: RowNorm, read: torch.dtype) -> tuple[Tensor, Tensor]:
    """x' and N(x') in the dtype `read`; what comes back to both is added on chip."""
    # N has the dtype of its input, so a wider one would hold digits that it does not give
    narrow = read if read.itemsize <= x.dtype.itemsize else x.dtype
    out, y = FusedNorm.apply(x, u, *fields(angles), norm.weight, norm.shift, norm.eps, norm.centred, narrow)
    return out, y.to(read)


class FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        u: Tensor,
        pre: Any,
        post: Any,
        gain: Any,
        bias: Any,
        max_angle: float,
        power: float,
        weight: Tensor | None,
        shift: Tensor | None,
        eps: float,
        centred: bool,
        read: torch.dtype,
    ) -> Any:
        tensors, numbers = split((pre, post, gain, bias), max_angle, power)
        fused.shard_rules(x, register_shard_rules)
        out, y, stats = torch.ops.geonorm.geodesic_forward_norm(
            x, u, *tensors, numbers, weight, shift, eps, centred, read
        )
        ctx.save_for_backward(x, u, stats, weight, shift, *tensors)
        ctx.numbers, ctx.eps, ctx.centred, ctx.read = numbers, eps, centred, read
        ctx.set_materialize_grads(False)
        return out, y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, read_grad: Tensor | None) -> Any:
        x, u, stats, weight, shift, *tensors = ctx.saved_tensors
        wanted, (dweight, dshift) = ctx.needs_input_grad[2:6], ctx.needs_input_grad[8:10]
        if differentiated(grad, read_grad):

            def textbook(x: Tensor, u: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
                *tensors, weight, shift = rest
                out = reference(x, u, angle_map(tensors, ctx.numbers))
                return out, normed(upcast(out), weight, shift, ctx.eps, ctx.centred).to(ctx.read)

            inputs, asked = (x, u, *tensors, weight, shift), (*ctx.needs_input_grad[:6], dweight, dshift)
            *found, gains, biases = gradients_of(textbook, inputs, asked, (grad, read_grad))
            return *found, None, None, gains, biases, None, None, None
        scalars = (*tensors, ctx.numbers, any(wanted))
        gains = biases = None
        if read_grad is not None:
            dx, du, found, gains, biases = torch.ops.geonorm.geodesic_backward_norm(
                grad, read_grad, x, u, stats, *scalars, weight, ctx.centred, dweight, dshift
            )
            gains = gains.to(weight.dtype) if dweight else None
            biases = biases.to(shift.dtype) if dshift else None
        elif grad is not None:
            dx, du, found = torch.ops.geonorm.geodesic_backward(grad, None, x, u, stats[:3], *scalars)
        else:
            return (None,) * 13
        return dx, du, *handed_out(found, tensors, wanted), None, None, gains, biases, None, None, None


def normed(x: Tensor, weight: Tensor | None, shift: Tensor | None, eps: float, centred: bool) -> Tensor:
    """N(x) as `norms` computes it."""
    gains, biases = (None if t is None else t.to(x.dtype) for t in (weight, shift))
    size = (x.shape[-1],)
    return F.layer_norm(x, size, gains, biases, eps) if centred else F.rms_norm(x, size, gains, eps)


# what the operators do on each device


Triple = tuple[Tensor, Tensor, Tensor]


def forward_cuda(x: Tensor, u: Tensor, *rest: Any) -> Triple:
    *tensors, numbers, weight, shift, eps, centred, read = rest
    return launch_norm.forward(x, u, tensors, numbers, weight, shift, eps, centred, read)


def forward_cpu(x: Tensor, u: Tensor, *rest: Any) -> Triple:
    if interpreting():
        return forward_cuda(x, u, *rest)
    *scalars, weight, shift, eps, centred, read = rest
    out, stats = stacked(x, u, *scalars)
    y = upcast(out)
    mean = y.mean(-1, keepdim=True) if centred else torch.zeros_like(y[..., :1])
    y = y - mean
    scale = torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    y = y * scale
    y = y if weight is None else y * weight
    y = y if shift is None else y + shift
    return out, y.to(read).contiguous(), torch.cat([stats, mean.squeeze(-1)[None], scale.squeeze(-1)[None]])


def forward_fake(x: Tensor, u: Tensor, *rest: Any) -> Triple:
    return launch_norm.forward_outputs(x, rest[-1])


Backward = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def backward_cuda(grad: Tensor | None, read_grad: Tensor, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    stats, *tensors, numbers, learned, weight, centred, dweight, dshift = rest
    return launch_norm.backward(
        grad, read_grad, x, u, stats, tensors, numbers, learned, weight, centred, dweight, dshift
    )


def backward_cpu(grad: Tensor | None, read_grad: Tensor, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    if interpreting():
        return backward_cuda(grad, read_grad, x, u, *rest)
    stats, *tensors, numbers, learned, weight, centred, dweight, dshift = rest
    xx, c, n2, mean, scale = stats.unsqueeze(-1).unbind(0)
    angles = angle_map(tensors, numbers)
    a, b = closed_form.rotation(xx, n2, angles)
    wide = upcast(x)
    y = ((a * wide + b * (upcast(u) - c * wide)).to(x.dtype).to(wide.dtype) - mean) * scale
    dy = upcast(read_grad)
    rows = tuple(range(dy.dim() - 1))
    gains = (dy * y).sum(rows) if dweight else dy.new_empty(0)
    biases = dy.sum(rows) if dshift else dy.new_empty(0)
    dy = dy if weight is None else dy * weight
    do = dy - (dy * y).mean(-1, keepdim=True) * y
    do = (do - dy.mean(-1, keepdim=True) if centred else do) * scale
    do = do if grad is None else do + upcast(grad)
    dx, du, found = closed_form.gradients(do, x, u, xx, c, n2, angles, learned)
    four = torch.stack(found).float() if learned else torch.empty(0, device=x.device)
    return dx.to(x.dtype).contiguous(), du.to(u.dtype).contiguous(), four, gains.float(), biases.float()


def backward_fake(grad: Tensor | None, read_grad: Tensor, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    _, *_, learned, _, _, dweight, dshift = rest
    return launch_norm.backward_outputs(x, u, learned, dweight, dshift)


for name, cuda, cpu, fake in (
    ("geodesic_forward_norm", forward_cuda, forward_cpu, forward_fake),
    ("geodesic_backward_norm", backward_cuda, backward_cpu, backward_fake),
):
    LIBRARY.impl(name, cuda, "CUDA")
    LIBRARY.impl(name, cpu, "CPU")
    torch.library.register_fake(f"geonorm::{name}", fake, lib=LIBRARY)


# how they may be sharded


@cache
def register_shard_rules() -> None:
    """For DTensor: gradients of scalars, gains and biases are partial sums."""
    from torch.distributed.tensor import Partial, Shard
    from torch.distributed.tensor.experimental import register_sharding

    fused.register_shard_rules()  # if nobody read y, the backward pass is that of the plain step

    def forward(x: Any, u: Any, *rest: Any) -> Any:
        *scalars, _, weight, shift, _, _, _ = rest
        ends = [None, *everywhere((weight, shift)), None, None, None]
        return by_rows(lambda row, stat: ([row, row, stat], [row, row, *everywhere(scalars), *ends]), x)

    def backward(grad: Any, read_grad: Any, x: Any, u: Any, stats: Any, *rest: Any) -> Any:
        *scalars, _, _, weight, _, _, _ = rest

        def placements(row: Any, stat: Any) -> tuple[list[Any], list[Any]]:
            total = Partial() if isinstance(row, Shard) else row
            ends = [*everywhere(scalars), None, None, *everywhere((weight,)), None, None, None]
            return [row, row, total, total, total], [None if grad is None else row, row, row, row, stat, *ends]

        return by_rows(placements, x)

    register_sharding(torch.ops.geonorm.geodesic_forward_norm.default)(forward)
    register_sharding(torch.ops.geonorm.geodesic_backward_norm.default)(backward)
