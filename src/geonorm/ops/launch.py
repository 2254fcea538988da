"""Host side of the Triton kernels: which settings, which memory, one launch forward and one backward."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

MAX_DIM = 16384
"""A row must fit on chip; wider rows take the closed form."""
MAX_NORM_DIM = 8192
"""Wider rows take one kernel for the step and the norm after it: six tensors of a row do not fit on chip."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def settings(dim: int, backward: bool, normed: bool = False) -> tuple[int, int, int]:
    """(BLOCK, ROWS, warps): the padded width, rows per program, warps per program.

    Rows up to 1024 wide belong to one warp, whose sums need no shared memory; rows narrower than 512 share it. Wider
    rows take one warp per 1024 numbers, 32 of each tensor per thread; half as many where a thread holds more tensors:
    backward beyond 8192, and backward through a norm.
    """
    block = 1 << max(dim - 1, 0).bit_length()
    per_thread = 16 if backward and (normed or block > 8192) else 32
    return block, max(1, 512 // block), max(1, block // (32 * per_thread))


def programs_for(device: torch.device, tiles: int, warps: int, centred: bool) -> int:
    """How many programs share the tiles of rows where each keeps sums over its own: as many as the processors of a GPU
    hold at a time, so that their partial sums are a few percent of a pass over memory. Always the same on one machine,
    and with it the order of summation."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return min(tiles, processors * max(1, (12 if centred else 16) // warps))


def as_rows(t: Tensor) -> Tensor:
    """(rows, dim) with neighbours in memory: a view where the layout allows it, else a copy."""
    rows = t.reshape(-1, t.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


def arguments_of(
    a: Tensor | None, b: Tensor | None, c: Tensor | None, rule: str, numbers: list[float], x: Tensor
) -> tuple[list[Any], dict[str, Any]]:
    """Kernel arguments a, b, c, max_angle and level, and the flags that belong to them. A number in the memory of the
    CPU is read there: nothing is copied to a GPU, which a CUDA graph would not allow."""
    flat = rule != "geodesic"
    if not flat and a is not None:
        near = a.device.type != "cpu" or x.device.type == "cpu"
        first: Any = a.to(x.device) if near else a.item()
    else:
        first = numbers[0] if a is None else a.contiguous()
    second = numbers[1] if b is None else b.contiguous()
    return [first, second, x if c is None else c.contiguous(), *numbers[1:3]], {
        "FLAT": flat,
        "INNER": rule if flat else "none",
        "LEVEL": not flat and numbers[2] != 0.0,
        "A_PTR": isinstance(first, Tensor),
        "B_PTR": b is not None,
        "C_PTR": c is not None,
    }


def forward_outputs(x: Tensor, read: torch.dtype | None, normed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for x', for y in the dtype `read` (no elements if None), and for stats: all contiguous."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y = torch.empty(0 if read is None else x.shape, dtype=read or x.dtype, device=x.device)
    return out, y, torch.empty((5 if normed else 3, *x.shape[:-1]), dtype=torch.float32, device=x.device)


def backward_outputs(x: Tensor, u: Tensor, wanted: list[bool]) -> tuple[Tensor, ...]:
    """Memory for dx and du, and for the sums over rows in fp32, (dim,) or, where nobody asks, without elements."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    du = torch.empty(x.shape, dtype=u.dtype, device=x.device)
    dim = x.shape[-1]  # a symbol while a graph is traced: torch 2.11 cannot multiply it by True
    return dx, du, *(torch.empty(dim if summed else 0, dtype=torch.float32, device=x.device) for summed in wanted)


def forward(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """x', y in the dtype `read` if asked, and stats. norm: none | rms | layer."""
    from .kernels import forward_kernel

    out, y, stats = forward_outputs(x, read, norm != "none")
    count = stats[0].numel()
    if count and x.shape[-1]:
        rows_x, rows_u = as_rows(x), as_rows(u)
        block, rows, warps = settings(x.shape[-1], backward=False)
        scalars, flags = arguments_of(a, b, c, rule, numbers, x)
        with on(x):
            forward_kernel[(-(-count // rows),)](
                rows_x, rows_u, out, y, stats,
                out if weight is None else weight.contiguous(), out if shift is None else shift.contiguous(),
                *scalars, numbers[2], eps, count, rows_x.stride(0), rows_u.stride(0),
                **flags, READ=read is not None, NORM=norm, WEIGHTED=weight is not None, SHIFTED=shift is not None,
                DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps,
            )  # fmt: skip
    return out, y, stats


def backward(
    grad: Tensor | None,
    read_grad: Tensor | None,
    x: Tensor,
    u: Tensor,
    stats: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    rule: str,
    numbers: list[float],
    norm: str,
    weight: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    """dx, du and the gradients of a, b, c and of the norm's gains and biases, (dim,) in fp32; what nobody asks for has
    no elements."""
    from .kernels import backward_kernel

    dx, du, *sums = backward_outputs(x, u, wanted)
    count = stats[0].numel()
    if not count or not x.shape[-1]:
        return dx, du, *(total.zero_() for total in sums)
    block, rows, warps = settings(x.shape[-1], backward=True, normed=norm != "none" or rule != "geodesic")
    programs = -(-count // rows)
    if any(wanted):
        programs = programs_for(x.device, programs, warps, norm == "layer")
    parts = [total.new_empty(programs, x.shape[-1]) if total.numel() else total for total in sums]
    rows_x, rows_u = as_rows(x), as_rows(u)
    rows_grad, rows_read = (rows_x if g is None else as_rows(g) for g in (grad, read_grad))
    scalars, flags = arguments_of(a, b, c, rule, numbers, x)
    with on(x):
        backward_kernel[(programs,)](
            rows_grad, rows_read, rows_x, rows_u, stats.contiguous(), stats if weight is None else weight.contiguous(),
            dx, du, *parts, *scalars, count,
            rows_grad.stride(0), rows_read.stride(0), rows_x.stride(0), rows_u.stride(0),
            **flags, STREAM=grad is not None, READ=read_grad is not None, NORM=norm, WEIGHTED=weight is not None,
            **dict(zip(("DA", "DB", "DC", "DWEIGHT", "DSHIFT"), wanted, strict=True)),
            DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps,
        )  # fmt: skip
    return dx, du, *(part.sum(0) if part.dim() == 2 else part for part in parts)


def on(x: Tensor) -> Any:
    """Triton launches on the current device: make it that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
