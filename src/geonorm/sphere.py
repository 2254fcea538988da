"""Geometry of the sphere: pure functions of tensors of shape (..., dim), row by row over the last axis.

The sphere is the one through the point: a point x of radius |x| stays at radius |x|. Nothing here knows about networks.
All functions keep the dtype of their input, are differentiable forward and backward, and follow one convention at
degenerate points: a zero tangent vector moves nothing, a zero point has no tangent space and stays where it is; one so
near to 0 that its square is no normal number (`vanishes`) is one at 0. Convert half precision first: lengths are
squared, and in fp16 that overflows from 256 on.
Comparisons are with 0.0: with a whole number PyTorch converts first, and takes ten times as long on a few tokens.
"""

from math import factorial, inf

import torch
from torch import Tensor


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product of rows, shape (..., 1).

    >>> geonorm.sphere.dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor([11.])
    """
    return (x * y).sum(-1, keepdim=True)


def radius(x: Tensor) -> Tensor:
    """|x|, shape (..., 1), with gradient 0 (not NaN) at x = 0.

    >>> geonorm.sphere.radius(torch.tensor([3.0, 4.0]))
    tensor([5.])
    """
    return safe_sqrt(dot(x, x))


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root whose derivative at 0 is 0 instead of infinite.

    >>> x = torch.zeros(1, requires_grad=True)
    >>> geonorm.sphere.safe_sqrt(x).backward()
    >>> x.grad
    tensor([0.])
    """
    zero = squared == 0.0
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, squared)))


def vanishes(squared: Tensor) -> Tensor:
    """Where a squared length is 0, or so small that 1 over it may overflow.

    >>> geonorm.sphere.vanishes(torch.tensor([1e-39, 1.0]))
    tensor([ True, False])
    """
    return squared < torch.finfo(squared.dtype).tiny


def safe_divide(a: Tensor, b: Tensor, zero: Tensor | None = None) -> Tensor:
    """a / b where b is not 0, and 0 with zero gradient where it is. NaN passes through. zero: where b counts as 0.

    >>> geonorm.sphere.safe_divide(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
    tensor([0.0000, 0.5000])
    """
    zero = b == 0.0 if zero is None else zero
    return torch.where(zero, 0.0, a / torch.where(zero, 1.0, b))


def sinc(angle: Tensor) -> Tensor:
    """sin(angle) / angle, smooth through 0.

    >>> geonorm.sphere.sinc(torch.tensor([0.0, 3.0]))
    tensor([1.0000, 0.0470])
    """
    return cos_and_sinc(angle * angle)[1]


def cos_and_sinc(squared: Tensor) -> tuple[Tensor, Tensor]:
    """cos(a) and sin(a) / a of a^2: both are power series in it, so no root stands where the angle vanishes, and
    derivatives of every order are right there. Series below 0.04, exact to 1e-16.

    >>> geonorm.sphere.cos_and_sinc(torch.tensor(0.0))
    (tensor(1.), tensor(1.))
    """
    small = squared < 0.04
    near = torch.where(small, squared, 0.0)  # the gradient of a series that overflows would be 0 times infinity
    root = torch.sqrt(torch.where(small, 1.0, squared))
    cos, sinc = (
        torch.where(small, power_series(near, [(-1) ** k / factorial(2 * k + odd) for k in range(8)]), far)
        for odd, far in ((0, torch.cos(root)), (1, torch.sin(root) / root))
    )
    return cos, sinc


ATAN = [(-1) ** k / (2 * k + 1) for k in range(8)]
"""atan(z) / z in powers of z^2."""


def power_series(s: Tensor, coefficients: list[float]) -> Tensor:
    """Polynomial in s, lowest power first.

    >>> geonorm.sphere.power_series(torch.tensor(2.0), [1.0, 2.0, 3.0])  # 1 + 2 s + 3 s^2
    tensor(17.)
    """
    total = torch.full_like(s, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * s + coefficient
    return total


def frame(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Splits u = c x + v with v tangent at x: returns c of shape (..., 1) and v of shape (..., dim).

    v is orthogonalised twice, so that <x, v> is rounding error even where u is nearly parallel to x; the shorter
    formula <u,u> - <x,u>^2/<x,x> for |v|^2 loses the angle to cancellation.

    >>> geonorm.sphere.frame(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 3.0]))
    (tensor([0.5000]), tensor([0., 3.]))
    """
    squared = dot(x, x)
    zero = vanishes(squared)
    c = safe_divide(dot(x, u), squared, zero)
    v = torch.addcmul(u, c, x, value=-1)
    correction = safe_divide(dot(x, v), squared, zero)
    return c + correction, torch.addcmul(v, correction, x, value=-1)


def tangent(x: Tensor, u: Tensor) -> Tensor:
    """Part of u in the tangent space at x.

    >>> geonorm.sphere.tangent(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 3.0]))
    tensor([0., 3.])
    """
    return frame(x, u)[1]


def exp(x: Tensor, v: Tensor) -> Tensor:
    """Exponential map: from x along the geodesic of the tangent vector v, by the arc length |v|.

    >>> x, v = torch.tensor([2.0, 0.0]), torch.tensor([0.0, torch.pi])  # a quarter of the circle of radius 2
    >>> geonorm.sphere.exp(x, v).round(decimals=4).abs()
    tensor([0., 2.])
    """
    squared = dot(x, x)
    zero = vanishes(squared)
    cos, pull = cos_and_sinc(safe_divide(dot(v, v), squared, zero))
    return cos * x + torch.where(zero, 0.0, pull) * v


def log(x: Tensor, y: Tensor) -> Tensor:
    """Inverse of exp: the tangent vector at x that reaches y (of the same radius), at most half a turn away.

    At antipodal points the direction is undefined and 0 is returned.

    >>> x, y = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
    >>> geonorm.sphere.log(x, y)
    tensor([0.0000, 3.1416])
    """
    turn, v = angle(x, y), tangent(x, y)
    near, far = safe_divide(radius(x), radius(y) * sinc(turn)), safe_divide(turn * radius(x), radius(v))
    return torch.where(turn < 1.0, near, far) * v  # near is smooth at y = x, far is exact up to the antipode


def retraction_quotient(squared: Tensor, power: float) -> Tensor:
    """Angle of the step over ratio, from ratio^2: atan(z) / z with z = ratio / p, smooth through 0.

    >>> geonorm.sphere.retraction_quotient(torch.tensor(1.0), power=1.0)  # atan(1)
    tensor(0.7854)
    """
    if power == inf:
        return torch.ones_like(squared)
    s = squared / (power * power)
    small = s < 0.01
    near = torch.where(small, s, 0.0)  # as in cos_and_sinc
    z = torch.sqrt(torch.where(small, 1.0, s))
    return torch.where(small, power_series(near, ATAN), torch.atan(z) / z)


def angle(x: Tensor, y: Tensor) -> Tensor:
    """Angle between rows in radians, shape (..., 1), accurate near 0 and pi (Kahan's form of two norms).

    >>> geonorm.sphere.angle(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    tensor([1.5708])
    """
    a = safe_divide(x, radius(x))
    b = safe_divide(y, radius(y))
    return 2 * torch.atan2(radius(a - b), radius(a + b))
