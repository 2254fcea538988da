"""Optimizers and learning-rate schedules over torch's own parts."""

from __future__ import annotations

from math import cos, pi

import torch
from torch import Tensor

from ...errors import ConfigError
from ...nn.roles import ROLES
from ...nn.trunk import Trunk
from ..options import Optim
from .muon import Muon


def build_optimizers(model: Trunk, config: Optim, lr: float) -> list[torch.optim.Optimizer]:
    """AdamW, SGD, or Muon for matrices inside blocks with AdamW for the rest. Weight decay follows the table of
    roles."""
    decayed: list[Tensor] = []
    hidden: list[Tensor] = []
    for role, weight, _, _ in model.weights():
        if config.name == "muon" and ROLES[role].hidden:
            hidden.append(weight)
        elif ROLES[role].decay:
            decayed.append(weight)
    taken = {id(p) for p in (*decayed, *hidden)}
    plain = [p for p in model.parameters() if id(p) not in taken]
    decay = config.weight_decay
    if config.independent:  # PyTorch multiplies by the rate of the step, lr times the schedule
        if lr <= 0:
            raise ConfigError("optim.independent needs a learning rate above 0")
        decay /= lr
    groups = [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(groups, lr=lr, momentum=config.momentum)
        if config.name == "sgd"
        else torch.optim.AdamW(groups, lr=lr, betas=config.betas, eps=config.eps, fused=True)
    ]
    if hidden:
        optimizers.append(Muon(hidden, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def rate_share(config: Optim, step: int, steps: int) -> float:
    """Learning rate of step 1..steps as a share of the highest."""
    warmup = config.warmup_end(steps)
    if step <= warmup:
        return step / max(1, warmup)
    if config.schedule == "cosine":
        progress = (step - warmup) / max(1, steps - warmup)
        return config.floor + (1 - config.floor) * (1 + cos(pi * progress)) / 2
    if config.schedule == "wsd":
        return max(config.floor, min(1.0, (steps - step) / (steps - config.trunk_end(steps))))
    return 1.0


def name_phase(config: Optim, step: int, steps: int) -> str:
    """What the rate does at a step, in a word."""
    if step <= config.warmup_end(steps):
        return "warm-up"
    return "cool-down" if config.schedule == "wsd" and step > config.trunk_end(steps) else "training"
