"""Which runs experiment 028 wants (experiments/programme.py trains them)."""

from math import sqrt

from programme import Grid, Summaries, change, load_definitions, settings
from rates import tidy, tune_multiplier, tune_then_repeat

from geonorm.lab.runs.folder import slug

OF_022 = load_definitions("022-embedding-rate")
RECIPE = change(OF_022["COMMON"], data="runs/latex-by-work")
"""That of 022 on LaTeX, split by work (experiments/009-tokens/works.py)."""
APART = load_definitions("026-larger")["ARMS"]
SHARED = {"pre(entry=embedding)": (5.23e-3, 1), "geonorm(entry=embedding)": (1.48e-2, 1)}
"""The best rate of the matrices in 022, and the embedding's over it: its own, and one rate for all."""


def row_of(scheme: str, embedding: float) -> tuple[str, list[str]]:
    return f"{slug(scheme)}-e{embedding:g}", [*RECIPE, *settings(scheme=scheme, optim__rates=f"embed={embedding:g}")]


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}
    for scheme, (rate, embedding) in [*APART.items(), *SHARED.items()]:
        start = [tidy(rate * sqrt(2) ** half) for half in (0, -1, 1)]
        grid |= tune_then_repeat(known, dict([row_of(scheme, embedding)]), start, OF_022["SEEDS"])
    for scheme, (_, embedding) in APART.items():  # added
        rows = {m: row_of(scheme, m) for m in (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)}
        grid |= tune_multiplier(known, rows, embedding, (embedding / 4, embedding, embedding * 4), OF_022["SEEDS"])
    return grid
