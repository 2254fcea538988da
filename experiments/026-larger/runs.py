"""Which runs experiment 026 wants (experiments/programme.py trains them)."""

from math import sqrt

from programme import Grid, Summaries, change, load_definitions, settings
from rates import tidy, tune_then_repeat

from geonorm.lab.runs.folder import slug

OF_022 = load_definitions("022-embedding-rate")
RECIPE = change(
    OF_022["COMMON"], model__width=96, model__layers=6, model__heads=6, model__hidden=258, steps=33800,
    evaluation__every=8450,
)  # fmt: skip
"""That of 022 at the largest size of 010: 0.86M parameters, 20 tokens for each."""
ARMS = {
    "pre(entry=embedding)": (3.7e-3, 16), "geonorm(entry=embedding)": (2.61e-3, 16), "peri": (5.23e-3, 16),
    f"geonorm(entry=embedding, {OF_022['CANDIDATE']})": (5.22e-3, 4),
}  # fmt: skip
"""The best rate of the matrices in 022, and the embedding's over it."""
WIDTH = 64 / 96
"""Between the two sizes the matrices' rate goes as 1/width; the embedding's stays."""


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}
    for scheme, (rate, embedding) in ARMS.items():
        row = [*RECIPE, *settings(scheme=scheme, optim__rates=(f"embed={embedding / WIDTH:g}",))]
        start = [tidy(rate * WIDTH * sqrt(2) ** half) for half in (0, -1, 1)]
        grid |= tune_then_repeat(known, {slug(scheme): row}, start, range(20, 23))
    return grid
