"""The sub-layers of a simulated layer: attention, and an MLP after it where one is asked for, with identity weights,
random ones, or those that a decoder under the scheme begins with."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..devices import pick_device
from ..errors import ConfigError
from ..models.attention import SelfAttention, rope as rotary
from ..models.config import DecoderConfig
from ..models.init import draw_weight
from ..models.mlp import MLP
from ..schemes import Scheme, Site, belongs_to_scheme, restore
from .config import SimulateConfig
from .drawn import DrawnAttention, DrawnMlp, Sub, enter_radius
from .fields import Attention, Field, Fresh, Mlp, generator_of, random_attention, random_mlp
from .flow import chooses

GATED = {"swiglu": "silu"}
"""Activations of gated MLPs."""
BRANCHES: dict[str, type[SelfAttention] | type[MLP]] = {"attn": SelfAttention, "mlp": MLP}
"""Sub-layers of a decoder, by kind of site."""


def inverse_temperature(config: SimulateConfig) -> float:
    """beta: of a decoder in units of radius 1, where matrices of standard deviation 1/sqrt(dim) read y / |y|."""
    head = config.dim // config.heads
    if config.weights == "network":
        return config.dim / sqrt(head)
    return config.beta if config.beta is not None else 1.0 if config.weights == "identity" else sqrt(head)


def build_sublayers(config: SimulateConfig, scheme: Scheme, seed: int) -> list[tuple[str, Field]]:
    """(kind, field) in order, for one seed: weights per run are those of layer 0."""
    if config.weights == "network":
        kinds = BRANCHES if config.mlp else ("attn",)
        return [(kind, per_layer(config, draw_network(config, scheme, kind, seed))) for kind in kinds]
    found: list[tuple[str, Field]] = [("attn", attention(config, seed))]
    return [*found, ("mlp", mlp(config, seed))] if config.mlp else found


def per_layer(config: SimulateConfig, make: Callable[[int], Field]) -> Field:
    return Fresh(make) if config.per == "layer" else make(0)


def attention(config: SimulateConfig, seed: int) -> Field:
    beta, causal, rope = inverse_temperature(config), config.causal, config.rope
    if config.weights == "identity":
        return Attention(beta=beta, causal=causal, heads=config.heads, rope=rope)

    def make(layer: int) -> Field:
        return random_attention(
            config.dim, seed=seed, layer=layer, heads=config.heads, beta=beta, init=config.weights, causal=causal,
            rope=rope, dtype=getattr(torch, config.dtype),
        )  # fmt: skip

    return per_layer(config, make)


def mlp(config: SimulateConfig, seed: int) -> Field:
    act = str(config.mlp)
    activation, gated = GATED.get(act, act), act in GATED
    if config.weights == "identity":
        return Mlp(activation=activation, gated=gated)

    def make(layer: int) -> Field:
        # a seed below 0: other draws than those of attention
        return random_mlp(
            config.dim, hidden=config.hidden, seed=-1 - seed, layer=layer, activation=activation, gated=gated,
            init=config.weights, dtype=getattr(torch, config.dtype),
        )  # fmt: skip

    return per_layer(config, make)


class Branch:
    """A branch of the network as a field. unit: the radius in the network of what has radius 1 among particles."""

    fresh = False

    def __init__(self, branch: nn.Module, unit: float, rope: Callable[[Tensor], dict[str, Any]]) -> None:
        self.branch, self.unit, self.rope = branch, unit, rope

    @torch.no_grad()
    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        whole = (self.unit * y).reshape(-1, *y.shape[-2:])
        out: Tensor = self.branch(whole, **self.rope(y)) / self.unit
        return out.view(y.shape)


def draw_network(config: SimulateConfig, scheme: Scheme, kind: str, seed: int) -> Callable[[int], Field]:
    """Layer by layer the branch that a decoder under the scheme begins with, biases and gains as there."""
    model = network(config, scheme)
    unit = find_unit(scheme, model)

    def make(layer: int) -> Field:
        site = Site(min(layer, model.layers - 1), kind, model.layers)
        rule = scheme.resolve(site)
        made = BRANCHES[kind](model, rule, site)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator_of(seed if kind == "attn" else -1 - seed, layer).initial_seed())
            for module in made.modules():
                if belongs_to_scheme(module):
                    restore(module)
                elif isinstance(module, nn.Linear):
                    draw_weight(module.weight.data, str(module.role), rule, site, model)
                elif callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
        return Branch(made.to(pick_device(config.device), getattr(torch, config.dtype)), unit, positions)

    def positions(y: Tensor) -> dict[str, Any]:
        if kind != "attn":
            return {}
        where = torch.arange(y.shape[-2], device=y.device)
        return {"positions": None if config.rope is None else rotary(where, model.rotary_dim, model.rope_theta)}

    return make


def find_unit(scheme: Scheme, model: DecoderConfig) -> float:
    """The radius of N in the network, 1 among particles: sqrt(width), but for schemes that bring an N of their own,
    which shows where embeddings are put on its sphere. ConfigError for a scheme made of such that have several."""
    entry = Site(0, "entry", model.layers)
    layers = range(model.layers if chooses(scheme) else 1)
    sites = [Site(layer, kind, model.layers) for layer in layers for kind in BRANCHES]
    rules = dict.fromkeys(scheme.resolve(site).resolve(entry) for site in (entry, *sites))
    (first, unit), *others = ((rule, enter_radius(rule, entry, model.norm, model.width)) for rule in rules)
    for other, radius in others:
        if not isclose(unit, radius):
            raise ConfigError(
                f"{scheme} mixes streams of radius {unit:.4g} ({first}) and {radius:.4g} ({other}), and --weights "
                "network needs one: simulate them apart"
            )
    return unit


def network(config: SimulateConfig, scheme: Scheme) -> DecoderConfig:
    """The decoder whose blocks are simulated."""
    changed: dict[str, Any] = {} if config.mlp is None else {"mlp": config.mlp}
    if config.rope is not None:
        changed["rope_theta"] = config.rope
    return DecoderConfig(
        scheme=str(scheme), layers=config.layers, width=config.dim, heads=config.heads, causal=config.causal, eps=0.0,
        hidden=config.hidden or 4 * config.dim, positions="none" if config.rope is None else "rope", **changed,
    )  # fmt: skip


def drawn(config: SimulateConfig) -> tuple[Sub, ...]:
    """The sub-layers of a network as `dynamics.drawn` knows them."""
    act = str(config.mlp)
    units = {"width": config.dim, "hidden": config.hidden or 4 * config.dim}
    below: tuple[Sub, ...] = (DrawnMlp(GATED.get(act, act), gated=act in GATED, **units),) if config.mlp else ()
    return (DrawnAttention(causal=config.causal), *below)
