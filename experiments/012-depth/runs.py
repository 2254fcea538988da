"""Which runs experiment 012 wants (experiments/programme.py trains them)."""

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

from programme import EQUAL_SHARES, Grid, Summaries, settings
from rates import name_run, plan_rows

from geonorm.lab.runs.folder import slug

RECIPE = settings(
    preset="nano", model__width=64, model__hidden=256, model__mlp="gelu", data="books", batch_size=4, steps=2000,
    evaluation__every=500, evaluation__whole="false", evaluation__tokens=65536, evaluation__trace_tokens=2048,
    checkpoint__every=500,
)  # fmt: skip
"""1.02M tokens at one width; 65,536 held-out tokens spread over the five books, for the whole of them would take a
third as long as the training at 36 blocks. The weights of every evaluation stay: the use of blocks is probed there."""
LAYERS = (36, 12, 4)
EQUAL = f"geonorm(update=unit, {EQUAL_SHARES})"
FIRST = ("pre", "geonorm")
DECAYS = ("geonorm(decay=sqrt)", "geonorm(decay=0.75)")
OTHERS = ("lns", "keel", "deepnorm", "pre(entry=embedding)", "geonorm(entry=embedding)")
RATES = (4e-3, 2e-3, 8e-3)
SEEDS = 2
BEST = 8e-3
"""Of the first group, at every depth, with seed 0."""
WARMED = 10
"""Optimizer steps for each block until it makes whole ones: the last of 36 from step 360 on."""


def equal_angles(layers: int) -> str:
    """GeoNorm with one angle for all blocks, whose sum of squares is that of decay=sqrt, to a thousandth."""
    return f"geonorm(decay=constant, alpha={sqrt(sum(1 / t for t in range(1, layers + 1)) / layers):.3f})"


def even_angles(layers: int) -> str:
    """A unit tangent that turns by 1/√L in every sub-layer: a sum of squares of 2, as harmonic decay, at any depth."""
    return f"geonorm(update=unit, decay=constant, alpha={4 / pi / sqrt(layers):.4f})"


def warmed_up(layers: int) -> str:
    """The same, whose steps grow from 0, early blocks first."""
    return f"prores({even_angles(layers)}, steps={WARMED})"


def plan(known: Summaries) -> Grid:
    """Every group whole, its rates and seeds, before the next; equal shares, which learn nothing at 36 blocks, once. Of
    the first group three seeds with 36 blocks, and there too what warms its steps up."""

    def rows_of(*schemes: str | Callable[[int], str], depths: tuple[int, ...] = LAYERS) -> dict[str, list[str]]:
        pairs = [
            (depth, scheme if isinstance(scheme, str) else scheme(depth)) for depth in depths for scheme in schemes
        ]
        return {f"{at}-{slug(scheme)}": [*RECIPE, *settings(model__layers=at, scheme=scheme)] for at, scheme in pairs}

    grid: dict[str, list[str]] = {}

    def add(rate: float, seed: int, *rows: str | Callable[[int], str], **depths: Any) -> None:
        for row, words in rows_of(*rows, **depths).items():
            grid[name_run(row, rate, seed)] = [*words, *settings(lr=f"{rate:g}", seed=seed)]

    warmed = [f"prores({scheme}, steps={WARMED})" for scheme in FIRST[::-1]]
    for seed in range(3):
        add(BEST, seed, *FIRST, even_angles, warmed_up, *warmed, depths=LAYERS[:1])
    grid |= plan_rows(known, rows_of(*FIRST, even_angles), RATES, SEEDS)
    add(RATES[0], 0, EQUAL)
    grid |= plan_rows(known, rows_of(*DECAYS, equal_angles), RATES, SEEDS)
    return grid | plan_rows(known, rows_of(*OTHERS), RATES, 1)
