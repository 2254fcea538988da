"""Host side of the Triton kernels: which settings, which memory, one launch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError

MAX_DIM = 16384
"""A row must fit on chip; wider rows take the closed form."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def settings(dim: int, backward: bool) -> tuple[int, int, int]:
    """(BLOCK, ROWS, warps): the padded width, rows per program, warps per program.

    Rows up to 1024 wide belong to one warp, whose sums need no shared memory; rows narrower than 512 share it. Wider
    rows take one warp per 1024 numbers, 32 of each tensor per thread; backward, which holds three tensors, half as many
    beyond 8192. ptxas for sm_90 (Triton 3.7.1; widths 64 to 16384, u in fp32 and bf16, scalars learned or not) then
    finds at most 96 registers forward and 181 backward. Backward beyond 8192, where 32 warps leave 64 registers, it
    spills 4 to 216 bytes a thread; elsewhere 4 or 8 in a few variants.
    """
    block = 1 << max(dim - 1, 0).bit_length()
    per_thread = 16 if backward and block > 8192 else 32
    return block, max(1, 512 // block), max(1, block // (32 * per_thread))


def as_rows(t: Tensor) -> Tensor:
    """(rows, dim) with neighbours in memory: a view where the layout allows it, else a copy."""
    rows = t.reshape(-1, t.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


def scalars(x: Tensor, tensors: Sequence[Tensor | None], numbers: list[float]) -> tuple[list[Any], dict[str, bool]]:
    """Kernel arguments pre .. inverse_power, floats or pointers, and the flags that say which. A number in the memory
    of the CPU is read there: nothing is copied to a GPU, which a CUDA graph would not allow."""
    arguments: list[Any] = list(numbers)
    for i, tensor in enumerate(tensors):
        if tensor is not None:
            if tensor.numel() != 1:
                raise ConfigError(f"the scalars of an angle map are single numbers, got shape {tuple(tensor.shape)}")
            near = tensor.device.type != "cpu" or x.device.type == "cpu"
            arguments[i] = tensor.to(x.device) if near else tensor.item()
    names = ("PRE_PTR", "POST_PTR", "GAIN_PTR", "BIAS_PTR")
    flags = {name: isinstance(argument, Tensor) for name, argument in zip(names, arguments, strict=False)}
    return arguments, flags | {"FINITE": numbers[5] != 0, "BIASED": tensors[3] is not None or numbers[3] != 0}


def forward_outputs(x: Tensor, read: torch.dtype | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Memory for x', x' in the dtype `read`, and stats: all contiguous, whatever the layout of x."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    second = None if read is None else torch.empty(x.shape, dtype=read, device=x.device)
    return out, second, torch.empty((3, *x.shape[:-1]), dtype=torch.float32, device=x.device)


def backward_outputs(x: Tensor, u: Tensor, learned: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for dx, du and the four gradients of the scalars."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    du = torch.empty(x.shape, dtype=u.dtype, device=x.device)
    return dx, du, torch.empty(4 if learned else 0, dtype=torch.float32, device=x.device)


def forward(
    x: Tensor, u: Tensor, tensors: Sequence[Tensor | None], numbers: list[float], read: torch.dtype | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """x', x' in the dtype `read` if asked, and stats of shape (3, *batch)."""
    from .kernels import forward_kernel

    out, second, stats = forward_outputs(x, read)
    count = stats[0].numel()
    if count and x.shape[-1]:
        rows_x, rows_u = as_rows(x), as_rows(u)
        block, rows, warps = settings(x.shape[-1], backward=False)
        arguments, flags = scalars(x, tensors, numbers)
        with on(x):
            forward_kernel[(-(-count // rows),)](
                rows_x, rows_u, out, out if second is None else second, stats,
                *arguments, count, rows_x.stride(0), rows_u.stride(0),
                **flags, READ=second is not None, DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps,
            )  # fmt: skip
    return out, second, stats


def backward(
    grad: Tensor,
    read_grad: Tensor | None,
    x: Tensor,
    u: Tensor,
    stats: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: list[float],
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, du and the gradients of pre, post, gain, bias: (4,) fp32, or (0,) if nothing is learned."""
    from .kernels import backward_kernel

    dx, du, nothing = backward_outputs(x, u, learned)
    count = stats[0].numel()
    if not count or not x.shape[-1]:
        return dx, du, nothing.zero_()
    block, rows, warps = settings(x.shape[-1], backward=True)
    programs = -(-count // rows)
    partial = torch.empty(4, programs, dtype=torch.float32, device=x.device) if learned else nothing
    rows_grad, rows_x, rows_u = as_rows(grad), as_rows(x), as_rows(u)
    rows_read = rows_grad if read_grad is None else as_rows(read_grad)
    arguments, flags = scalars(x, tensors, numbers)
    with on(x):
        backward_kernel[(programs,)](
            rows_grad, rows_read, rows_x, rows_u, stats.contiguous(), dx, du, partial,
            *arguments, count, rows_grad.stride(0), rows_read.stride(0), rows_x.stride(0), rows_u.stride(0),
            **flags, READ=read_grad is not None, LEARNED=learned,
            DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps,
        )  # fmt: skip
    return dx, du, partial.sum(1) if learned else nothing


def on(x: Tensor) -> Any:
    """Triton launches on the current device: make it that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
