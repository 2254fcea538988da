"""Experiments, and what their scripts define."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "experiments"
Plan = Callable[[Mapping[str, Any]], Mapping[str, Sequence[str]]]


def table_of(experiment: str) -> dict[str, Any]:
    """What its table.py defines, which imports the plan beside it by a name that other experiments have too."""
    sys.modules.pop("runs", None)
    return runpy.run_path(str(ROOT / experiment / "table.py"))


def plan_of(name: str) -> Plan:
    plan: Plan = runpy.run_path(str(ROOT / name / "runs.py"))["plan"]
    return plan
