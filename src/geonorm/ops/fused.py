"""The Triton kernels as two PyTorch operators, and the autograd function around them.

    geonorm::write_forward   x', the scalars of every row and, if somebody reads it, y
    geonorm::write_backward  dx, du and those gradients of a, b, c, gains and biases that are wanted

rule is geodesic, or the norm of u (none | rms | layer) in the flat write a x + b N(u) + c. Of a geodesic step, a is
the decay `post` where that is a tensor, and `numbers` are post, max_angle and the one angle of all tokens (0 if each
has its own); of a flat write a, b, c are vectors (dim,), `numbers` are a and b, where those are none, and the eps of N.

y is x' in the dtype of the next sub-layer or, with norm = rms | layer instead of none, N(x'); weight and shift are the
gains and biases of that N, (dim,). Raw operators with autograd outside cost a third of `custom_op` with
`register_autograd` per call. Each knows its shapes (torch.compile, meta tensors); on a CPU it needs
Triton's interpreter. stats is (3, *batch) fp32, with a norm (5, *batch).
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms import LayerNorm, RMSNorm, upcast
from . import launch
from .angle import AngleMap
from .reference import differentiated, gradients_of, reference

LIBRARY = torch.library.Library("geonorm", "DEF")
for schema in (
    "write_forward(Tensor x, Tensor u, Tensor? a, Tensor? b, Tensor? c, str rule, float[] numbers, ScalarType? read, "
    "str norm, float eps, Tensor? weight, Tensor? shift) -> Tensor[]",
    "write_backward(Tensor? grad, Tensor? read_grad, Tensor x, Tensor u, Tensor stats, Tensor? a, Tensor? b, "
    "Tensor? c, str rule, float[] numbers, str norm, Tensor? weight, bool[] wanted) -> Tensor[]",
):
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


class RowNorm(NamedTuple):
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


Plan = tuple[list[Tensor | None], str, list[float]]
"""a, b and c, then rule and numbers."""


def plan_step(angles: AngleMap) -> Plan:
    """What the operators are told of an angle map, and back: `angle_map`."""
    post = angles.post if isinstance(angles.post, Tensor) else None
    level = float(angles.bias) if angles.levelled else 0.0
    return (
        [post, None, None],
        "geodesic",
        [1.0 if post is not None else float(angles.post), float(angles.max_angle), level],
    )


def write(
    x: Tensor,
    u: Tensor,
    weights: list[Tensor | None],
    rule: str,
    numbers: list[float],
    read: torch.dtype | None = None,
    norm: RowNorm | None = None,
) -> Any:
    """x' by the kernels, and with `read` x' or N(x') in that dtype, one tensor if both are the same; their gradients
    are added on chip. Arguments have been checked by the caller."""
    ends = norm or RowNorm()
    if read is None:
        return Fused.apply(x, u, *weights, rule, numbers, None, *ends)
    # N has the dtype of its input, so a wider one would hold digits that it does not give
    narrow = read if read.itemsize <= x.dtype.itemsize else x.dtype
    out, y = Fused.apply(x, u, *weights, rule, numbers, narrow, *ends)
    return out, y.to(read)


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        u: Tensor,
        a: Tensor | None,
        b: Tensor | None,
        c: Tensor | None,
        rule: str,
        numbers: list[float],
        read: torch.dtype | None,
        norm: str,
        eps: float,
        weight: Tensor | None,
        shift: Tensor | None,
    ) -> Any:
        apart = read if norm != "none" or read != x.dtype else None
        out, stats, *y = torch.ops.geonorm.write_forward(x, u, a, b, c, rule, numbers, apart, norm, eps, weight, shift)
        ctx.save_for_backward(x, u, stats, a, b, c, weight, shift)
        ctx.options = rule, numbers, read, norm, eps
        ctx.set_materialize_grads(False)
        if read is None:
            return out
        return out, out.view_as(out) if apart is None else y[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, read_grad: Tensor | None = None) -> Any:
        x, u, stats, a, b, c, weight, shift = ctx.saved_tensors
        rule, numbers, read, norm, _ = ctx.options
        needed = ctx.needs_input_grad
        wanted = (*needed[:5], *needed[10:])
        learned = (a, b, c, weight, shift)
        if differentiated(grad, read_grad):
            grads = (grad,) if read is None else (grad, read_grad)
            dx, du, *sums = gradients_of(partial(write_plainly, ctx.options), (x, u, *learned), wanted, grads)
        elif grad is None and read_grad is None:
            return (None,) * 12
        else:
            norm = "none" if read_grad is None else norm
            summed = [*wanted[2:5], *(norm != "none" and want for want in wanted[5:])]
            dx, du, *totals = torch.ops.geonorm.write_backward(
                grad, read_grad, x, u, stats, a, b, c, rule, numbers, norm, weight, summed
            )
            rest = iter(totals)
            sums = [next(rest).to(t.dtype) if want else None for t, want in zip(learned, summed, strict=True)]
        return dx, du, *sums[:3], None, None, None, None, None, *sums[3:]


def write_plainly(
    options: tuple[Any, ...],
    x: Tensor,
    u: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    weight: Tensor | None,
    shift: Tensor | None,
) -> tuple[Tensor, ...]:
    """What the operators return, (x',) or (x', y), in plain differentiable PyTorch, for second derivatives. options:
    from rule to eps."""
    rule, numbers, read, norm, eps = options
    if rule == "geodesic":
        out = reference(x, u, angle_map(a, numbers))
    else:
        wide = upcast(x)
        n = apply_norm(upcast(u).to(wide.dtype), rule, numbers[2], None, None)
        keep, scale = (number if t is None else t.to(wide.dtype) for number, t in zip(numbers, (a, b), strict=False))
        total = keep * wide + scale * n
        out = (total if c is None else total + c.to(wide.dtype)).to(x.dtype)
    return (out,) if read is None else (out, apply_norm(upcast(out), norm, eps, weight, shift).to(read))


def apply_norm(x: Tensor, norm: str, eps: float, weight: Tensor | None, shift: Tensor | None) -> Tensor:
    """N(x) as `norms` computes it."""
    gains, biases = (None if t is None else t.to(x.dtype) for t in (weight, shift))
    size = (x.shape[-1],)
    if norm == "none":
        return x
    return F.layer_norm(x, size, gains, biases, eps) if norm == "layer" else F.rms_norm(x, size, gains, eps)


def angle_map(post: Tensor | None, numbers: list[float]) -> AngleMap:
    rate, max_angle, level = numbers
    gain = 0.0 if level else 1.0
    return AngleMap(post=rate if post is None else post, gain=gain, bias=level, max_angle=max_angle)


for name, run, fake in (
    ("write_forward", launch.forward, lambda x, *rest: launch.forward_outputs(x, rest[6], rest[7] != "none")),
    ("write_backward", launch.backward, lambda *every: launch.backward_outputs(every[2], every[3], every[-1])),
):
    for device in ("CUDA", "CPU"):
        LIBRARY.impl(name, run, device)
    torch.library.register_fake(f"geonorm::{name}", fake, lib=LIBRARY)
