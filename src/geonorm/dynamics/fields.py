"""What a sub-layer proposes to every particle: attention, MLP, and random weights drawn anew in each layer.

A field is called as field(y, tau) with y = read(x) of shape (..., n, dim), leading axes for seeds, and the simulator
time tau (a float; layer int(tau)); it returns the update u of the same shape. Q = K = V = I unless matrices are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite, sqrt
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError, unknown
from ..models.attention import rope, rotate

BLOCK_BYTES = 32 * 2**20
"""Scores held at once: queries are taken in blocks so that n x n never exists for large n."""


class Field(Protocol):
    """Anything that can be called so. `fresh` says that it changes at every whole layer (an integrator stops there)."""

    fresh: bool

    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor: ...


@dataclass(eq=False)
class Attention:
    """A_j = sum_k softmax_k(beta <Q y_j, K y_k>) V y_k for y of shape (..., n, dim).

    beta: inverse temperature, finite. causal: token j sees k <= j. heads: how often the identity is cut where a matrix
    is None. q, k, v: (..., heads, dim, head_dim), y @ q; o: (..., heads, head_dim, dim), or None for heads side by
    side; leading axes broadcast with those of y (one set of weights per seed). rope: base of rotary positions 0, 1, ...
    on queries and keys, turned as nn's attention turns them; None for no positions. Raises ConfigError for shapes that
    do not fit.
    """

    beta: float = 1.0
    causal: bool = False
    heads: int = 1
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    o: Tensor | None = None
    rope: float | None = None
    fresh = False

    def __post_init__(self) -> None:
        if not isfinite(self.beta):
            raise ConfigError(f"beta must be a finite number, got {self.beta}")
        for name in ("q", "k", "v", "o"):
            weight = getattr(self, name)
            if weight is None:
                continue
            if weight.dim() < 3:
                raise ConfigError(f"{name} must have shape (..., heads, in, out), got {tuple(weight.shape)}")
            self.heads = weight.shape[-3] if self.heads == 1 else self.heads
            if weight.shape[-3] not in (1, self.heads):
                raise ConfigError(f"{name} has {weight.shape[-3]} heads, expected {self.heads}")

    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        plain = self.project(y, None) if None in (self.q, self.k, self.v) else y
        q, k, v = (plain if weight is None else self.project(y, weight) for weight in (self.q, self.k, self.v))
        if self.rope is not None:
            turns = rope(torch.arange(q.shape[-2], device=q.device), q.shape[-1], self.rope)
            q, k = rotate(q, turns), rotate(k, turns)
        mix = self.mix(q, k, v)
        if self.o is not None:
            return (mix @ self.o.to(mix)).sum(-3)
        return mix.squeeze(-3) if mix.shape[-3] == 1 else mix.transpose(-3, -2).flatten(-2)

    def project(self, y: Tensor, weight: Tensor | None) -> Tensor:
        """(..., n, dim) to (..., heads, n, head_dim)."""
        if weight is not None:
            return y.unsqueeze(-3) @ weight.to(y)
        if y.shape[-1] % self.heads:
            raise ConfigError(f"width {y.shape[-1]} is not divisible by {self.heads} heads")
        return y.unsqueeze(-3) if self.heads == 1 else y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Weighted means of v, (..., heads, n, head_dim), in blocks of queries."""
        n = q.shape[-2]
        if has_kernel(q, v):
            shape = v.shape
            if q.dim() != 4:
                q, k, v = (part.reshape(-1, *part.shape[-3:]) for part in (q, k, v))
            # the kernel's own scale saves a pass over q; it multiplies the causal mask's -inf, too (nan at beta <= 0)
            q, scale = (q, self.beta) if self.beta > 0 else (self.beta * q, 1.0)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=scale)
            return out if out.shape == shape else out.view(shape)
        rows = block_rows(q, k)
        if rows >= n:
            return self.block(q, k, v, 0)
        return torch.cat([self.block(q[..., i : i + rows, :], k, v, i) for i in range(0, n, rows)], dim=-2)

    def block(self, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        """The rows first, first + 1, ... of the result. A causal block looks at the keys up to its last row only."""
        rows = q.shape[-2]
        if self.causal:
            k, v = k[..., : first + rows, :], v[..., : first + rows, :]
        scores = (self.beta * q) @ k.mT
        if self.causal:
            seen = torch.ones(rows, k.shape[-2], dtype=torch.bool, device=q.device).tril(first)
            scores = scores.masked_fill(~seen, -torch.inf)
        return torch.softmax(scores, dim=-1) @ v


def has_kernel(q: Tensor, v: Tensor) -> bool:
    """Whether PyTorch has a kernel for these that is fast, exact in their dtype and never holds n x n scores."""
    return q.shape == v.shape and (q.device.type == "cpu" or (q.is_cuda and q.dtype != torch.float64))


def block_rows(q: Tensor, k: Tensor) -> int:
    """How many queries fit so that their scores stay under BLOCK_BYTES; at least 16."""
    row = k[..., 0].numel() * max(1, q[..., 0, 0].numel() // max(1, k[..., 0, 0].numel())) * q.element_size()
    return max(16, BLOCK_BYTES // max(1, row))


@dataclass(eq=False)
class Mlp:
    """act(y @ up) @ down for y of shape (..., n, dim): up (..., dim, hidden), down (..., hidden, dim); with a gate, as
    up, (act(y @ gate) * (y @ up)) @ down. None for both: the identity, act(y), or act(y) * y if `gated`."""

    up: Tensor | None = None
    down: Tensor | None = None
    activation: str = "gelu"
    gate: Tensor | None = None
    gated: bool = False
    fresh = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(unknown("activation", self.activation, ACTIVATIONS))
        if self.up is None or self.down is None:
            if not self.up is self.down is self.gate is None:
                raise ConfigError("an MLP has both up and down, or neither and no gate")
        elif self.up.shape[-1] != self.down.shape[-2]:
            raise ConfigError(f"up {tuple(self.up.shape)} and down {tuple(self.down.shape)} do not fit")

    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        act = ACTIVATIONS[self.activation]
        if self.up is None or self.down is None:
            return act(y) * y if self.gated else act(y)
        up = y @ self.up.to(y)
        return (act(up) if self.gate is None else act(y @ self.gate.to(y)) * up) @ self.down.to(y)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda y: F.relu(y).square(),
    "silu": F.silu,
    "tanh": torch.tanh,
}

GAINS = {"kaiming": sqrt(2.0), "gaussian": 1.0}
"""Standard deviation of a weight times sqrt(fan_in)."""


def matrix(shape: tuple[int, ...], init: str, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Independent normal entries of standard deviation gain / sqrt(fan_in), fan_in the second-last axis."""
    if init not in GAINS:
        raise ConfigError(unknown("init", init, GAINS))
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul_(GAINS[init] / sqrt(shape[-2])).to(dtype)


def generator_of(seed: int, layer: int = 0) -> torch.Generator:
    """A generator that depends on seed and layer alone, on the CPU, so that every device draws the same numbers."""
    return torch.Generator().manual_seed((seed * 1_000_003 + layer * 7919 + 12345) % 2**63)


def random_attention(
    dim: int,
    *,
    seed: int = 0,
    layer: int = 0,
    heads: int = 1,
    beta: float | None = None,
    init: str = "kaiming",
    causal: bool = False,
    rope: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Attention:
    """Attention with random q, k, v (and o for several heads). beta None: sqrt(head_dim), the setting of the paper."""
    if heads < 1 or dim % heads:
        raise ConfigError(f"width {dim} is not divisible by {heads} heads")
    generator = generator_of(seed, layer)
    head = dim // heads
    q, k, v = (matrix((heads, dim, head), init, generator, dtype) for _ in range(3))
    o = matrix((dim, dim), init, generator, dtype).unflatten(0, (heads, head)) if heads > 1 else None
    warmth = sqrt(head) if beta is None else beta
    return Attention(beta=warmth, causal=causal, heads=heads, q=q, k=k, v=v, o=o, rope=rope)


def random_mlp(
    dim: int,
    *,
    hidden: int | None = None,
    seed: int = 0,
    layer: int = 0,
    activation: str = "gelu",
    gated: bool = False,
    init: str = "kaiming",
    dtype: torch.dtype = torch.float64,
) -> Mlp:
    """MLP with random weights; hidden None: 4 dim."""
    generator = generator_of(seed, layer)
    hidden = hidden or 4 * dim
    up, down = (matrix(shape, init, generator, dtype) for shape in ((dim, hidden), (hidden, dim)))
    return Mlp(up, down, activation, matrix((dim, hidden), init, generator, dtype) if gated else None)


@dataclass(eq=False)
class Fresh:
    """New weights in each layer: make(layer) gives the field of layer int(tau), and only the last is kept.

    make: such as `lambda layer: random_attention(512, seed=3, layer=layer)`.
    """

    make: Callable[[int], Field]
    fresh = True

    def __post_init__(self) -> None:
        self.layer, self.field = -1, None  # type: int, Field | None

    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        if self.field is None or int(tau) != self.layer:
            self.layer, self.field = int(tau), self.make(int(tau))
        return self.field(y, tau)
