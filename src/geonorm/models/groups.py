"""What each parameter of a model is for, and from that its weight decay and its learning rate, for any optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import ConfigError, unknown
from ..schemes import belongs_to_scheme
from .roles import ROLES, SHARED_ROLES


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """The role of every parameter, by name.

    model: one of this package, a model of transformers, before or after `geonorm.hf.apply`, or any module.

    A module that has an attribute `role`, as the layers of this package do, says it itself. Otherwise a table of
    `nn.Embedding` is `embed`, the output layer of a model of transformers `head`, and every other matrix `hidden`.
    Norms, biases and what belongs to a residual scheme are `gain`. Wrappers such as DDP may stand around the model.
    """
    models: list[Any] = [part for part in model.modules() if hasattr(part, "get_output_embeddings")]
    outputs = [part.get_output_embeddings() for part in models]
    roles: dict[str, str] = {}
    for path, module in model.named_modules():
        role = str(getattr(module, "role", "embed" if isinstance(module, nn.Embedding) else "hidden"))
        if any(module is output for output in outputs) and not hasattr(module, "role"):
            role = "head"
        for name, parameter in module.named_parameters(recurse=False):
            matrix = name == "weight" and parameter.dim() == 2 and not belongs_to_scheme(module)
            roles[f"{path}.{name}".lstrip(".")] = role if matrix else "gain"
    return roles


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float = 0.1, rates: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer of torch: learning rate and weight decay by role, as `geonorm train` has them.

        groups = geonorm.parameter_groups(model, 3e-3, weight_decay=0.1, rates={"embed": 16, "head": 1})
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))

    rates multiplies `lr` for a role: embed, position, head, q, k, v, o, up, gate, down, gain, or hidden for all
    matrices inside the blocks that are not named themselves; 1 where a role is not named. Weight decay is for matrices
    alone, not for embeddings, norms, biases and numbers that a scheme learns.

    Every group has `params`, `lr`, `weight_decay` and `rate`, its multiplier, so that a schedule of one's own can set
    `group["lr"] = lr * group["rate"]`. Parameters that are frozen are left out. Raises ConfigError for an unknown role.

        >>> model = geonorm.Decoder(geonorm.DecoderConfig(layers=1, width=16, heads=2, hidden=16, vocab_size=32))
        >>> groups = geonorm.parameter_groups(model, 1.0, rates={"embed": 16})
        >>> [(group["lr"], group["weight_decay"]) for group in groups]
        [(1.0, 0.1), (16.0, 0.0), (1.0, 0.0)]
    """
    rates = rates or {}
    known = [*ROLES, *SHARED_ROLES]
    for role in rates:
        if role not in known:
            raise ConfigError(unknown("role", role, known))
    roles = parameter_roles(model)
    groups: dict[tuple[float, bool], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((rate_of(roles[name], rates), decays(roles[name])), []).append(parameter)
    ordered = sorted(groups.items(), key=lambda group: not group[0][1])  # what decays first
    return [
        {"params": params, "lr": lr * rate, "weight_decay": weight_decay if decayed else 0.0, "rate": rate}
        for (rate, decayed), params in ordered
    ]


def decays(role: str) -> bool:
    """True for a role that weight decay is for."""
    return role == "hidden" or (role in ROLES and ROLES[role].decay)


def rate_of(role: str, rates: Mapping[str, float]) -> float:
    """The multiplier of a role: its own, or that of all matrices inside blocks, or 1."""
    shared = rates.get("hidden", 1.0) if role in ROLES and ROLES[role].hidden else 1.0
    return rates.get(role, shared)
