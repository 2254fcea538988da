"""Triton kernels of the residual: one pair, forward and backward, for two kinds of write, with or without what the
next sub-layer reads, and the norm through which it reads.

    flat      x' = a x + b N(u) + c, where a, b, c are numbers or vectors of one number for each channel
    geodesic  x' = cos(angle) x + sin(angle) |x| v/|v|, under the maps of the angle that are used:
              angle = min(a * min(ratio, max_angle), max_angle), or with a level, one angle for all tokens:
              angle = min(a * level * ratio / sqrt(ratio^2 + SOFTNESS^2), max_angle)

The row maths of the second is the closed form in coefficients of x, u and the gradient, in fp32 on chip. Forward reads
x and u once and writes x' and, if read, y: x' in another dtype or N(x'). Backward reads x, u and the gradient(s) once
and writes dx and du. RULE is geodesic or the norm of u; that norm and NORM, of x', are none, rms or layer. Gains of the
first are part of b and c. The second sees x' as it is in memory: rounded to its dtype. Every store rounds once.

A program owns ROWS whole rows of DIM numbers, padded to BLOCK. Pointers to what nobody gives or asks for are None, and
compiled away. n0, n1, n2 are numbers: a, max_angle and the level (or None) of a geodesic step, or a, b and the eps of
N(u). In place of n0 there may be a pointer to it, a_ptr (layers then share one compiled kernel); a_ptr, b_ptr and c_ptr
of a flat write are vectors. `stats` is (5, rows) fp32 with a norm after the step, else (3, rows): <x,x>, c and
|t|^2 of every row of a geodesic step, or mean and inverse deviation of u; lines 3 and 4 are those of x', which is
computed again backward, not read.
Only what Triton 3.6 to 3.9 share is used, and nothing that its interpreter lacks. This file is imported when a kernel
is launched, not before: it needs triton.
"""

# ruff: noqa: N803, RET505  (compile-time arguments are upper case; Triton needs the else of a compile-time if)
import triton
import triton.language as tl

from .angle import bias_softness

TINY = tl.constexpr(2.0**-126)
"""The least normal number of fp32: 1 over less may overflow."""
SOFTNESS2 = tl.constexpr(bias_softness() ** 2)

# one row of numbers to its scalars


@triton.jit
def invert_rows(xx):
    """1 / xx, and 0 for a row that is 0 or too small for a square. All divisions of row numbers are correctly rounded:
    `/` is not on a GPU."""
    dead = xx < TINY
    return tl.where(dead, 0.0, tl.div_rn(1.0, tl.where(dead, 1.0, xx)))


@triton.jit
def level_slopes(ratio, angle):
    """quotient, slope and curvature of one angle for all ratios but those near 0, as in `AngleMap.level`."""
    root = tl.div_rn(1.0, tl.sqrt_rn(ratio * ratio + SOFTNESS2))
    quotient = angle * root
    bend = quotient * (root * root)
    return quotient, SOFTNESS2 * bend, -bend


@triton.jit
def clamp(quotient, slope, curvature, ratio, limit):
    """min(angle, limit). NaN compares false and passes through."""
    binds = quotient * ratio >= limit
    inverse = tl.div_rn(1.0, tl.where(binds, ratio, 1.0))
    level = limit * inverse
    quotient = tl.where(binds, level, quotient)
    slope = tl.where(binds, 0.0, slope)
    curvature = tl.where(binds, -(level * inverse) * inverse, curvature)
    return quotient, slope, curvature


@triton.jit
def angles_of_rows(ratio, post, max_angle, level):
    """quotient, slope and curvature of the angle."""
    if level is not None:
        quotient, slope, curvature = level_slopes(ratio, level)
    else:
        zero = tl.zeros(ratio.shape, tl.float32)
        quotient, slope, curvature = clamp(zero + 1.0, zero + 1.0, zero, ratio, max_angle)
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
def step_rows(x, u, post, max_angle, level):
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
    quotient, _, _ = angles_of_rows(ratio, post, max_angle, level)
    _, a, _, b = coefficients(quotient, ratio, xx)
    out = (a - b * correction)[:, None] * x + b[:, None] * t
    return out, xx, c + correction, n2


@triton.jit
def turn(xx, n2, post, max_angle, level):
    """What the backward pass knows of a row before it has seen a gradient: x' = a x + b t, 1 / <x,x>, and the slope of
    the angle and its bend."""
    inverse = invert_rows(xx)
    ratio = tl.sqrt_rn(n2 * inverse)
    quotient, slope, curvature = angles_of_rows(ratio, post, max_angle, level)
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


# norms of rows, without gains


@triton.jit
def normalise_rows(y, mask, eps, NORM: tl.constexpr, DIM: tl.constexpr):
    """N(y), and mean and inverse deviation of every row."""
    mean = tl.zeros((y.shape[0],), tl.float32)
    inverse = mean + 1.0
    if NORM == "layer":
        mean = tl.sum(y, 1) * (1.0 / DIM)
        y = tl.where(mask, y - mean[:, None], 0.0)
    if NORM != "none":
        inverse = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(y * y, 1) * (1.0 / DIM) + eps))
        y = y * inverse[:, None]
    return y, mean, inverse


@triton.jit
def normalise_again(y, mean, inverse, NORM: tl.constexpr):
    """N(y) from mean and inverse deviation; what lies beyond DIM is no zero."""
    if NORM == "layer":
        y = y - mean[:, None]
    if NORM != "none":
        y = y * inverse[:, None]
    return y


@triton.jit
def pull_back_norm(grad, y, inverse, NORM: tl.constexpr, DIM: tl.constexpr):
    """The gradient of what was normalised to y, where grad is 0 beyond DIM; what lies there afterwards is no zero."""
    if NORM == "none":
        return grad
    else:
        along = (tl.sum(grad * y, 1) * (1.0 / DIM))[:, None] * y
        if NORM == "layer":
            grad = grad - (tl.sum(grad, 1) * (1.0 / DIM))[:, None]
        return (grad - along) * inverse[:, None]


# memory


@triton.jit
def read_number(base, number):
    if base is None:
        return number
    else:
        return tl.load(base).to(tl.float32)


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
    """One number of every channel, for every row."""
    return tl.load(base + columns, mask=across, other=0.0).to(tl.float32)[None, :]


@triton.jit
def read_weight(base, number, columns, across):
    """A number, or one of every channel."""
    if base is None:
        return number
    else:
        return load_line(base, columns, across)


@triton.jit
def store_sum(base, total, columns, across, DIM: tl.constexpr):
    """The part of this program of a sum over rows, in (programs, DIM)."""
    if base is not None:
        tl.store(base + tl.program_id(0).to(tl.int64) * DIM + columns, tl.sum(total, 0), mask=across)


@triton.jit
def forward_kernel(
    x_ptr, u_ptr, out_ptr, read_ptr, stats_ptr, weight_ptr, shift_ptr,
    a_ptr, b_ptr, c_ptr, n0, n1, n2, eps,
    count, x_stride, u_stride,
    RULE: tl.constexpr, NORM: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """x' and stats; with read_ptr also y in its dtype. weight_ptr and shift_ptr: (DIM,), gains and biases of the norm
    after the step."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = rows < count
    across = columns < DIM
    mask = inside[:, None] & across[None, :]
    x = load_rows(x_ptr, rows, x_stride, columns, mask)
    u = load_rows(u_ptr, rows, u_stride, columns, mask)
    if RULE == "geodesic":
        out, first, second, third = step_rows(x, u, read_number(a_ptr, n0), n1, n2)
    else:
        n, first, second = normalise_rows(u, mask, n2, RULE, DIM)
        third = first
        out = read_weight(a_ptr, n0, columns, across) * x + read_weight(b_ptr, n1, columns, across) * n
        if c_ptr is not None:
            out = out + load_line(c_ptr, columns, across)
    tl.store(where_in_memory(out_ptr, rows, DIM, columns), out, mask=mask)
    tl.store(stats_ptr + rows, first, mask=inside)
    tl.store(line_of(stats_ptr, 1, count, rows), second, mask=inside)
    tl.store(line_of(stats_ptr, 2, count, rows), third, mask=inside)

    if read_ptr is not None:
        y = tl.where(mask, out.to(out_ptr.dtype.element_ty).to(tl.float32), 0.0)
        y, mean, inverse = normalise_rows(y, mask, eps, NORM, DIM)
        if weight_ptr is not None:
            y = y * load_line(weight_ptr, columns, across)
        if shift_ptr is not None:
            y = y + load_line(shift_ptr, columns, across)
        if NORM != "none":
            tl.store(line_of(stats_ptr, 3, count, rows), mean, mask=inside)
            tl.store(line_of(stats_ptr, 4, count, rows), inverse, mask=inside)
        tl.store(where_in_memory(read_ptr, rows, DIM, columns), y, mask=mask)


@triton.jit
def backward_kernel(
    grad_ptr, read_grad_ptr, x_ptr, u_ptr, stats_ptr, weight_ptr, dx_ptr, du_ptr,
    da_ptr, db_ptr, dc_ptr, dweight_ptr, dshift_ptr,
    a_ptr, b_ptr, c_ptr, n0, n1, n2,
    count, grad_stride, read_grad_stride, x_stride, u_stride,
    RULE: tl.constexpr, NORM: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx and du from the gradients of x' and of y, of one or of both. A program takes every so many tiles of ROWS rows
    and leaves its part of the sums over rows, to be added up in a fixed order: of a, b and c of a flat write and of the
    gains and biases of the norm after it, (programs, DIM) each."""
    columns = tl.arange(0, BLOCK)
    across = columns < DIM
    program, programs = tl.program_id(0), tl.num_programs(0)
    if RULE == "geodesic":
        rate = read_number(a_ptr, n0)
    else:
        of_x, of_n = read_weight(a_ptr, n0, columns, across), read_weight(b_ptr, n1, columns, across)
    if weight_ptr is not None:
        weight = load_line(weight_ptr, columns, across)
    da = tl.zeros((ROWS, BLOCK), tl.float32)
    db, dc, dweight, dshift = da, da, da, da
    for tile in range(program, tl.cdiv(count, ROWS), programs):
        rows = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = rows < count
        mask = inside[:, None] & across[None, :]
        x = load_rows(x_ptr, rows, x_stride, columns, mask)
        u = load_rows(u_ptr, rows, u_stride, columns, mask)
        first = load_numbers(stats_ptr, 0, count, rows, inside)
        second = load_numbers(stats_ptr, 1, count, rows, inside)
        third = load_numbers(stats_ptr, 2, count, rows, inside)
        if RULE == "geodesic":
            cos, sine, inverse, slope, bend = turn(first, third, rate, n1, n2)
            t = u - second[:, None] * x
            out = cos[:, None] * x + sine[:, None] * t
        else:
            t = normalise_again(u, first, second, RULE)
            out = of_x * x + of_n * t
            if c_ptr is not None:
                out = out + load_line(c_ptr, columns, across)

        do = tl.zeros((ROWS, BLOCK), tl.float32)
        if read_grad_ptr is not None:
            do = load_rows(read_grad_ptr, rows, read_grad_stride, columns, mask)
        if NORM != "none":
            y = out.to(x_ptr.dtype.element_ty).to(tl.float32)
            deviation = load_numbers(stats_ptr, 4, count, rows, inside)
            y = normalise_again(y, load_numbers(stats_ptr, 3, count, rows, inside), deviation, NORM)
            if dweight_ptr is not None:
                dweight += do * y
            if dshift_ptr is not None:
                dshift += do
            if weight_ptr is not None:
                do = do * weight
            do = tl.where(mask, pull_back_norm(do, y, deviation, NORM, DIM), 0.0)
        if grad_ptr is not None:
            do += load_rows(grad_ptr, rows, grad_stride, columns, mask)

        if RULE == "geodesic":
            dx, du = pull_back(x, t, do, first, second, third, cos, sine, inverse, slope, bend)
        else:
            if da_ptr is not None:
                da += do * x
            if db_ptr is not None:
                db += do * t
            if dc_ptr is not None:
                dc += do
            dx = of_x * do
            du = pull_back_norm(of_n * do, t, second, RULE, DIM)
        tl.store(where_in_memory(dx_ptr, rows, DIM, columns), dx, mask=mask)
        tl.store(where_in_memory(du_ptr, rows, DIM, columns), du, mask=mask)

    store_sum(da_ptr, da, columns, across, DIM)
    store_sum(db_ptr, db, columns, across, DIM)
    store_sum(dc_ptr, dc, columns, across, DIM)
    store_sum(dweight_ptr, dweight, columns, across, DIM)
    store_sum(dshift_ptr, dshift, columns, across, DIM)
