"""Optimizers over torch's own parts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import require
from ...models.decoder import Transformer
from ...models.init import ROLES, parameter_groups
from ..config import Optim
from .muon import Muon


def build_optimizers(model: Transformer, config: Optim, lr: float) -> list[torch.optim.Optimizer]:
    """AdamW, or Muon for matrices inside blocks with AdamW for the rest. Weight decay and learning rate of a parameter
    depend on its role."""
    require(not config.independent or lr > 0, "optim.independent needs a learning rate above 0")
    groups = parameter_groups(model, lr, config.weight_decay, config.multipliers)
    if config.independent:  # PyTorch multiplies by the rate of the step, lr times the schedule
        for group in groups:
            group["weight_decay"] /= group["lr"]
    hidden: list[dict[str, Any]] = []
    if config.name == "muon":
        inside = {id(weight) for role, weight, _, _ in model.weights() if not ROLES[role].end}
        hidden = select(groups, lambda p: id(p) in inside)
        groups = select(groups, lambda p: id(p) not in inside)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=lr, betas=config.betas, eps=config.eps, fused=True)
    ]
    if hidden:
        optimizers.append(Muon(hidden, lr=lr, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def select(groups: list[dict[str, Any]], wanted: Callable[[Tensor], bool]) -> list[dict[str, Any]]:
    """The groups with the wanted parameters alone, without groups that have none."""
    parts = [{**group, "params": [p for p in group["params"] if wanted(p)]} for group in groups]
    return [group for group in parts if group["params"]]
