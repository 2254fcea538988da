"""Experiments, and what their scripts define."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "experiments"


def table_of(experiment: str) -> dict[str, Any]:
    """What its table.py defines, which imports the plan beside it by a name that other experiments have too."""
    sys.modules.pop("runs", None)
    return runpy.run_path(str(ROOT / experiment / "table.py"))
