"""Host side of the kernels that end in a norm, as launch.py of those that do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .launch import as_rows, on, scalars, settings

MAX_DIM = 8192
"""Wider rows take one kernel for the step and the norm after it: six tensors of a row do not fit on chip."""


def backward_settings(dim: int) -> tuple[int, int, int]:
    """BLOCK, ROWS and warps of the backward pass, which holds six tensors: 16 numbers of each per thread. The forward
    pass, which holds two, has the settings of the plain step."""
    block = 1 << max(dim - 1, 0).bit_length()
    return block, max(1, 512 // block), max(1, block // 512)


def programs_for(device: torch.device, tiles: int, warps: int, centred: bool) -> int:
    """How many programs share the tiles of rows where each keeps sums over its own: as many as the processors of a GPU
    hold at a time, so that their partial sums are a few percent of a pass over memory. Always the same on one machine,
    and with it the order of summation.

    ptxas for sm_90 (Triton 3.7.1) finds 101 to 136 registers for RMSNorm from width 512 on, mostly 128, which leave
    room for 16 warps, and for LayerNorm mostly 168, 12 warps, but up to 221; narrower rows take up to 255. LayerNorm
    spills at 6144 and 8192, 56 to 92 bytes a thread, RMSNorm 8 bytes in one variant.
    """
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return min(tiles, processors * max(1, (12 if centred else 16) // warps))


def forward_outputs(x: Tensor, read: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for x', for y in the dtype `read`, and for stats, (5, *batch)."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y = torch.empty(x.shape, dtype=read, device=x.device)
    return out, y, torch.empty((5, *x.shape[:-1]), dtype=torch.float32, device=x.device)


def backward_outputs(
    x: Tensor, u: Tensor, learned: bool, dweight: bool, dshift: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Memory for dx and du; the gradients of the angle's four scalars, of the norm's gains and of its biases in fp32,
    each empty if nobody asks."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    du = torch.empty(x.shape, dtype=u.dtype, device=x.device)
    dim = x.shape[-1]  # a symbol while a graph is traced: torch 2.11 cannot multiply it by True
    sizes = (4 if learned else 0, dim if dweight else 0, dim if dshift else 0)
    four, gains, biases = (torch.empty(n, dtype=torch.float32, device=x.device) for n in sizes)
    return dx, du, four, gains, biases


def forward(
    x: Tensor,
    u: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: list[float],
    weight: Tensor | None,
    shift: Tensor | None,
    eps: float,
    centred: bool,
    read: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """x', y = N(x') in the dtype `read`, and stats of shape (5, *batch)."""
    from .kernels_norm import forward_norm_kernel

    out, y, stats = forward_outputs(x, read)
    count = stats[0].numel()
    if count and x.shape[-1]:
        rows_x, rows_u = as_rows(x), as_rows(u)
        block, rows, warps = settings(x.shape[-1], backward=False)
        arguments, flags = scalars(x, tensors, numbers)
        with on(x):
            forward_norm_kernel[(-(-count // rows),)](
                rows_x, rows_u, out, y, stats,
                out if weight is None else weight.contiguous(), out if shift is None else shift.contiguous(),
                *arguments, eps, count, rows_x.stride(0), rows_u.stride(0),
                **flags, CENTRED=centred, WEIGHTED=weight is not None, SHIFTED=shift is not None,
                DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps,
            )  # fmt: skip
    return out, y, stats


def backward(
    grad: Tensor | None,
    read_grad: Tensor,
    x: Tensor,
    u: Tensor,
    stats: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: list[float],
    learned: bool,
    weight: Tensor | None,
    centred: bool,
    dweight: bool,
    dshift: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dx, du and the gradients of pre, post, gain, bias (4,), of the norm's gains and of its biases (dim,), in fp32;
    what nobody asks for has no elements."""
    from .kernels_norm import backward_norm_kernel

    dx, du, *sums = backward_outputs(x, u, learned, dweight, dshift)
    count = stats[0].numel()
    if not count or not x.shape[-1]:
        four, gains, biases = (total.zero_() for total in sums)
        return dx, du, four, gains, biases
    block, rows, warps = backward_settings(x.shape[-1])
    tiles = -(-count // rows)
    programs = programs_for(x.device, tiles, warps, centred) if dweight or dshift else tiles
    partial = [torch.empty(programs, total.numel(), dtype=torch.float32, device=x.device) for total in sums]
    rows_read, rows_x, rows_u = as_rows(read_grad), as_rows(x), as_rows(u)
    rows_grad = rows_read if grad is None else as_rows(grad)
    arguments, flags = scalars(x, tensors, numbers)
    with on(x):
        backward_norm_kernel[(programs,)](
            rows_grad, rows_read, rows_x, rows_u, stats.contiguous(), stats if weight is None else weight.contiguous(),
            dx, du, *partial, *arguments, count,
            rows_grad.stride(0), rows_read.stride(0), rows_x.stride(0), rows_u.stride(0),
            **flags, LEARNED=learned, CENTRED=centred, WEIGHTED=weight is not None, DWEIGHT=dweight, DSHIFT=dshift,
            STREAM=grad is not None, DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps,
        )  # fmt: skip
    four, gains, biases = (part.sum(0) for part in partial)
    return dx, du, four, gains, biases
