"""What a sub-layer proposes to every particle: attention, with the identity or drawn weights.

A field is called as field(y, tau) with y = read(x) of shape (..., n, dim), leading axes for seeds, and the simulator
time tau (a float; layer int(tau)); it returns the update u of the same shape. Q = K = V = I unless matrices are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError, unknown

GAINS = {"kaiming": sqrt(2.0), "gaussian": 1.0}
"""Standard deviation of a weight times sqrt(fan_in)."""


class Field(Protocol):
    """Anything that can be called so. `fresh` says that it changes at every whole layer (an integrator stops there).

    >>> geonorm.dynamics.Attention().fresh
    False
    """

    fresh: bool

    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor: ...


@dataclass(eq=False)
class Attention:
    """A_j = sum_k softmax_k(beta <Q y_j, K y_k>) V y_k for y of shape (..., n, dim).

    beta: inverse temperature, finite. causal: token j sees k <= j. q, k: (..., dim, head_dim), v: (..., dim, dim),
    as in y @ q; None is the identity.

    >>> y = torch.eye(2)
    >>> geonorm.dynamics.Attention(beta=0.0)(y)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """

    beta: float = 1.0
    causal: bool = False
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    fresh = False

    def __post_init__(self) -> None:
        if not isfinite(self.beta):
            raise ConfigError(f"beta must be a finite number, got {self.beta}")

    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        q, k, v = (y if weight is None else y @ weight.to(y) for weight in (self.q, self.k, self.v))
        # the kernel's own scale saves a pass over q; it multiplies the causal mask's -inf, too (nan at beta <= 0)
        q, scale = (q, self.beta) if self.beta > 0 else (self.beta * q, 1.0)
        heads = [part.reshape(-1, 1, *part.shape[-2:]) for part in (q, k, v)]
        out: Tensor = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=self.causal, scale=scale)
        return out.view(v.shape)


def generator_of(seed: int, layer: int = 0) -> torch.Generator:
    """A generator that depends on seed and layer alone, on the CPU, so that every device draws the same numbers."""
    return torch.Generator().manual_seed((seed * 1_000_003 + layer * 7919 + 12345) % 2**63)


def random_attention(
    dim: int,
    *,
    seed: int = 0,
    layer: int = 0,
    beta: float | None = None,
    init: str = "kaiming",
    causal: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Attention:
    """Attention whose q, k, v have independent normal entries of standard deviation sqrt(2/dim) (kaiming) or
    1/sqrt(dim) (gaussian); beta None: sqrt(dim), the setting of arXiv:2510.22026.

    >>> field = geonorm.dynamics.random_attention(64, seed=1)
    >>> field.beta, field.v.shape
    (8.0, torch.Size([64, 64]))
    """
    if init not in GAINS:
        raise ConfigError(unknown("init", init, GAINS))
    generator = generator_of(seed, layer)
    q, k, v = (
        torch.randn(dim, dim, generator=generator, dtype=torch.float64).mul_(GAINS[init] / sqrt(dim)).to(dtype)
        for _ in range(3)
    )
    return Attention(sqrt(dim) if beta is None else beta, causal, q, k, v)


@dataclass(eq=False)
class Fresh:
    """New weights in each layer: make(layer) gives the field of layer int(tau), and only the last is held.

    >>> field = geonorm.dynamics.Fresh(lambda layer: geonorm.dynamics.random_attention(8, layer=layer))
    >>> y = torch.eye(8, dtype=torch.float64)
    >>> torch.equal(field(y, 3.0), field(y, 3.9)), torch.equal(field(y, 3.0), field(y, 4.0))
    (True, False)
    """

    make: Callable[[int], Field]
    fresh = True

    def __post_init__(self) -> None:
        self.layer, self.field = -1, None  # type: int, Field | None

    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        if self.field is None or int(tau) != self.layer:
            self.layer, self.field = int(tau), self.make(int(tau))
        return self.field(y, tau)
