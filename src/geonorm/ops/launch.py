"""Host side of the Triton kernels: which settings, which memory, one launch forward and one backward."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

MAX_DIM = 16384
"""A row must fit on chip; wider rows take the closed form."""
MAX_NORM_DIM = 8192
"""Of wider rows the kernel makes the step alone, and the norm is called after it: six tensors of a row do not fit on
chip."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FUSED = {"enable_fp_fusion": True}
"""Multiply and add in one instruction, the default until Triton 3.9, which warns that it will change."""


def settings(dim: int, backward: bool, normed: bool = False) -> tuple[int, int, int]:
    """(BLOCK, ROWS, warps): the padded width, rows per program, warps per program.

    Rows up to 1024 wide belong to one warp, whose sums need no shared memory; rows narrower than 512 share it. Wider
    rows take one warp per 1024 numbers, 32 of each tensor per thread; half as many where a thread holds more tensors:
    backward beyond 8192, and backward with a norm.
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


def contiguous(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def weight_arguments(
    a: Tensor | None, b: Tensor | None, c: Tensor | None, rule: str, numbers: list[float], x: Tensor
) -> Any:
    """Kernel arguments a_ptr, b_ptr, c_ptr, n0, n1, n2. A number in the memory of the CPU is read there: nothing is
    copied to a GPU, which a CUDA graph would not allow."""
    first, second, third = numbers
    if rule != "geodesic":
        return contiguous(a), contiguous(b), contiguous(c), first, second, third
    if a is not None and a.device.type == "cpu" != x.device.type:
        first, a = a.item(), None
    return None if a is None else a.to(x.device), None, None, first, second, third or None


def forward_outputs(x: Tensor, read: torch.dtype | None, normed: bool) -> list[Tensor]:
    """Memory for x', for stats and, unless `read` is None, for y in that dtype: all contiguous."""
    stats = torch.empty((5 if normed else 3, *x.shape[:-1]), dtype=torch.float32, device=x.device)
    return [
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
        stats,
        *([] if read is None else [torch.empty(x.shape, dtype=read, device=x.device)]),
    ]


def backward_outputs(x: Tensor, u: Tensor, wanted: list[bool]) -> list[Tensor]:
    """Memory for dx and du, and for the sums over rows that are wanted, (dim,) in fp32."""
    dim = x.shape[-1]
    return [
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
        torch.empty(x.shape, dtype=u.dtype, device=x.device),
        *(torch.empty(dim, dtype=torch.float32, device=x.device) for summed in wanted if summed),
    ]


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
) -> list[Tensor]:
    """x', stats and, if asked, y in the dtype `read`. norm: none | rms | layer."""
    from .kernels import forward_kernel

    out, stats, *y = forward_outputs(x, read, norm != "none")
    count = stats[0].numel()
    if count and x.shape[-1]:
        rows_x, rows_u = as_rows(x), as_rows(u)
        block, rows, warps = settings(x.shape[-1], backward=False)
        with on(x):
            forward_kernel[(-(-count // rows),)](
                rows_x, rows_u, out, y[0] if y else None, stats, contiguous(weight), contiguous(shift),
                *weight_arguments(a, b, c, rule, numbers, x), eps, count, rows_x.stride(0), rows_u.stride(0),
                RULE=rule, NORM=norm, DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps, **FUSED,
            )  # fmt: skip
    return [out, stats, *y]


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
) -> list[Tensor]:
    """dx, du and, of a, b, c, the norm's gains and its biases, the gradients that are wanted, (dim,) in fp32."""
    from .kernels import backward_kernel

    dx, du, *sums = backward_outputs(x, u, wanted)
    count = stats[0].numel()
    if not count or not x.shape[-1]:
        return [dx, du, *(total.zero_() for total in sums)]
    block, rows, warps = settings(x.shape[-1], backward=True, normed=norm != "none" or rule != "geodesic")
    programs = -(-count // rows)
    if sums:
        programs = programs_for(x.device, programs, warps, norm == "layer")
    parts = [sums[0].new_empty(programs, x.shape[-1]) if summed else None for summed in wanted]
    read = [None if t is None else as_rows(t) for t in (grad, read_grad, x, u)]
    with on(x):
        backward_kernel[(programs,)](
            *read, stats.contiguous(), contiguous(weight), dx, du, *parts, *weight_arguments(a, b, c, rule, numbers, x),
            count, *(0 if t is None else t.stride(0) for t in read),
            RULE=rule, NORM=norm, DIM=x.shape[-1], BLOCK=block, ROWS=rows, num_warps=warps, **FUSED,
        )  # fmt: skip
    return [dx, du, *(part.sum(0) for part in parts if part is not None)]


def on(x: Tensor) -> Any:
    """Triton launches on the current device: make it that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
