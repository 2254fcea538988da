"""The update that a sub-layer proposes to every particle: by attention with identity or random weights, or by the
freshly initialized blocks of a decoder under the scheme.

A field is called as field(y, tau) with y = read(x) of shape (..., n, dim), leading axes for seeds, and the simulator
time tau (a float; layer int(tau)); it returns the update u of the same shape. Q = K = V = I unless matrices are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isclose, sqrt
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..models.attention import SelfAttention, rope
from ..models.config import DecoderConfig
from ..models.init import draw_weight, matrices, restore_scalars
from ..models.mlp import MLP
from ..schemes import Scheme, Site
from .config import SimulateConfig
from .rates import chooses, enter_radius

GAINS = {"kaiming": sqrt(2.0), "gaussian": 1.0}
"""Standard deviation of a weight times sqrt(fan_in)."""
BRANCHES: dict[str, type[SelfAttention] | type[MLP]] = {"attn": SelfAttention, "mlp": MLP}
"""Sub-layers of a decoder, by kind of site."""


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


def build_sublayers(config: SimulateConfig, scheme: Scheme, seed: int, device: torch.device) -> list[tuple[str, Field]]:
    """(kind, field) in order, for one seed: weights per run are those of layer 0."""
    if config.weights == "identity":
        return [("attn", Attention(config.temperature, config.causal))]
    makers: dict[str, Callable[[int], Field]]
    dtype = getattr(torch, config.dtype)
    if config.weights == "network":
        model = describe_network(config, scheme)
        unit = find_unit(scheme, model)
        kinds = ("attn", "mlp") if config.mlp else ("attn",)
        makers = {kind: partial(draw_branch, scheme, model, kind, unit, seed, device, dtype) for kind in kinds}
    else:
        draw = partial(random_attention, config.dim, seed=seed, beta=config.temperature, init=config.weights)
        makers = {"attn": lambda layer: draw(layer=layer, causal=config.causal, dtype=dtype)}
    return [(kind, Fresh(make) if config.per == "layer" else make(0)) for kind, make in makers.items()]


def describe_network(config: SimulateConfig, scheme: Scheme) -> DecoderConfig:
    """The decoder whose blocks are simulated."""
    return DecoderConfig(
        scheme=str(scheme), layers=config.layers, width=config.dim, heads=config.heads, causal=config.causal, eps=0.0,
        mlp=config.mlp or "gelu", hidden=config.hidden or 4 * config.dim,
        positions="none" if config.rope is None else "rope", rope_theta=config.rope or 10000.0,
    )  # fmt: skip


def find_unit(scheme: Scheme, model: DecoderConfig) -> float:
    """The radius in the network of what N returns; among particles it is 1. It is sqrt(width). For a scheme with a norm
    of its own it is the radius of the sphere on which that scheme puts embeddings. ConfigError for a combinator of
    schemes whose radii differ."""
    entry = Site(0, "entry", model.layers)
    depths = range(model.layers if chooses(scheme) else 1)
    sites = [entry, *(Site(layer, kind, model.layers) for layer in depths for kind in BRANCHES)]
    rules = dict.fromkeys(scheme.resolve(site).resolve(entry) for site in sites)
    (first, unit), *others = ((rule, enter_radius(rule, entry, model.norm, model.width)) for rule in rules)
    for other, radius in others:
        if not isclose(unit, radius):
            raise ConfigError(
                f"{scheme} mixes streams of radius {unit:.4g} ({first}) and {radius:.4g} ({other}), and --weights "
                "network needs one: simulate them apart"
            )
    return unit


def draw_branch(
    scheme: Scheme,
    model: DecoderConfig,
    kind: str,
    unit: float,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    layer: int,
) -> NetworkBranch:
    """A freshly initialized branch of a decoder under the scheme, in a layer, with biases and gains."""
    site = Site(min(layer, model.layers - 1), kind, model.layers)
    rule = scheme.resolve(site)
    branch = BRANCHES[kind](model, rule, site)
    with torch.random.fork_rng(devices=[]):
        # a seed below 0: other draws than those of attention
        torch.manual_seed(generator_of(seed if kind == "attn" else -1 - seed, layer).initial_seed())
        restore_scalars(branch)
        for matrix in matrices(branch):
            draw_weight(matrix.weight.data, str(matrix.role), rule, site, model)
    return NetworkBranch(branch.to(device, dtype), unit, model)


@dataclass(eq=False)
class NetworkBranch:
    """A branch of the network as a field. unit: the radius in the network that corresponds to 1 among particles."""

    branch: nn.Module
    unit: float
    model: DecoderConfig
    fresh = False

    @torch.no_grad()
    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        places = torch.arange(y.shape[-2], device=y.device)
        turns = rope(places, self.model.rotary_dim, self.model.rope_theta) if self.model.positions == "rope" else None
        positions = {"positions": turns} if isinstance(self.branch, SelfAttention) else {}
        out: Tensor = self.branch((self.unit * y).reshape(-1, *y.shape[-2:]), **positions) / self.unit
        return out.view(y.shape)
