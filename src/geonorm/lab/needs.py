"""Settings of a run that do nothing without another one: which, and whether a configuration (config.Shared) has it. No
torch here."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from ..settings import Needs
from .clusters import Ray, Slurm

BIASED = ("layer", "dyt", "derf")
"""Norms that have a bias beside their gains."""


def has_norm_bias(config: Any) -> bool:
    shape = config.shape("pre")
    return shape.gains and shape.norm in BIASED


def has_launcher(name: str, config: Any) -> bool:
    return bool(config.launcher == name)


NEEDS: Needs = {
    "optim.cooldown": ("optim.schedule wsd", lambda run: run.optim.schedule == "wsd"),
    "optim.floor": ("optim.schedule cosine or wsd", lambda run: run.optim.schedule != "constant"),
    "optim.warmup": ("optim.warmup_steps to be left out", lambda run: run.optim.warmup_steps is None),
    "model.norm_bias": ("norms with gains and a bias, model.norm layer, dyt or derf", has_norm_bias),
    "model.init_depth": ("model.init neox or gpt2", lambda run: run.shape("pre").init in ("neox", "gpt2")),
    "model.rope_theta": ("model.positions rope", lambda run: run.shape("pre").positions == "rope"),
}
"""Of a run."""
LAUNCHED: Needs = {
    f"{name}.{field.name}": (f"--launcher {launcher}", partial(has_launcher, launcher))
    for launcher, name, group in (("ray", "ray", Ray), ("submitit", "slurm", Slurm))
    for field in fields(group)
}
"""Of where the runs of a study are made: a folder keeps these while others go on with it."""
