"""Experiments, and what their scripts define."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import geonorm
from geonorm.lab.runs.records import Summary

ROOT = Path(__file__).parents[2] / "experiments"
Plan = Callable[[Mapping[str, Summary]], Mapping[str, Sequence[str]]]


def summary(**values: Any) -> Summary:
    """A finished run with these values."""
    return Summary.read({"status": "finished", "scheme": "", **values})


def runs_on_record(experiment: str) -> list[Summary]:
    return [run.summary for run in geonorm.load(ROOT / experiment).runs]


def table_of(experiment: str) -> dict[str, Any]:
    """What its table.py defines, which imports the plan beside it by a name that other experiments have too."""
    sys.modules.pop("runs", None)
    return runpy.run_path(str(ROOT / experiment / "table.py"))


def plan_of(name: str) -> Plan:
    plan: Plan = runpy.run_path(str(ROOT / name / "runs.py"))["plan"]
    return plan
