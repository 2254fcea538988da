"""Which runs experiment 025 wants (experiments/programme.py trains them)."""

from __future__ import annotations

import runpy
from math import sqrt
from pathlib import Path

from programme import Grid, Summaries, settings
from rates import add_runs, extend, read_row

from geonorm.lab.config import TUNING_SEED
from geonorm.lab.runs.folder import slug

OF_022 = runpy.run_path(str(Path(__file__).parents[1] / "022-embedding-rate" / "runs.py"))
LARGER = {"--batch_size": "32", "--steps": "1612", "--optim.warmup_steps": "25", "--evaluation.every": "403"}
RECIPE = [LARGER.get(key, word) for key, word in zip(["", *OF_022["COMMON"]], OF_022["COMMON"], strict=False)]
"""That of 022 with 32 sequences a step for 4, and as many tokens in all."""
ARMS = ("pre(entry=embedding)", "geonorm(entry=embedding)", "pre", "peri")
RATES = (5.23e-3, 7.4e-3, 1.05e-2)
EXTENSIONS = 6


def plan(known: Summaries) -> Grid:
    """Each arm by factors of √2 until its best rate is interior; then five fresh seeds there."""
    grid: dict[str, list[str]] = {}
    for scheme in ARMS:
        row, words = slug(scheme), [*RECIPE, *settings(scheme=scheme, optim__rates=("embed=16",))]
        losses = read_row(known, row, TUNING_SEED)
        rates = extend(losses, RATES, EXTENSIONS, sqrt(2))
        add_runs(grid, row, words, rates, [TUNING_SEED])
        if set(rates) <= set(losses):
            add_runs(grid, row, words, [min(losses, key=losses.__getitem__)], OF_022["SEEDS"])
    return grid
