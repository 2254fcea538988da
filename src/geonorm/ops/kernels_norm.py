"""Triton kernels of the geodesic update that end in the norm which the next sub-layer reads through.

Forward reads x and u once and writes x' and y = N(x'); backward reads x, u and the gradients of both once and writes
dx and du. N is RMSNorm or, CENTRED, LayerNorm, of x' as it is in memory: rounded to its dtype first. `stats` is
(5, rows) fp32: <x,x>, c and |t|^2 as without a norm, then the mean and the inverse deviation of every row of x'. x'
itself is made again backward, not read. Imported when a kernel is launched, as kernels.py.
"""

# ruff: noqa: N803  (compile-time arguments are upper case)
from __future__ import annotations

import triton
import triton.language as tl

from .kernels import advance, line, load_rows, number, pull_back, row_numbers, turn, where_in_memory


@triton.jit
def forward_norm_kernel(
    x_ptr, u_ptr, out_ptr, read_ptr, stats_ptr, weight_ptr, shift_ptr,
    pre, post, gain, bias, max_angle, inverse_power, eps,
    count, x_stride, u_stride,
    PRE_PTR: tl.constexpr, POST_PTR: tl.constexpr, GAIN_PTR: tl.constexpr, BIAS_PTR: tl.constexpr,
    FINITE: tl.constexpr, BIASED: tl.constexpr,
    CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, SHIFTED: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """x', y in the dtype of read_ptr, and stats. weight_ptr and shift_ptr: (DIM,), gains and biases of the norm."""
    rows = row_numbers(ROWS)
    columns = tl.arange(0, BLOCK)
    inside = rows < count
    across = columns < DIM
    mask = inside[:, None] & across[None, :]
    x = load_rows(x_ptr, rows, x_stride, columns, mask)
    u = load_rows(u_ptr, rows, u_stride, columns, mask)
    out, xx, c, n2 = advance(
        x, u, number(pre, PRE_PTR), number(post, POST_PTR), number(gain, GAIN_PTR), number(bias, BIAS_PTR),
        max_angle, inverse_power, FINITE, BIASED,
    )  # fmt: skip
    kept = out.to(out_ptr.dtype.element_ty)
    tl.store(where_in_memory(out_ptr, rows, DIM, columns), kept, mask=mask)

    y = kept.to(tl.float32)
    mean = tl.zeros(xx.shape, tl.float32)
    if CENTRED:
        mean = tl.sum(y, 1) * (1.0 / DIM)
        y = tl.where(mask, y - mean[:, None], 0.0)
    deviation = tl.sqrt_rn(tl.sum(y * y, 1) * (1.0 / DIM) + eps)
    scale = tl.div_rn(1.0, deviation)
    y = y * scale[:, None]
    if WEIGHTED:
        y = y * tl.load(weight_ptr + columns, mask=across, other=0.0).to(tl.float32)[None, :]
    if SHIFTED:
        y = y + tl.load(shift_ptr + columns, mask=across, other=0.0).to(tl.float32)[None, :]
    tl.store(where_in_memory(read_ptr, rows, DIM, columns), y, mask=mask)
    tl.store(stats_ptr + rows, xx, mask=inside)
    tl.store(line(stats_ptr, 1, count, rows), c, mask=inside)
    tl.store(line(stats_ptr, 2, count, rows), n2, mask=inside)
    tl.store(line(stats_ptr, 3, count, rows), mean, mask=inside)
    tl.store(line(stats_ptr, 4, count, rows), scale, mask=inside)


@triton.jit
def backward_norm_kernel(
    grad_ptr, read_grad_ptr, x_ptr, u_ptr, stats_ptr, weight_ptr, dx_ptr, du_ptr, partial_ptr, dweight_ptr, dshift_ptr,
    pre, post, gain, bias, max_angle, inverse_power,
    count, grad_stride, read_grad_stride, x_stride, u_stride,
    PRE_PTR: tl.constexpr, POST_PTR: tl.constexpr, GAIN_PTR: tl.constexpr, BIAS_PTR: tl.constexpr,
    FINITE: tl.constexpr, BIASED: tl.constexpr, LEARNED: tl.constexpr,
    CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, DWEIGHT: tl.constexpr, DSHIFT: tl.constexpr, STREAM: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx and du from the gradients of x' (with STREAM) and of y. A program takes every so many tiles of ROWS rows and
    leaves its part of the sums over rows, to be added up in a fixed order: of the norm's gains and biases in
    dweight_ptr and dshift_ptr (programs, DIM), of the angle's scalars in partial_ptr (programs, 4)."""
    columns = tl.arange(0, BLOCK)
    across = columns < DIM
    program, programs = tl.program_id(0), tl.num_programs(0)
    if WEIGHTED:
        weight = tl.load(weight_ptr + columns, mask=across, other=0.0).to(tl.float32)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dshift = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_pre = tl.zeros((ROWS,), tl.float32)
    sum_post, sum_gain, sum_bias = sum_pre, sum_pre, sum_pre
    for tile in range(program, tl.cdiv(count, ROWS), programs):
        rows = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = rows < count
        mask = inside[:, None] & across[None, :]
        x = load_rows(x_ptr, rows, x_stride, columns, mask)
        u = load_rows(u_ptr, rows, u_stride, columns, mask)
        dy = load_rows(read_grad_ptr, rows, read_grad_stride, columns, mask)
        xx = tl.load(stats_ptr + rows, mask=inside, other=0.0)
        c = tl.load(line(stats_ptr, 1, count, rows), mask=inside, other=0.0)
        n2 = tl.load(line(stats_ptr, 2, count, rows), mask=inside, other=0.0)
        scale = tl.load(line(stats_ptr, 4, count, rows), mask=inside, other=0.0)
        a, b, inverse, ratio, slope, bend, lift, by_pre, by_post, by_gain, by_bias = turn(
            xx, n2, number(pre, PRE_PTR), number(post, POST_PTR), number(gain, GAIN_PTR), number(bias, BIAS_PTR),
            max_angle, inverse_power, FINITE, BIASED,
        )  # fmt: skip
        t = u - c[:, None] * x

        # back through the norm
        y = (a[:, None] * x + b[:, None] * t).to(x_ptr.dtype.element_ty).to(tl.float32)
        if CENTRED:
            y = y - tl.load(line(stats_ptr, 3, count, rows), mask=inside, other=0.0)[:, None]
        y = y * scale[:, None]
        if DWEIGHT:
            dweight += dy * y
        if DSHIFT:
            dshift += dy
        if WEIGHTED:
            dy = dy * weight[None, :]
        do = dy - (tl.sum(dy * y, 1) * (1.0 / DIM))[:, None] * y
        if CENTRED:
            do = do - (tl.sum(dy, 1) * (1.0 / DIM))[:, None]
        do = do * scale[:, None]
        if STREAM:
            do += load_rows(grad_ptr, rows, grad_stride, columns, mask)

        dx, du, free = pull_back(x, t, do, xx, c, n2, a, b, inverse, ratio, slope, bend, lift)
        tl.store(where_in_memory(dx_ptr, rows, DIM, columns), dx, mask=mask)
        tl.store(where_in_memory(du_ptr, rows, DIM, columns), du, mask=mask)
        if LEARNED:
            sum_pre += free * by_pre
            sum_post += free * by_post
            sum_gain += free * by_gain
            sum_bias += free * by_bias

    if DWEIGHT:
        tl.store(dweight_ptr + program.to(tl.int64) * DIM + columns, tl.sum(dweight, 0), mask=across)
    if DSHIFT:
        tl.store(dshift_ptr + program.to(tl.int64) * DIM + columns, tl.sum(dshift, 0), mask=across)
    if LEARNED:
        slot = partial_ptr + program * 4
        tl.store(slot, tl.sum(sum_pre, 0))
        tl.store(slot + 1, tl.sum(sum_post, 0))
        tl.store(slot + 2, tl.sum(sum_gain, 0))
        tl.store(slot + 3, tl.sum(sum_bias, 0))
