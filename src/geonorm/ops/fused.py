"""The Triton kernels as PyTorch operators, and the autograd function around them.

    geonorm::geodesic_forward       x' and the scalars of every row
    geonorm::geodesic_forward_read  the same, and x' once more in the dtype of the next sub-layer
    geonorm::geodesic_backward      dx, du and the gradients of pre, post, gain, bias

Raw operators with autograd outside cost a third of `custom_op` with `register_autograd` per call. Each knows its shapes
(torch.compile, meta tensors), its CPU form (the closed form, or the kernels under Triton's interpreter) and how it may
be sharded. `numbers` are pre, post, gain, bias, max_angle and 1 / power; a tensor beside one of the first four replaces
it. stats is (3, *batch) fp32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..norms import upcast
from . import closed_form, launch
from .angle import AngleMap
from .available import interpreting
from .reference import differentiated, gradients_of, reference

SCALARS = "Tensor? pre, Tensor? post, Tensor? gain, Tensor? bias, float[] numbers"
LIBRARY = torch.library.Library("geonorm", "DEF")
for schema in (
    f"geodesic_forward(Tensor x, Tensor u, {SCALARS}) -> (Tensor, Tensor)",
    f"geodesic_forward_read(Tensor x, Tensor u, {SCALARS}, ScalarType read) -> (Tensor, Tensor, Tensor)",
    "geodesic_backward(Tensor grad, Tensor? read_grad, Tensor x, Tensor u, Tensor stats, "
    f"{SCALARS}, bool learned) -> (Tensor, Tensor, Tensor)",
):
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def update(x: Tensor, u: Tensor, angles: AngleMap) -> Tensor:
    """x' by the kernels. Arguments have been checked by the caller."""
    out: Tensor = Fused.apply(x, u, *fields(angles), None)
    return out


def update_and_read(x: Tensor, u: Tensor, angles: AngleMap, read: torch.dtype) -> tuple[Tensor, Tensor]:
    """x' and x' in the dtype `read`, one tensor if that is the dtype of x; their gradients are added on chip."""
    out: tuple[Tensor, Tensor] = Fused.apply(x, u, *fields(angles), read)
    return out


def fields(angles: AngleMap) -> tuple[Any, ...]:
    return angles.pre, angles.post, angles.gain, angles.bias, angles.max_angle, angles.power


def split(parameters: Sequence[Any], max_angle: float, power: float) -> tuple[list[Tensor | None], list[float]]:
    """pre, post, gain and bias as the operators take them: tensors, and numbers for the rest."""
    tensors = [p if isinstance(p, Tensor) else None for p in parameters]
    numbers = [0.0 if isinstance(p, Tensor) else float(p) for p in parameters]
    return tensors, [*numbers, float(max_angle), 0.0 if power == inf else 1.0 / power]


def handed_out(found: Tensor, tensors: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    """The gradients of pre, post, gain and bias, for those that want one."""
    return [
        found[i].to(t).view(t.shape) if needed and t is not None else None
        for i, (t, needed) in enumerate(zip(tensors, wanted, strict=True))
    ]


class Fused(torch.autograd.Function):
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
        read: torch.dtype | None,
    ) -> Any:
        tensors, numbers = split((pre, post, gain, bias), max_angle, power)
        shard_rules(x, register_shard_rules)
        if read is None or read == x.dtype:
            out, stats = torch.ops.geonorm.geodesic_forward(x, u, *tensors, numbers)
            second = None if read is None else out.view_as(out)
        else:
            out, second, stats = torch.ops.geonorm.geodesic_forward_read(x, u, *tensors, numbers, read)
        ctx.save_for_backward(x, u, stats, *tensors)
        ctx.numbers, ctx.read = numbers, read
        ctx.set_materialize_grads(False)
        return out if second is None else (out, second)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, read_grad: Tensor | None = None) -> Any:
        x, u, stats, *tensors = ctx.saved_tensors
        if differentiated(grad, read_grad):

            def textbook(x: Tensor, u: Tensor, *tensors: Any) -> tuple[Tensor, Tensor]:
                out = reference(x, u, angle_map(tensors, ctx.numbers))
                return out, out.to(ctx.read or out.dtype)

            found = gradients_of(textbook, (x, u, *tensors), ctx.needs_input_grad[:6], (grad, read_grad))
            return *found, None, None, None
        if grad is None:
            grad, read_grad = read_grad, None
        if grad is None:
            return (None,) * 9
        wanted = ctx.needs_input_grad[2:6]
        dx, du, found = torch.ops.geonorm.geodesic_backward(
            grad, read_grad, x, u, stats, *tensors, ctx.numbers, any(wanted)
        )
        return dx, du, *handed_out(found, tensors, wanted), None, None, None


# what the operators do on each device; `scalars` are pre, post, gain, bias, numbers


def angle_map(tensors: Sequence[Tensor | None], numbers: list[float]) -> AngleMap:
    pre, post, gain, bias = (n if t is None else t for n, t in zip(numbers[:4], tensors, strict=True))
    return AngleMap(pre, post, gain, bias, numbers[4], 1 / numbers[5] if numbers[5] else inf)


def stacked(x: Tensor, u: Tensor, *scalars: Any) -> tuple[Tensor, Tensor]:
    """The closed form in the layout of the kernels."""
    *tensors, numbers = scalars
    out, *stats = closed_form.step(x, u, angle_map(tensors, numbers))
    return out.to(x.dtype).contiguous(), torch.stack([s.squeeze(-1) for s in stats])


def forward_cuda(x: Tensor, u: Tensor, *scalars: Any) -> tuple[Tensor, Tensor]:
    *tensors, numbers = scalars
    out, _, stats = launch.forward(x, u, tensors, numbers, None)
    return out, stats


def forward_cpu(x: Tensor, u: Tensor, *scalars: Any) -> tuple[Tensor, Tensor]:
    return forward_cuda(x, u, *scalars) if interpreting() else stacked(x, u, *scalars)


def forward_fake(x: Tensor, u: Tensor, *scalars: Any) -> tuple[Tensor, Tensor]:
    out, _, stats = launch.forward_outputs(x, None)
    return out, stats


def read_cuda(x: Tensor, u: Tensor, *scalars: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    *tensors, numbers, read = scalars
    return launch.forward(x, u, tensors, numbers, read)


def read_cpu(x: Tensor, u: Tensor, *scalars: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    if interpreting():
        return read_cuda(x, u, *scalars)
    out, stats = stacked(x, u, *scalars[:-1])
    return out, out.to(scalars[-1], copy=True), stats


def read_fake(x: Tensor, u: Tensor, *scalars: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    return launch.forward_outputs(x, scalars[-1])


Backward = tuple[Tensor, Tensor, Tensor]


def backward_cuda(grad: Tensor, read_grad: Tensor | None, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    stats, *tensors, numbers, learned = rest
    return launch.backward(grad, read_grad, x, u, stats, tensors, numbers, learned)


def backward_cpu(grad: Tensor, read_grad: Tensor | None, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    if interpreting():
        return backward_cuda(grad, read_grad, x, u, *rest)
    stats, *tensors, numbers, learned = rest
    total = upcast(grad) if read_grad is None else upcast(grad) + upcast(read_grad)
    xx, c, n2 = stats.unsqueeze(-1).unbind(0)
    dx, du, found = closed_form.gradients(total, x, u, xx, c, n2, angle_map(tensors, numbers), learned)
    four = torch.stack(found).float() if learned else torch.empty(0, device=x.device)
    return dx.to(x.dtype).contiguous(), du.to(u.dtype).contiguous(), four


def backward_fake(grad: Tensor, read_grad: Tensor | None, x: Tensor, u: Tensor, *rest: Any) -> Backward:
    return launch.backward_outputs(x, u, rest[-1])


for name, cuda, cpu, fake in (
    ("geodesic_forward", forward_cuda, forward_cpu, forward_fake),
    ("geodesic_forward_read", read_cuda, read_cpu, read_fake),
    ("geodesic_backward", backward_cuda, backward_cpu, backward_fake),
):
    LIBRARY.impl(name, cuda, "CUDA")
    LIBRARY.impl(name, cpu, "CPU")
    torch.library.register_fake(f"geonorm::{name}", fake, lib=LIBRARY)


# how they may be sharded


def by_rows(placements: Callable[[Any, Any], tuple[list[Any], list[Any]]], x: Any) -> list[Any]:
    """Rows are independent, so every dimension but the last may be sharded. `placements` of outputs and arguments, from
    those of a tensor of rows and of stats."""
    from torch.distributed.tensor import Replicate, Shard

    whole = x.ndim - 1
    if any(placement.is_shard(whole) for placement in x.placements):
        raise ConfigError(
            "the fused geodesic update needs whole rows, but the last dimension of x is sharded: "
            "shard tokens instead, or use backend='closed'"
        )
    return [placements(Replicate(), Replicate()), *(placements(Shard(d), Shard(d + 1)) for d in range(whole))]


def everywhere(tensors: Sequence[Any]) -> list[Any]:
    """Placements of what every shard needs in full: scalars of the angle, gains of a norm."""
    from torch.distributed.tensor import Replicate

    return [None if t is None else Replicate() for t in tensors]


@cache
def register_shard_rules() -> None:
    """For DTensor: gradients of scalars are partial sums."""
    from torch.distributed.tensor import Partial, Shard
    from torch.distributed.tensor.experimental import register_sharding

    ops = torch.ops.geonorm

    def forward(x: Any, u: Any, *rest: Any) -> Any:
        return by_rows(lambda row, stat: ([row, stat], [row, row, *everywhere(rest[:4]), None]), x)

    def forward_read(x: Any, u: Any, *rest: Any) -> Any:
        return by_rows(lambda row, stat: ([row, row, stat], [row, row, *everywhere(rest[:4]), None, None]), x)

    def backward(grad: Any, read_grad: Any, x: Any, u: Any, stats: Any, *rest: Any) -> Any:
        def placements(row: Any, stat: Any) -> tuple[list[Any], list[Any]]:
            total = Partial() if isinstance(row, Shard) else row
            grads = [row, None if read_grad is None else row]
            return [row, row, total], [*grads, row, row, stat, *everywhere(rest[:4]), None, None]

        return by_rows(placements, x)

    register_sharding(ops.geodesic_forward.default)(forward)
    register_sharding(ops.geodesic_forward_read.default)(forward_read)
    register_sharding(ops.geodesic_backward.default)(backward)


def shard_rules(x: Tensor, register: Callable[[], None]) -> None:
    """Tells DTensor about operators when the first one arrives, so that nobody else pays for its import."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and isinstance(x, tensors.DTensor):
        register()
