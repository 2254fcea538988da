"""Triton kernels of the geodesic update. The row maths is that of closed_form.py and slopes.py, in fp32 on chip.
Forward reads x and u once and writes x'; backward reads x, u and the gradient(s) once and writes two gradients.

A program owns ROWS whole rows of DIM numbers, padded to BLOCK. Scalars of the angle map come as floats or as pointers
to tensors of one number (layers then share one compiled kernel); a `_PTR` flag says which. `stats` is (3, rows) fp32:
<x,x>, c and |t|^2 of every row. Only what Triton 3.6 and 3.7 share is used, and nothing that its interpreter lacks.
This file is imported when a kernel is launched, not before: it needs triton.
"""

# ruff: noqa: N803, RET505  (compile-time arguments are upper case; Triton needs the else of a compile-time if)
from __future__ import annotations

import triton
import triton.language as tl

from .angle import BIAS_SOFTNESS

SOFTNESS2 = tl.constexpr(BIAS_SOFTNESS**2)
HALF_PI, HALF_PI_REST = tl.constexpr(1.57079637050628662109375), tl.constexpr(4.371139000186241e-8)
"""pi/2 is the first, an fp32 number, less the second."""
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
def invert(xx):
    """1 / xx, and 0 for a zero row. All divisions of row numbers are correctly rounded: `/` is not on a GPU."""
    dead = xx == 0.0
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
def retraction(ratio, pre, inverse_power, FINITE: tl.constexpr):
    """quotient, slope / pre and curvature of R(pre ratio), as `slopes.retraction_slopes`."""
    if FINITE:
        scale = pre * inverse_power
        z = scale * ratio
        s = z * z
        small = s < 0.1
        slope = tl.div_rn(1.0, 1.0 + s)
        quotient = atan_quotient(z)
        bend = tl.where(small, polynomial(s, ATAN_BEND, 8), tl.div_rn(slope - quotient, tl.where(small, 1.0, s)))
        return pre * quotient, slope, pre * scale * scale * bend
    else:
        flat = tl.zeros(ratio.shape, tl.float32)
        return flat + pre, flat + 1.0, flat


@triton.jit
def clamp(quotient, slope, curvature, ratio, ceiling):
    """min(angle, ceiling) and whether it binds. NaN compares false and passes through."""
    binds = quotient * ratio >= ceiling
    inverse = tl.div_rn(1.0, tl.where(binds, ratio, 1.0))
    level = ceiling * inverse
    quotient = tl.where(binds, level, quotient)
    slope = tl.where(binds, 0.0, slope)
    curvature = tl.where(binds, -(level * inverse) * inverse, curvature)
    return quotient, slope, curvature, binds


@triton.jit
def angle_map(ratio, pre, post, gain, bias, max_angle, inverse_power, FINITE: tl.constexpr, BIASED: tl.constexpr):
    """quotient, slope and curvature of the angle; then its derivatives by pre, post, gain and bias, over ratio."""
    quotient, turned, curvature = retraction(ratio, pre, inverse_power, FINITE)
    quotient, slope, curvature, held = clamp(quotient, pre * turned, curvature, ratio, max_angle)
    inner = quotient
    quotient, slope, curvature = gain * quotient, gain * slope, gain * curvature
    root = tl.div_rn(1.0, tl.sqrt_rn(ratio * ratio + SOFTNESS2))
    if BIASED:
        cube = root * root * root
        quotient, slope, curvature = quotient + bias * root, slope + bias * SOFTNESS2 * cube, curvature - bias * cube
    total = quotient
    quotient, slope, curvature, bound = clamp(post * quotient, post * slope, post * curvature, ratio, max_angle)
    by_pre = tl.where(held | bound, 0.0, post * gain * turned)
    by_post = tl.where(bound, 0.0, total)
    by_gain = tl.where(bound, 0.0, post * inner)
    by_bias = tl.where(bound, 0.0, post * root)
    return quotient, slope, curvature, by_pre, by_post, by_gain, by_bias


@triton.jit
def coefficients(quotient, ratio, xx):
    """angle, its cos, sin and sinc, and b of x' = cos x + b t; a zero row takes no step."""
    angle = quotient * ratio
    cos, sin = tl.cos(angle), tl.sin(angle)
    s = angle * angle
    small = s < 1e-4
    sinc = tl.where(
        small, 1.0 - s * (1.0 / 6.0) * (1.0 - s * (1.0 / 20.0)), tl.div_rn(sin, tl.where(small, 1.0, angle))
    )
    return angle, cos, sin, sinc, tl.where(xx == 0.0, 0.0, quotient * sinc)


@triton.jit
def sinc_bend(angle, cos, sinc):
    """(cos - sinc) / angle^2; consecutive terms of its series differ by the factor -angle^2 / (2k (2k + 3))."""
    s = angle * angle
    small = s < 1.0
    series = 1.0 - s * (1.0 / 54.0) * (1.0 - s * (1.0 / 88.0) * (1.0 - s * (1.0 / 130.0)))
    series = (-1.0 / 3.0) * (1.0 - s * (1.0 / 10.0) * (1.0 - s * (1.0 / 28.0) * series))
    return tl.where(small, series, tl.div_rn(cos - sinc, tl.where(small, 1.0, s)))


@triton.jit
def advance(x, u, pre, post, gain, bias, max_angle, inverse_power, FINITE: tl.constexpr, BIASED: tl.constexpr):
    """x', and <x,x>, c, |t|^2 of every row."""
    xx = tl.sum(x * x, 1)
    inverse = invert(xx)
    c = tl.sum(x * u, 1) * inverse
    t = u - c[:, None] * x
    # second round: what rounding left along x is measured, and removed in the coefficients
    leak = tl.sum(x * t, 1)
    correction = leak * inverse
    n2 = tl.sum(t * t, 1) - leak * correction
    n2 = tl.where(n2 < 0.0, 0.0, n2)

    ratio = tl.sqrt_rn(n2 * inverse)
    quotient, _, _, _, _, _, _ = angle_map(ratio, pre, post, gain, bias, max_angle, inverse_power, FINITE, BIASED)
    _, a, _, _, b = coefficients(quotient, ratio, xx)
    out = (a - b * correction)[:, None] * x + b[:, None] * t
    return out, xx, c + correction, n2


@triton.jit
def turn(xx, n2, pre, post, gain, bias, max_angle, inverse_power, FINITE: tl.constexpr, BIASED: tl.constexpr):
    """What the backward pass knows of a row before it has seen a gradient: x' = a x + b t; 1 / <x,x>, the ratio, the
    slope of the angle, its bend, ratio sin(angle); the angle's derivatives by pre, post, gain and bias, over ratio."""
    inverse = invert(xx)
    ratio = tl.sqrt_rn(n2 * inverse)
    quotient, slope, curvature, by_pre, by_post, by_gain, by_bias = angle_map(
        ratio, pre, post, gain, bias, max_angle, inverse_power, FINITE, BIASED
    )
    angle, a, sin, sinc, b = coefficients(quotient, ratio, xx)
    # (slope cos - b) / ratio^2 without the division
    bend = slope * quotient * quotient * sinc_bend(angle, a, sinc) + sinc * curvature
    return a, b, inverse, ratio, slope, bend, sin * ratio, by_pre, by_post, by_gain, by_bias


@triton.jit
def pull_back(x, t, do, xx, c, n2, a, b, inverse, ratio, slope, bend, lift):
    """dx and du from the gradient of x', and what the derivatives of the angle are multiplied with."""
    p = tl.sum(x * do, 1)
    m = tl.sum(t * do, 1)
    dead = xx == 0.0
    along_t = tl.where(dead, 0.0, bend * m - slope * b * p) * inverse
    along_x = b * p * inverse
    du = b[:, None] * do + along_t[:, None] * t - along_x[:, None] * x
    dx = (a - b * c)[:, None] * do + (c * along_x - along_t * (n2 * inverse))[:, None] * x
    dx -= (along_x + c * along_t)[:, None] * t
    return dx, du, tl.where(dead, 0.0, a * m - lift * p)


# memory


@triton.jit
def number(value, IS_POINTER: tl.constexpr):
    if IS_POINTER:
        return tl.load(value).to(tl.float32)
    else:
        return value


@triton.jit
def row_numbers(ROWS: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)


@triton.jit
def where_in_memory(base, rows, stride, columns):
    return base + rows[:, None] * stride + columns[None, :]


@triton.jit
def line(base, NUMBER: tl.constexpr, length, columns):
    """Where columns of a line of (lines, length) are, one line after the other: NUMBER * length may need 64 bits."""
    for _ in tl.static_range(NUMBER):
        base += length
    return base + columns


@triton.jit
def load_rows(base, rows, stride, columns, mask):
    return tl.load(where_in_memory(base, rows, stride, columns), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def forward_kernel(
    x_ptr, u_ptr, out_ptr, read_ptr, stats_ptr,
    pre, post, gain, bias, max_angle, inverse_power,
    count, x_stride, u_stride,
    PRE_PTR: tl.constexpr, POST_PTR: tl.constexpr, GAIN_PTR: tl.constexpr, BIAS_PTR: tl.constexpr,
    FINITE: tl.constexpr, BIASED: tl.constexpr, READ: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """x' and stats; with READ also x' in the dtype of read_ptr, for the next sub-layer."""
    rows = row_numbers(ROWS)
    columns = tl.arange(0, BLOCK)
    inside = rows < count
    mask = inside[:, None] & (columns < DIM)[None, :]
    x = load_rows(x_ptr, rows, x_stride, columns, mask)
    u = load_rows(u_ptr, rows, u_stride, columns, mask)

    out, xx, c, n2 = advance(
        x, u, number(pre, PRE_PTR), number(post, POST_PTR), number(gain, GAIN_PTR), number(bias, BIAS_PTR),
        max_angle, inverse_power, FINITE, BIASED,
    )  # fmt: skip
    tl.store(where_in_memory(out_ptr, rows, DIM, columns), out, mask=mask)
    if READ:
        tl.store(where_in_memory(read_ptr, rows, DIM, columns), out, mask=mask)
    tl.store(stats_ptr + rows, xx, mask=inside)
    tl.store(line(stats_ptr, 1, count, rows), c, mask=inside)
    tl.store(line(stats_ptr, 2, count, rows), n2, mask=inside)


@triton.jit
def backward_kernel(
    grad_ptr, read_grad_ptr, x_ptr, u_ptr, stats_ptr, dx_ptr, du_ptr, partial_ptr,
    pre, post, gain, bias, max_angle, inverse_power,
    count, grad_stride, read_grad_stride, x_stride, u_stride,
    PRE_PTR: tl.constexpr, POST_PTR: tl.constexpr, GAIN_PTR: tl.constexpr, BIAS_PTR: tl.constexpr,
    FINITE: tl.constexpr, BIASED: tl.constexpr, READ: tl.constexpr, LEARNED: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx and du; with READ the gradients of both outputs are added here; with LEARNED each program leaves its part of
    the gradients of pre, post, gain and bias in partial (4, programs), to be added up in a fixed order."""
    rows = row_numbers(ROWS)
    columns = tl.arange(0, BLOCK)
    inside = rows < count
    mask = inside[:, None] & (columns < DIM)[None, :]
    x = load_rows(x_ptr, rows, x_stride, columns, mask)
    u = load_rows(u_ptr, rows, u_stride, columns, mask)
    do = load_rows(grad_ptr, rows, grad_stride, columns, mask)
    if READ:
        do += load_rows(read_grad_ptr, rows, read_grad_stride, columns, mask)
    xx = tl.load(stats_ptr + rows, mask=inside, other=0.0)
    c = tl.load(line(stats_ptr, 1, count, rows), mask=inside, other=0.0)
    n2 = tl.load(line(stats_ptr, 2, count, rows), mask=inside, other=0.0)

    a, b, inverse, ratio, slope, bend, lift, by_pre, by_post, by_gain, by_bias = turn(
        xx, n2, number(pre, PRE_PTR), number(post, POST_PTR), number(gain, GAIN_PTR), number(bias, BIAS_PTR),
        max_angle, inverse_power, FINITE, BIASED,
    )  # fmt: skip
    t = u - c[:, None] * x
    dx, du, free = pull_back(x, t, do, xx, c, n2, a, b, inverse, ratio, slope, bend, lift)
    tl.store(where_in_memory(dx_ptr, rows, DIM, columns), dx, mask=mask)
    tl.store(where_in_memory(du_ptr, rows, DIM, columns), du, mask=mask)

    if LEARNED:
        programs = tl.num_programs(0)
        program = tl.program_id(0)
        tl.store(line(partial_ptr, 0, programs, program), tl.sum(free * by_pre, 0))
        tl.store(line(partial_ptr, 1, programs, program), tl.sum(free * by_post, 0))
        tl.store(line(partial_ptr, 2, programs, program), tl.sum(free * by_gain, 0))
        tl.store(line(partial_ptr, 3, programs, program), tl.sum(free * by_bias, 0))
