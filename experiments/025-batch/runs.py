"""Which runs experiment 025 wants (experiments/programme.py trains them)."""

from __future__ import annotations

from programme import Grid, Summaries, change, load_definitions, settings
from rates import tune_then_repeat

from geonorm.lab.runs.folder import slug

OF_022 = load_definitions("022-embedding-rate")
RECIPE = change(OF_022["COMMON"], batch_size=32, steps=1612, optim__warmup_steps=25, evaluation__every=403)
"""That of 022 with 32 sequences a step for 4, and as many tokens in all."""
ARMS = ("pre(entry=embedding)", "geonorm(entry=embedding)", "pre", "peri")


def plan(known: Summaries) -> Grid:
    rows = {slug(scheme): [*RECIPE, *settings(scheme=scheme, optim__rates=("embed=16",))] for scheme in ARMS}
    return tune_then_repeat(known, rows, (5.23e-3, 7.4e-3, 1.05e-2), OF_022["SEEDS"])
