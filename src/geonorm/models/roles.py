"""What each weight matrix is for. One table serves initialisation, constraints and weight decay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..schemes import Scheme, Site
from .config import TrunkConfig


@dataclass(frozen=True)
class Role:
    decay: bool
    """Whether AdamW's weight decay applies."""
    hidden: bool
    """Whether it is a matrix inside a block, for optimizers that treat those apart (Muon)."""


ROLES = {
    "embed": Role(decay=False, hidden=False),
    "patch": Role(decay=True, hidden=False),
    "position": Role(decay=False, hidden=False),
    "class_token": Role(decay=False, hidden=False),
    "values": Role(decay=False, hidden=False),
    "q": Role(decay=True, hidden=True),
    "k": Role(decay=True, hidden=True),
    "v": Role(decay=True, hidden=True),
    "o": Role(decay=True, hidden=True),
    "up": Role(decay=True, hidden=True),
    "gate": Role(decay=True, hidden=True),
    "down": Role(decay=True, hidden=True),
    "head": Role(decay=True, hidden=False),
    "transform": Role(decay=True, hidden=False),
}

SHARED_ROLES = ("hidden", "gain")
"""Roles of many parameters: all matrices inside blocks; all that is no matrix, and what belongs to a scheme."""

SLOTS = {
    "attn": ("q", "k", "v", "q_rope", "k_rope"), "cross": ("q", "k", "v", "q_rope", "k_rope"), "mlp": ("up", "gate"),
    "exit": ("logits",),
}  # fmt: skip
"""Where a scheme may put a module inside a branch or the head, by kind of site (`Scheme.slot`)."""


def linear(role: str, inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """A linear layer on the default device that knows its role, whose weights nobody has drawn yet: the model draws
    them.

    They are registered anew, not moved as `skip_init` does, so that accelerate's `init_empty_weights`, and vLLM, see
    them and keep them on meta."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    for name, weight in list(layer.named_parameters()):
        layer.register_parameter(name, nn.Parameter(torch.empty_like(weight, device=torch.get_default_device())))
    layer.role = role  # type: ignore[assignment]
    return layer


def undrawn_table(role: str, rows: int, width: int) -> nn.Embedding:
    """Vectors to be looked up, or added by place, whose weights nobody has drawn yet."""
    # torch's own initial values are skipped: on the meta device they import the compiler
    table = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)
    table.role = role
    return table


def matrices(branch: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers inside a branch that know their role."""
    return (part for part in branch.modules() if isinstance(part, nn.Linear) and hasattr(part, "role"))


def base_std(role: str, fan_in: int, config: TrunkConfig, scheme: Scheme, site: Site) -> float:
    """The base standard deviation of a weight under `config.init`, against which the scheme states its own.

    fan_in  1/sqrt(fan_in), for the embedding 1/sqrt(width): a matrix keeps the mean square of what it reads
    neox    sqrt(2 / (5 width)), what writes to the stream 2 / (L sqrt(width)) (GPT-NeoX: small_init, wang_init)
    gpt2    0.02, what writes to the stream 0.02 / sqrt(2 L)
            in both, L is the depth of the site's stack, or init_depth, and what writes to the stream is drawn as all
            else under a scheme that brings its own `depth_init`
    zero    fan_in, but what writes to the stream begins at 0
    nanochat  zero, but embedding 0.8, head 0.001, up 0.4/sqrt(fan_in)
    """
    depth = site.depth if config.init_depth is None else config.init_depth
    writes = role in ("o", "down")
    smaller = writes and not scheme.depth_init
    if config.init == "neox":
        return 2 / depth * config.width**-0.5 if smaller else (0.4 / config.width) ** 0.5
    if config.init == "gpt2":
        return 0.02 * (2 * depth) ** -0.5 if smaller else 0.02
    if writes and config.init in ("zero", "nanochat"):
        return 0.0
    if config.init == "nanochat" and role in ("embed", "head"):
        return 0.8 if role == "embed" else 0.001
    return (0.4 if config.init == "nanochat" and role == "up" else 1.0) * float(fan_in) ** -0.5


def draw_weight(weight: Tensor, role: str, scheme: Scheme, site: Site, config: TrunkConfig) -> Tensor:
    """Draws a weight (out, in) in place as its scheme starts it, and returns it."""
    fan_out, fan_in = weight.shape
    weight.normal_(0.0, scheme.init_std(role, fan_in, fan_out, site, base_std(role, fan_in, config, scheme, site)))
    scheme.constrain({role: [weight]})
    return weight


def check_start(scheme: Scheme, config: TrunkConfig) -> None:
    """ConfigError where the scheme cannot begin with the output matrices that `config.init` draws: said before a model
    is built, which would say so too."""
    for layer in range(config.layers):
        for kind, role in (("attn", "o"), ("mlp", "down")):
            site = Site(layer, kind if config.block == "sequential" else "parallel", config.layers)
            rule = scheme.resolve(site)
            rule.init_std(role, 1, 1, site, base_std(role, 1, config, rule, site))
