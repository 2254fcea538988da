"""Which runs experiment 028 wants (experiments/programme.py trains them)."""

from math import sqrt

from programme import Grid, Summaries, change, load_definitions, settings
from rates import tidy, tune_then_repeat

from geonorm.lab.runs.folder import slug

RECIPE = change(load_definitions("022-embedding-rate")["COMMON"], data="runs/latex-by-work")
"""That of 022 on LaTeX, split by work (experiments/009-tokens/works.py)."""
APART = load_definitions("026-larger")["ARMS"]
SHARED = {"pre(entry=embedding)": (5.23e-3, 1), "geonorm(entry=embedding)": (1.48e-2, 1)}
"""The best rate of the matrices in 022, and the embedding's over it: its own, and one rate for all."""


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}
    for scheme, (rate, embedding) in [*APART.items(), *SHARED.items()]:
        row = {f"{slug(scheme)}-e{embedding}": [*RECIPE, *settings(scheme=scheme, optim__rates=f"embed={embedding}")]}
        grid |= tune_then_repeat(known, row, [tidy(rate * sqrt(2) ** half) for half in (0, -1, 1)], range(20, 25))
    return grid
