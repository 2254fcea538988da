"""LayerNorm as three steps (arXiv:2409.12951): remove the uniform component, normalise, scale by sqrt(dim).

    layer_norm(x) = scale(normalise(remove_uniform(x)));  rms_norm(x) = scale(normalise(x))

Each is a pure function of rows (..., dim), with eps = 0. What cannot be undone: the first step loses the uniform
component (one number per token), the second the length (one more); the third loses nothing, and neither do learned
gains that are not 0. So LayerNorm keeps dim - 2 of a token's dim numbers, RMSNorm dim - 1, and neither can be the
identity on all tokens, whatever it learns.
"""

from __future__ import annotations

from math import sqrt

from torch import Tensor

from .. import sphere


def uniform_component(x: Tensor) -> Tensor:
    """Signed length of x along (1, ..., 1)/sqrt(dim), shape (..., 1): sqrt(dim) times the mean."""
    return x.mean(-1, keepdim=True) * sqrt(x.shape[-1])


def remove_uniform(x: Tensor) -> Tensor:
    """x less its component along the uniform vector: x - mean(x), a projection."""
    return x - x.mean(-1, keepdim=True)


def normalise(x: Tensor) -> Tensor:
    """x / |x|; a zero row stays zero."""
    return sphere.safe_divide(x, sphere.radius(x))


def scale(x: Tensor) -> Tensor:
    """sqrt(dim) x."""
    return sqrt(x.shape[-1]) * x


def layer_norm(x: Tensor) -> Tensor:
    return scale(normalise(remove_uniform(x)))


def rms_norm(x: Tensor) -> Tensor:
    return scale(normalise(x))
