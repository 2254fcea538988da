"""Triton kernels of the geodesic update for the rules that are used: the paper's angle map, the smooth ceiling
p atan(t / p), and one angle for all tokens, with or without what the next sub-layer reads, and the norm through which
it reads.

    angle = min(post * min(R(ratio), max_angle), max_angle),   R(t) = t or, SMOOTH, p atan(t / p)
    LEVEL: angle = min(post * level * ratio / sqrt(ratio^2 + SOFTNESS^2), max_angle)

The row maths is that of closed_form.py and slopes.py, in fp32 on chip. Forward reads x and u once and writes x' and,
with READ, y: x' in another dtype or, NORMED, N(x'). Backward reads x, u and the gradient(s) once and writes dx and du.
N is RMSNorm or, CENTRED, LayerNorm, of x' as it is in memory: rounded to its dtype first.

A program owns ROWS whole rows of DIM numbers, padded to BLOCK. `post` is a float or, POST_PTR, a pointer to one number
(layers then share one compiled kernel). `stats` is (3, rows) fp32: <x,x>, c and |t|^2 of every row; NORMED, (5, rows):
then the mean and the inverse deviation of x' too, which itself is made again backward, not read. Only what Triton 3.6
and 3.7 share is used, and nothing that its interpreter lacks. This file is imported when a kernel is launched, not
before: it needs triton.
"""

# ruff: noqa: N803, RET505  (compile-time arguments are upper case; Triton needs the else of a compile-time if)
from __future__ import annotations

import triton
import triton.language as tl

from .angle import BIAS_SOFTNESS

HALF_PI, HALF_PI_REST = tl.constexpr(1.57079637050628662109375), tl.constexpr(4.371139000186241e-8)
"""pi/2 is the first, an fp32 number, less the second."""
TINY = tl.constexpr(2.0**-126)
"""The least normal number of fp32: 1 over less may overflow."""
SOFTNESS2 = tl.constexpr(BIAS_SOFTNESS**2)
ATAN = tl.constexpr(
    (
        -0.33333277702331543,
        0.1999807506799698,
        -0.1426001638174057,
        0.1093234121799469,
        -0.08349724858999252,
        0.05708955600857735,
        -0.03035186417400837,
        0.010487649589776993,
        -0.0017011701129376888,
    )
)
"""(atan(z)/z - 1) / z^2 as a polynomial in z^2 on [0, 1]: interpolated at Chebyshev points in 40 digits, error 2.8e-9;
atan(z)/z is within 2 ulp in fp32 for all z (the tests measure it)."""
ATAN_BEND = tl.constexpr(tuple((-1) ** (k + 1) * (2 * k + 2) / (2 * k + 3) for k in range(8)))
"""(1/(1+s) - atan(z)/z) / s as a series in s = z^2, 1e-8 at s = 0.1."""


# one row of numbers to its scalars


@triton.jit
def polynomial(s, COEFFICIENTS: tl.constexpr, LENGTH: tl.constexpr):
    """Lowest power first."""
    total = tl.full(s.shape, COEFFICIENTS[LENGTH - 1], tl.float32)
    for k in tl.static_range(1, LENGTH):
        total = total * s + COEFFICIENTS[LENGTH - 1 - k]
    return total


@triton.jit
def invert_rows(xx):
    """1 / xx, and 0 for a row that is 0 or too small for a square. All divisions of row numbers are correctly rounded:
    `/` is not on a GPU."""
    dead = xx < TINY
    return tl.where(dead, 0.0, tl.div_rn(1.0, tl.where(dead, 1.0, xx)))


@triton.jit
def atan_quotient(z):
    """atan(z) / z for z of either sign."""
    z = tl.abs(z)
    far = z > 1.0
    safe = tl.where(far, z, 1.0)
    w = tl.where(far, tl.div_rn(1.0, safe), z)
    bend = polynomial(w * w, ATAN, 9) * (w * w)  # atan(w) = w + w bend, and atan(z) = pi/2 - atan(1/z)
    complement = -(w + (w * bend + HALF_PI_REST)) + HALF_PI
    return tl.where(far, tl.div_rn(complement, safe), bend + 1.0)


@triton.jit
def retraction(ratio, inverse_power, SMOOTH: tl.constexpr):
    """quotient, slope and curvature of R, as `slopes.retraction_slopes`."""
    if SMOOTH:
        z = inverse_power * ratio
        s = z * z
        small = s < 0.1
        slope = tl.div_rn(1.0, 1.0 + s)
        quotient = atan_quotient(z)
        bend = tl.where(small, polynomial(s, ATAN_BEND, 8), tl.div_rn(slope - quotient, tl.where(small, 1.0, s)))
        return quotient, slope, inverse_power * inverse_power * bend
    else:
        flat = tl.zeros(ratio.shape, tl.float32)
        return flat + 1.0, flat + 1.0, flat


@triton.jit
def level_slopes(ratio, angle):
    """quotient, slope and curvature of one angle for all ratios but those near 0, as `slopes.bias_slopes`."""
    root = tl.div_rn(1.0, tl.sqrt_rn(ratio * ratio + SOFTNESS2))
    quotient = angle * root
    bend = quotient * (root * root)
    return quotient, SOFTNESS2 * bend, -bend


@triton.jit
def clamp(quotient, slope, curvature, ratio, ceiling):
    """min(angle, ceiling). NaN compares false and passes through."""
    binds = quotient * ratio >= ceiling
    inverse = tl.div_rn(1.0, tl.where(binds, ratio, 1.0))
    level = ceiling * inverse
    quotient = tl.where(binds, level, quotient)
    slope = tl.where(binds, 0.0, slope)
    curvature = tl.where(binds, -(level * inverse) * inverse, curvature)
    return quotient, slope, curvature


@triton.jit
def angles_of_rows(ratio, post, max_angle, inverse_power, level, SMOOTH: tl.constexpr, LEVEL: tl.constexpr):
    """quotient, slope and curvature of the angle."""
    if LEVEL:
        quotient, slope, curvature = level_slopes(ratio, level)
    else:
        quotient, slope, curvature = retraction(ratio, inverse_power, SMOOTH)
        quotient, slope, curvature = clamp(quotient, slope, curvature, ratio, max_angle)
    return clamp(post * quotient, post * slope, post * curvature, ratio, max_angle)


@triton.jit
def coefficients(quotient, ratio, xx):
    """angle, its cos and sinc, and b of x' = cos x + b t; a row without a square takes no step."""
    angle = quotient * ratio
    cos, sin = tl.cos(angle), tl.sin(angle)
    s = angle * angle
    small = s < 1e-4
    sinc = tl.where(
        small, 1.0 - s * (1.0 / 6.0) * (1.0 - s * (1.0 / 20.0)), tl.div_rn(sin, tl.where(small, 1.0, angle))
    )
    return angle, cos, sinc, tl.where(xx < TINY, 0.0, quotient * sinc)


@triton.jit
def sinc_bend_of_rows(angle, cos, sinc):
    """(cos - sinc) / angle^2; consecutive terms of its series differ by the factor -angle^2 / (2k (2k + 3))."""
    s = angle * angle
    small = s < 1.0
    series = 1.0 - s * (1.0 / 54.0) * (1.0 - s * (1.0 / 88.0) * (1.0 - s * (1.0 / 130.0)))
    series = (-1.0 / 3.0) * (1.0 - s * (1.0 / 10.0) * (1.0 - s * (1.0 / 28.0) * series))
    return tl.where(small, series, tl.div_rn(cos - sinc, tl.where(small, 1.0, s)))


@triton.jit
def step_rows(x, u, post, max_angle, inverse_power, level, SMOOTH: tl.constexpr, LEVEL: tl.constexpr):
    """x', and <x,x>, c, |t|^2 of every row."""
    xx = tl.sum(x * x, 1)
    inverse = invert_rows(xx)
    c = tl.sum(x * u, 1) * inverse
    t = u - c[:, None] * x
    # second round: what rounding left along x is measured, and removed in the coefficients
    leak = tl.sum(x * t, 1)
    correction = leak * inverse
    n2 = tl.sum(t * t, 1) - leak * correction
    n2 = tl.where(n2 < 0.0, 0.0, n2)

    ratio = tl.sqrt_rn(n2 * inverse)
    quotient, _, _ = angles_of_rows(ratio, post, max_angle, inverse_power, level, SMOOTH, LEVEL)
    _, a, _, b = coefficients(quotient, ratio, xx)
    out = (a - b * correction)[:, None] * x + b[:, None] * t
    return out, xx, c + correction, n2


@triton.jit
def turn(xx, n2, post, max_angle, inverse_power, level, SMOOTH: tl.constexpr, LEVEL: tl.constexpr):
    """What the backward pass knows of a row before it has seen a gradient: x' = a x + b t, 1 / <x,x>, and the slope of
    the angle and its bend."""
    inverse = invert_rows(xx)
    ratio = tl.sqrt_rn(n2 * inverse)
    quotient, slope, curvature = angles_of_rows(ratio, post, max_angle, inverse_power, level, SMOOTH, LEVEL)
    angle, a, sinc, b = coefficients(quotient, ratio, xx)
    # (slope cos - b) / ratio^2 without the division
    bend = slope * quotient * quotient * sinc_bend_of_rows(angle, a, sinc) + sinc * curvature
    return a, b, inverse, slope, bend


@triton.jit
def pull_back(x, t, do, xx, c, n2, a, b, inverse, slope, bend):
    """dx and du from the gradient of x'."""
    p = tl.sum(x * do, 1)
    m = tl.sum(t * do, 1)
    along_t = tl.where(xx < TINY, 0.0, bend * m - slope * b * p) * inverse
    along_x = b * p * inverse
    du = b[:, None] * do + along_t[:, None] * t - along_x[:, None] * x
    dx = (a - b * c)[:, None] * do + (c * along_x - along_t * (n2 * inverse))[:, None] * x
    dx -= (along_x + c * along_t)[:, None] * t
    return dx, du


# memory


@triton.jit
def read_number(value, IS_POINTER: tl.constexpr):
    if IS_POINTER:
        return tl.load(value).to(tl.float32)
    else:
        return value


@triton.jit
def where_in_memory(base, rows, stride, columns):
    return base + rows[:, None] * stride + columns[None, :]


@triton.jit
def line_of(base, NUMBER: tl.constexpr, length, columns):
    """Where columns of a line of (lines, length) are, one line after the other: NUMBER * length may need 64 bits."""
    for _ in tl.static_range(NUMBER):
        base += length
    return base + columns


@triton.jit
def load_rows(base, rows, stride, columns, mask):
    return tl.load(where_in_memory(base, rows, stride, columns), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_numbers(stats_ptr, NUMBER: tl.constexpr, count, rows, inside):
    """One number of every row."""
    return tl.load(line_of(stats_ptr, NUMBER, count, rows), mask=inside, other=0.0)


@triton.jit
def load_line(base, columns, across):
    """Gains or biases of a norm, for every row."""
    return tl.load(base + columns, mask=across, other=0.0).to(tl.float32)[None, :]


@triton.jit
def forward_kernel(
    x_ptr, u_ptr, out_ptr, read_ptr, stats_ptr, weight_ptr, shift_ptr,
    post, max_angle, inverse_power, level, eps,
    count, x_stride, u_stride,
    POST_PTR: tl.constexpr, SMOOTH: tl.constexpr, LEVEL: tl.constexpr, READ: tl.constexpr,
    NORMED: tl.constexpr, CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, SHIFTED: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """x' and stats; with READ also y in the dtype of read_ptr. weight_ptr and shift_ptr: (DIM,), gains and biases of
    the norm."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = rows < count
    across = columns < DIM
    mask = inside[:, None] & across[None, :]
    x = load_rows(x_ptr, rows, x_stride, columns, mask)
    u = load_rows(u_ptr, rows, u_stride, columns, mask)
    out, xx, c, n2 = step_rows(x, u, read_number(post, POST_PTR), max_angle, inverse_power, level, SMOOTH, LEVEL)
    rounded = out.to(out_ptr.dtype.element_ty)
    tl.store(where_in_memory(out_ptr, rows, DIM, columns), rounded, mask=mask)
    tl.store(stats_ptr + rows, xx, mask=inside)
    tl.store(line_of(stats_ptr, 1, count, rows), c, mask=inside)
    tl.store(line_of(stats_ptr, 2, count, rows), n2, mask=inside)

    if READ:
        y = rounded.to(tl.float32)
        if NORMED:
            mean = tl.zeros(xx.shape, tl.float32)
            if CENTRED:
                mean = tl.sum(y, 1) * (1.0 / DIM)
                y = tl.where(mask, y - mean[:, None], 0.0)
            deviation = tl.sqrt_rn(tl.sum(y * y, 1) * (1.0 / DIM) + eps)
            scale = tl.div_rn(1.0, deviation)
            y = y * scale[:, None]
            if WEIGHTED:
                y = y * load_line(weight_ptr, columns, across)
            if SHIFTED:
                y = y + load_line(shift_ptr, columns, across)
            tl.store(line_of(stats_ptr, 3, count, rows), mean, mask=inside)
            tl.store(line_of(stats_ptr, 4, count, rows), scale, mask=inside)
        tl.store(where_in_memory(read_ptr, rows, DIM, columns), y, mask=mask)


@triton.jit
def backward_kernel(
    grad_ptr, read_grad_ptr, x_ptr, u_ptr, stats_ptr, weight_ptr, dx_ptr, du_ptr, dweight_ptr, dshift_ptr,
    post, max_angle, inverse_power, level,
    count, grad_stride, read_grad_stride, x_stride, u_stride,
    POST_PTR: tl.constexpr, SMOOTH: tl.constexpr, LEVEL: tl.constexpr, STREAM: tl.constexpr, READ: tl.constexpr,
    NORMED: tl.constexpr, CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, DWEIGHT: tl.constexpr, DSHIFT: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx and du from the gradients of x' (with STREAM) and of y (with READ). A program takes every so many tiles of
    ROWS rows and leaves its part of the sums over rows, to be added up in a fixed order: of the norm's gains and biases
    in dweight_ptr and dshift_ptr, (programs, DIM)."""
    columns = tl.arange(0, BLOCK)
    across = columns < DIM
    program, programs = tl.program_id(0), tl.num_programs(0)
    rate = read_number(post, POST_PTR)
    if WEIGHTED:
        weight = load_line(weight_ptr, columns, across)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dshift = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(program, tl.cdiv(count, ROWS), programs):
        rows = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = rows < count
        mask = inside[:, None] & across[None, :]
        x = load_rows(x_ptr, rows, x_stride, columns, mask)
        u = load_rows(u_ptr, rows, u_stride, columns, mask)
        xx = load_numbers(stats_ptr, 0, count, rows, inside)
        c = load_numbers(stats_ptr, 1, count, rows, inside)
        n2 = load_numbers(stats_ptr, 2, count, rows, inside)
        a, b, inverse, slope, bend = turn(xx, n2, rate, max_angle, inverse_power, level, SMOOTH, LEVEL)
        t = u - c[:, None] * x

        do = tl.zeros((ROWS, BLOCK), tl.float32)
        if READ:
            do = load_rows(read_grad_ptr, rows, read_grad_stride, columns, mask)
        if NORMED:  # back through the norm
            y = (a[:, None] * x + b[:, None] * t).to(x_ptr.dtype.element_ty).to(tl.float32)
            if CENTRED:
                y = y - load_numbers(stats_ptr, 3, count, rows, inside)[:, None]
            scale = load_numbers(stats_ptr, 4, count, rows, inside)
            y = y * scale[:, None]
            if DWEIGHT:
                dweight += do * y
            if DSHIFT:
                dshift += do
            if WEIGHTED:
                do = do * weight
            along_y = (tl.sum(do * y, 1) * (1.0 / DIM))[:, None] * y
            if CENTRED:
                do = do - (tl.sum(do, 1) * (1.0 / DIM))[:, None]
            do = (do - along_y) * scale[:, None]
        if STREAM:
            do += load_rows(grad_ptr, rows, grad_stride, columns, mask)

        dx, du = pull_back(x, t, do, xx, c, n2, a, b, inverse, slope, bend)
        tl.store(where_in_memory(dx_ptr, rows, DIM, columns), dx, mask=mask)
        tl.store(where_in_memory(du_ptr, rows, DIM, columns), du, mask=mask)

    if DWEIGHT:
        tl.store(dweight_ptr + program.to(tl.int64) * DIM + columns, tl.sum(dweight, 0), mask=across)
    if DSHIFT:
        tl.store(dshift_ptr + program.to(tl.int64) * DIM + columns, tl.sum(dshift, 0), mask=across)
