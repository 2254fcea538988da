"""Experiments, and what their scripts define."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geonorm.lab.runs.records import Summary

ROOT = Path(__file__).parents[2] / "experiments"
Plan = Callable[[Mapping[str, Summary]], Mapping[str, Sequence[str]]]


def summary(**values: Any) -> Summary:
    """A finished run with these values."""
    return Summary.read({"status": "finished", "scheme": "", **values})


def plan_of(name: str) -> Plan:
    plan: Plan = runpy.run_path(str(ROOT / name / "runs.py"))["plan"]
    return plan
