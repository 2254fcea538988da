"""What each weight is for, and from that its initial values, constraints, weight decay and learning rate.

`initialize`, `constrain` and `parameter_groups` are for any model that holds `geonorm.Residual`s.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ConfigError, require, unknown
from ..norms import Norm
from ..residual import Residual, StreamEnd
from ..schemes import Scheme, Site, belongs_to_scheme, restore
from .config import TransformerConfig


@dataclass(frozen=True)
class Role:
    decay: bool
    """AdamW's weight decay applies."""
    end: Literal["", "entry", "exit"] = ""
    """The end of the stream whose scheme it stands under; none for a matrix inside a block, which some optimizers
    treat apart (Muon)."""
    turn: int = 1
    """When weights of the role are drawn: those at the entry first, then the others, last what few models have."""


ROLES = {
    "embed": Role(decay=False, end="entry", turn=0),
    "patch": Role(decay=True, end="entry", turn=0),
    "position": Role(decay=False, end="entry", turn=3),
    "class_token": Role(decay=False, end="entry", turn=4),
    "values": Role(decay=False, end="entry", turn=6),
    "q": Role(decay=True),
    "k": Role(decay=True),
    "v": Role(decay=True),
    "o": Role(decay=True),
    "up": Role(decay=True),
    "gate": Role(decay=True),
    "down": Role(decay=True),
    "head": Role(decay=True, end="exit", turn=2),
    "transform": Role(decay=True, end="exit", turn=5),
}

SHARED_ROLES = ("hidden", "gain")
"""Roles of many parameters: all matrices inside blocks; all that is no matrix, and what belongs to a scheme."""

USUAL_NAMES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "out_proj": "o", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "down", "lm_head": "head", "embed_tokens": "embed", "wte": "embed", "wpe": "position",
    "embed_positions": "position", "position_embedding": "position", "position_embeddings": "position",
    "token_type_embeddings": "position", "pos": "position", "pos_emb": "position", "pos_embed": "position",
    "pos_embedding": "position", "positional_embedding": "position", "positions": "position",
}  # fmt: skip
"""Roles of layers that do not say theirs, by the last part of their name; the names of roles themselves count, too."""

SLOTS = {
    "attn": ("q", "k", "v", "q_rope", "k_rope"), "cross": ("q", "k", "v", "q_rope", "k_rope"), "mlp": ("up", "gate"),
    "exit": ("logits",),
}  # fmt: skip
"""Where a scheme may put a module inside a branch or the head, by kind of site (`Scheme.slot`)."""


def linear(role: str, inputs: int, outputs: int, bias: bool = False, kind: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """A linear layer on the default device that knows its role, with memory for its weights but no values: the model
    draws them.

    They are registered anew, not moved as `skip_init` does, so that accelerate's `init_empty_weights`, and vLLM, see
    them and keep them on meta."""
    layer = kind(inputs, outputs, bias=bias, device="meta")
    for name, weight in list(layer.named_parameters()):
        layer.register_parameter(name, nn.Parameter(torch.empty_like(weight, device=torch.get_default_device())))
    layer.role = role  # type: ignore[assignment]
    return layer


def undrawn_table(role: str, rows: int, width: int) -> nn.Embedding:
    """Vectors to be looked up, or added by place, with memory but no values."""
    # torch's own initial values are skipped: on the meta device they import the compiler
    table = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)
    table.role = role
    return table


def matrices(branch: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers inside a branch that know their role."""
    return (part for part in branch.modules() if isinstance(part, nn.Linear) and hasattr(part, "role"))


class Weight(NamedTuple):
    role: str
    tensor: Tensor
    scheme: Scheme
    """The scheme that starts and constrains it."""
    site: Site


def role_of(name: str, module: nn.Module) -> str:
    """The role of a layer: its attribute `role`, what the last part of its name usually means, `embed` for any other
    table, or none, an empty string."""
    usual = name if name in ROLES else USUAL_NAMES.get(name, "embed" if isinstance(module, nn.Embedding) else "")
    return str(getattr(module, "role", usual))


def weights_of(model: nn.Module, strict: bool = False) -> list[Weight]:
    """Every weight that has a role, each tensor once, in the order in which a model draws them: the embedding, the
    blocks, the head, and then what some models have besides, so that all others are drawn as in a model without it.

    A weight inside a `Residual` stands under its scheme, any other under that at the entry or exit of the stream: a
    `StreamEnd`, or else the first or last residual. strict: ConfigError for a linear layer inside a residual without a
    role.
    """
    residuals = [module for module in model.modules() if isinstance(module, Residual)]
    if not residuals:
        return []
    ends = {"entry": (residuals[0].scheme, residuals[0].place()), "exit": (residuals[-1].scheme, residuals[-1].place())}
    ends |= {end.site.kind: (end.scheme, end.site) for end in model.modules() if isinstance(end, StreamEnd)}
    owners = {part: residual for residual in residuals for part in residual.branch.modules()}
    weights: list[Weight] = []
    for path, module in model.named_modules():
        residual = owners.get(module)
        if isinstance(module, nn.MultiheadAttention) and residual is not None:
            joined, apart = module.in_proj_weight, (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
            parts = zip("qkv", apart if joined is None else joined.chunk(3), strict=True)
            weights += [Weight(role, part, residual.scheme, residual.place()) for role, part in parts]
        if not isinstance(module, (nn.Linear, nn.Embedding)) or belongs_to_scheme(module):
            continue
        role = role_of(path.rpartition(".")[2], module)
        if residual is not None and role in ROLES:
            weights.append(Weight(role, module.weight, residual.scheme, residual.place()))
        elif residual is not None and strict:
            raise ConfigError(f"{path} has no role: set its attribute `role` to one of {', '.join(ROLES)}")
        elif residual is None and role in ROLES and (end := ROLES[role].end):
            weights.append(Weight(role, module.weight, *ends[end]))
    stored = [weight.tensor if weight.tensor._base is None else weight.tensor._base for weight in weights]
    if strict and not all(isinstance(tensor, nn.Parameter) for tensor in stored):
        raise ConfigError(
            "a weight of a sharded nn.MultiheadAttention, or a parametrised one, cannot be set in place: initialize "
            "before that, or use nn.Linear"
        )
    weights.sort(key=lambda weight: ROLES[weight.role].turn)
    # a tensor in two places, as a tied embedding, is drawn as what it is first, where it stands last
    last_places = {id(weight.tensor): place for place, weight in enumerate(weights)}
    first = {id(weight.tensor): weight for weight in reversed(weights)}
    return [first[number] for number in sorted(first, key=last_places.__getitem__)]


def base_std(role: str, fan_in: int, settings: TransformerConfig, scheme: Scheme, site: Site) -> float:
    """The base standard deviation of a weight under `init`, against which the scheme states its own.

    fan_in  1/sqrt(fan_in), for the embedding 1/sqrt(width): a matrix keeps the mean square of what it reads
    neox    sqrt(2 / (5 width)), what writes to the stream 2 / (L sqrt(width)) (GPT-NeoX: small_init, wang_init)
    gpt2    0.02, what writes to the stream 0.02 / sqrt(2 L)
            in both, L is the depth of the site's stack, or init_depth, and what writes to the stream is drawn as all
            else under a scheme that brings its own `depth_init`
    zero    fan_in, but what writes to the stream begins at 0
    nanochat  zero, but embedding 0.8, head 0.001, up 0.4/sqrt(fan_in)
    """
    depth = site.depth if settings.init_depth is None else settings.init_depth
    writes = role in ("o", "down")
    smaller = writes and not scheme.depth_init
    if settings.init == "neox":
        return 2 / depth * settings.width**-0.5 if smaller else (0.4 / settings.width) ** 0.5
    if settings.init == "gpt2":
        return 0.02 * (2 * depth) ** -0.5 if smaller else 0.02
    if writes and settings.init in ("zero", "nanochat"):
        return 0.0
    if settings.init == "nanochat" and role in ("embed", "head"):
        return 0.8 if role == "embed" else 0.001
    return (0.4 if settings.init == "nanochat" and role == "up" else 1.0) * float(fan_in) ** -0.5


def draw_weight(weight: Tensor, role: str, scheme: Scheme, site: Site, settings: TransformerConfig) -> Tensor:
    """Draws a weight (out, in) in place as its scheme starts it, and returns it."""
    fan_out, fan_in = weight.shape
    weight.normal_(0.0, scheme.init_std(role, fan_in, fan_out, site, base_std(role, fan_in, settings, scheme, site)))
    scheme.constrain({role: [weight]})
    return weight


def check_start(scheme: Scheme, config: TransformerConfig) -> None:
    """ConfigError where the scheme cannot begin with the output matrices that `config.init` draws: before a
    model is built."""
    for layer in range(config.layers):
        for kind, role in (("attn", "o"), ("mlp", "down")):
            site = Site(layer, kind if config.block == "sequential" else "parallel", config.layers)
            rule = scheme.resolve(site)
            rule.init_std(role, 1, 1, site, base_std(role, 1, config, rule, site))


def initialize(model: nn.Module, init: str = "fan_in") -> None:
    """Draw all weights as their schemes start them, and restore norms, biases and what the schemes learn.

    model: any module that holds `geonorm.Residual` modules. init: the base standard deviation, as `model.init` of a
    `DecoderConfig`: fan_in | neox | gpt2 | zero | nanochat; a scheme states its own against it. A layer says what it is
    for by an attribute `role` (embed, q, k, v, o, up, gate, down, head, ...) or a usual name (q_proj, lm_head, ...).
    Layers outside the residuals without a role stay as they are, as do matrices of other modules than nn.Linear,
    nn.Embedding and nn.MultiheadAttention (GPT-2's Conv1D, fused experts); but a module inside a residual that has
    `reset_parameters` is reset by it. Draws come from torch's global generator.
    Raises ConfigError for an unknown init, a linear layer inside a residual without a role, and a scheme that cannot
    start from output matrices at 0.

        >>> class Mlp(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up_proj, self.down_proj = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        ...     def forward(self, x):
        ...         return self.down_proj(self.up_proj(x).relu())
        >>> model = geonorm.Residual(Mlp(), "ngpt", geonorm.Site(0, "mlp", 1), dim=8)
        >>> geonorm.initialize(model)
        >>> model.branch.up_proj.weight.norm(dim=1).allclose(torch.ones(32))  # nGPT keeps weights on the sphere
        True
    """
    width = next((part.dim for part in model.modules() if isinstance(part, Residual)), 1)
    shape: dict[str, Any] = {"init": init, "width": width, "heads": 1, "positions": "none"}
    draw_all(model, TransformerConfig(**shape))


@torch.no_grad()
def draw_all(model: nn.Module, settings: TransformerConfig) -> None:
    """As `initialize`, by the settings of a model of this package."""
    weights = weights_of(model, strict=True)
    restore_scalars(model)
    if any(weight.tensor.is_meta for weight in weights):  # torch takes longer to find out than the whole build takes
        return
    for role, tensor, scheme, site in weights:
        draw_weight(tensor, role, scheme, site, settings)


@torch.no_grad()
def constrain(model: nn.Module) -> None:
    """Apply the constraints that schemes such as nGPT put on weights, in place: call it after each optimizer step.

    model: any module that holds `geonorm.Residual` modules; roles of layers as in `initialize`. Without such schemes
    it does nothing. Raises ConfigError for a linear layer under such a scheme without a role.

        >>> config = geonorm.DecoderConfig("ngpt", layers=1, width=16, heads=2, hidden=16, vocab_size=32)
        >>> model = geonorm.Decoder(config)
        >>> optimizer = torch.optim.AdamW(geonorm.parameter_groups(model, 0.1))
        >>> model.loss(torch.tensor([[1, 2]]), torch.tensor([[2, 3]])).backward()
        >>> optimizer.step()
        >>> geonorm.constrain(model)
        >>> model.embed.weight.norm(dim=1).allclose(torch.ones(32))
        True
    """
    if not any(part.scheme.constrains for part in model.modules() if isinstance(part, (Residual, StreamEnd))):
        return
    groups: dict[Scheme, dict[str, list[Tensor]]] = {}
    for role, tensor, scheme, _ in weights_of(model, strict=True):
        groups.setdefault(scheme, {}).setdefault(role, []).append(tensor)
    for scheme, tensors in groups.items():
        scheme.constrain(tensors)


@torch.no_grad()
def restore_scalars(model: nn.Module) -> None:
    """Restore all that is not drawn: what is no layer inside residuals, norms, and the bias of every layer that has a
    role."""
    inside = {part for each in model.modules() if isinstance(each, (Residual, StreamEnd)) for part in each.modules()}
    for name, module in model.named_modules():
        if belongs_to_scheme(module):
            restore(module)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            if role_of(name.rpartition(".")[2], module) and isinstance(bias := getattr(module, "bias", None), Tensor):
                bias.zero_()
        elif isinstance(module, nn.MultiheadAttention) and module in inside and module.in_proj_bias is not None:
            module.in_proj_bias.zero_()
        elif hasattr(module, "reset_parameters") and (
            module in inside
            or isinstance(module, Norm)
            or (module is not model and all(parameter.dim() < 2 for parameter in module.parameters()))  # other norms
        ):
            module.reset_parameters()


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """The role of every parameter, by name.

    model: one of this package, a model of transformers, before or after `geonorm.hf.apply`, or any module.

    A module says it by an attribute `role` or by its name, as in `initialize`. The output layer of a model of
    transformers is `head`, any other table of `nn.Embedding` `embed`, and every other matrix `hidden`. Norms, biases
    and what belongs to a residual scheme are `gain`, and matrices of one row or column that say no role. A parameter of
    three dimensions, as that of experts, is a stack of matrices. Wrappers such as DDP may stand around the model.

        >>> model = geonorm.Decoder(geonorm.DecoderConfig(layers=1, width=16, heads=2, hidden=16, vocab_size=32))
        >>> roles = parameter_roles(model)
        >>> roles["embed.weight"], roles["blocks.0.mlp.branch.down.weight"], roles["exit.own.norm.weight"]
        ('embed', 'down', 'gain')
    """
    outputs = [
        part.get_output_embeddings()  # type: ignore[operator]
        for part in model.modules()
        if hasattr(part, "get_output_embeddings")
    ]
    roles: dict[str, str] = {}
    for path, module in model.named_modules():
        is_head = module in outputs and not hasattr(module, "role")
        role = "head" if is_head else role_of(path.rpartition(".")[2], module) or "hidden"
        for name, parameter in module.named_parameters(recurse=False):
            dimensions = sum(size > 1 for size in parameter.shape)
            no_matrix = isinstance(module, Norm) or belongs_to_scheme(module) or "bias" in name
            matrix = not no_matrix and dimensions > (1 if "weight" in f"{path}.{name}" else 2)
            roles[f"{path}.{name}".lstrip(".")] = (
                role if matrix or (name == "weight" and hasattr(module, "role")) else "gain"
            )
    return roles


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float = 0.1, rates: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer of torch: learning rate and weight decay by role, as `geonorm train` has them.

        groups = geonorm.parameter_groups(model, 3e-3, weight_decay=0.1, rates={"embed": 16, "head": 1})
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))

    rates multiplies `lr` for a role: embed, position, head, q, k, v, o, up, gate, down, gain, or hidden for all
    matrices inside the blocks that are not named themselves; 1 where a role is not named. A layer says its role by an
    attribute `role` or by a usual name (`q_proj`, `wte`, `pos_emb`, `lm_head`). Weight decay is for matrices
    alone, not for embeddings, norms, biases and numbers that a scheme learns.

    Every group has `params`, `lr`, `weight_decay` and `lr_multiplier`, so that a schedule of one's own can set
    `group["lr"] = lr * group["lr_multiplier"]`. Frozen parameters are left out. Raises ConfigError for an unknown role,
    for the rate of one that no parameter has, and for a rate that is no number above 0.

        >>> model = geonorm.Decoder(geonorm.DecoderConfig(layers=1, width=16, heads=2, hidden=16, vocab_size=32))
        >>> groups = geonorm.parameter_groups(model, 1.0, rates={"embed": 16})
        >>> [(group["lr"], group["weight_decay"]) for group in groups]
        [(1.0, 0.1), (16.0, 0.0), (1.0, 0.0)]
    """
    require(0 <= lr < inf, f"lr must be at least 0, got {lr!r}")
    rates = rates or {}
    known = [*ROLES, *SHARED_ROLES]
    roles = parameter_roles(model)
    for role, rate in rates.items():
        if role not in known:
            raise ConfigError(unknown("role", role, known))
        # a tied matrix is listed under one of its names
        if rate != 1 and role not in ("hidden", *(roles[name] for name, _ in model.named_parameters())):
            raise ConfigError(f"no parameter has the role {role!r}; a layer says its own by an attribute `role`")
        require(isinstance(rate, (int, float)) and 0 < rate < inf, f"rates of {role} must be positive, got {rate!r}")
    groups: dict[tuple[float, bool], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((rate_of(roles[name], rates), decays(roles[name])), []).append(parameter)
    ordered = sorted(groups.items(), key=lambda group: not group[0][1])  # what decays first
    return [
        {"params": params, "lr": lr * rate, "weight_decay": weight_decay if decayed else 0.0, "lr_multiplier": rate}
        for (rate, decayed), params in ordered
    ]


def decays(role: str) -> bool:
    """True for a role that weight decay is for."""
    return role == "hidden" or (role in ROLES and ROLES[role].decay)


def rate_of(role: str, rates: Mapping[str, float]) -> float:
    """The multiplier of a role: its own, or that of all matrices inside blocks, or 1."""
    shared = rates.get("hidden", 1.0) if role in ROLES and not ROLES[role].end else 1.0
    return rates.get(role, shared)
