"""The sub-layers of a simulated layer: attention, or the blocks with which a decoder under the scheme begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..models.attention import SelfAttention, rope
from ..models.config import DecoderConfig
from ..models.init import draw_weight
from ..models.mlp import MLP
from ..schemes import Scheme, Site, belongs_to_scheme, restore
from .config import SimulateConfig
from .drawn import enter_radius
from .fields import Attention, Field, Fresh, generator_of, random_attention
from .flow import chooses

BRANCHES: dict[str, type[SelfAttention] | type[MLP]] = {"attn": SelfAttention, "mlp": MLP}
"""Sub-layers of a decoder, by kind of site."""


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

        def make(layer: int) -> Field:
            return random_attention(
                config.dim, seed=seed, layer=layer, beta=config.temperature, init=config.weights,
                causal=config.causal, dtype=dtype,
            )  # fmt: skip

        makers = {"attn": make}
    return [(kind, Fresh(make) if config.per == "layer" else make(0)) for kind, make in makers.items()]


def describe_network(config: SimulateConfig, scheme: Scheme) -> DecoderConfig:
    """The decoder whose blocks are simulated."""
    changed: dict[str, Any] = {} if config.mlp is None else {"mlp": config.mlp}
    if config.rope is not None:
        changed["rope_theta"] = config.rope
    return DecoderConfig(
        scheme=str(scheme), layers=config.layers, width=config.dim, heads=config.heads, causal=config.causal, eps=0.0,
        hidden=config.hidden or 4 * config.dim, positions="none" if config.rope is None else "rope", **changed,
    )  # fmt: skip


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
    """The branch with which a decoder under the scheme begins in a layer, biases and gains as there."""
    site = Site(min(layer, model.layers - 1), kind, model.layers)
    rule = scheme.resolve(site)
    branch = BRANCHES[kind](model, rule, site)
    with torch.random.fork_rng(devices=[]):
        # a seed below 0: other draws than those of attention
        torch.manual_seed(generator_of(seed if kind == "attn" else -1 - seed, layer).initial_seed())
        for module in branch.modules():
            if belongs_to_scheme(module):
                restore(module)
            elif isinstance(module, nn.Linear):
                draw_weight(module.weight.data, str(module.role), rule, site, model)
            elif callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    return NetworkBranch(branch.to(device, dtype), unit, model if kind == "attn" else None)


@dataclass(eq=False)
class NetworkBranch:
    """A branch of the network as a field. unit: the radius in the network of what has radius 1 among particles; model:
    of attention, which is told the positions of the tokens."""

    branch: nn.Module
    unit: float
    model: DecoderConfig | None
    fresh = False

    @torch.no_grad()
    def __call__(self, y: Tensor, tau: float = 0.0) -> Tensor:
        positions: dict[str, Any] = {}
        if self.model is not None:
            where = torch.arange(y.shape[-2], device=y.device)
            turned = self.model.positions == "rope"
            positions["positions"] = rope(where, self.model.rotary_dim, self.model.rope_theta) if turned else None
        out: Tensor = self.branch((self.unit * y).reshape(-1, *y.shape[-2:]), **positions) / self.unit
        return out.view(y.shape)
