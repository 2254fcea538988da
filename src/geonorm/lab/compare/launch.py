"""Where the runs of a comparison are executed: processes of this machine, tasks of a Ray cluster, a SLURM array.

A team runs configs and hands back their summaries; all teams leave the same directory, and none repeats what is
finished:

    DIR/configs/NAME.yaml  DIR/configs/NAME.log  DIR/runs/NAME/
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ..config import CompareConfig
from .team import Submitted, Team, outcome

__all__ = ["Submitted", "Team", "outcome", "team"]

KINDS = {"local": ("local", "Local"), "ray": ("on_ray", "OnRay"), "slurm": ("slurm", "OnSlurm")}


def team(out: Path, config: CompareConfig, say: Callable[[str], None], live: bool) -> Team:
    """The team of `config.launcher`. ConfigError if what it needs is not here; nothing is written yet."""
    module, name = KINDS[config.launcher]
    made: Team = getattr(import_module(f".{module}", __package__), name)(out, config, say, live)
    return made
