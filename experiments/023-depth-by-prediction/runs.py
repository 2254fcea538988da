"""Which runs experiment 023 wants (experiments/programme.py trains them)."""

import sys
from itertools import product
from math import pi, sqrt
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, read_kept as read_kept, settings
from rates import extend, name_run, read_row as read_row

from geonorm.lab.config import TUNING_SEED as TUNING_SEED

RECIPE = settings(
    preset="nano", model__heads=4, model__mlp="gelu", data="books", batch_size=4, steps=2000, optim__floor=0,
    evaluation__every=1000, evaluation__whole="false", evaluation__tokens=65536, evaluation__trace_tokens=2048,
)  # fmt: skip
"""That of 012, with a schedule that ends at 0."""
SIZES = {"4": (4, 64), "12": (12, 64), "36": (36, 64), "w32": (4, 32), "w128": (4, 128)}
"""Blocks and width; the second width came when depth was measured in part."""
OUTSIDE = 8e-3
"""The learning rate of embedding, head and gains, whatever that of the matrices inside the blocks is."""
START = {
    "4": (5.66e-3, 8e-3, 1.13e-2), "12": (4e-3, 5.66e-3, 8e-3), "36": (2.83e-3, 4e-3, 5.66e-3),
    "w32": (5.66e-3, 8e-3, 1.13e-2), "w128": (4e-3, 5.66e-3, 8e-3),
}  # fmt: skip
FACTOR, EXTENSIONS = sqrt(2), 7
SEEDS = range(20, 23)
"""Fresh ones: the tuning seed does not count."""


def unit_tangent(angle: float) -> str:
    """Every sub-layer turns every token by this angle."""
    return f"geonorm(update=unit, decay=constant, alpha={4 / pi * angle:.4f})"


ARMS = {
    "harmonic": lambda layers: "geonorm",
    "unit-1-over-L": lambda layers: unit_tangent(2 / layers),
    "unit-1-over-sqrt-L": lambda layers: unit_tangent(1 / sqrt(layers)),
    "norm_preserving": lambda layers: "norm_preserving",
    "peri": lambda layers: "peri",
    "muse": lambda layers: "muse",
}
"""Both unit tangents turn by the same angle at 4 blocks: of other widths only the first runs. `beam` is the function of
`peri`: no runs of its own."""
TURNS = dict(
    zip(ARMS, ((1.95, 1.77), (0.49, 1.85), (4.07, 1.85), (3.31, 1.83), (7.76, 1.84), (305, 1.78)), strict=True)
)
"""As registered: the turn of a step at 36 blocks over that at 4, and at width 128 over that at 32."""


def plan(known: Summaries) -> Grid:
    """Each arm is tuned at each size; then each has three fresh seeds at its best rate at each depth."""
    grid: dict[str, list[str]] = {}
    tuning = {name: run for name, run in known.items() if name.endswith(f"-seed{TUNING_SEED}")}
    best: dict[tuple[str, str], float] = {}

    def add(size: str, arm: str, rate: float, seed: int) -> None:
        layers, width = SIZES[size]
        roles = tuple(f"{role}={OUTSIDE / rate:.4g}" for role in ("embed", "head", "gain"))
        shape = settings(model__layers=layers, model__width=width, model__hidden=4 * width)
        own = settings(scheme=ARMS[arm](layers), lr=f"{rate:g}", optim__rates=roles, seed=seed)
        grid[name_run(f"{size}-{arm}", rate, seed)] = [*RECIPE, *shape, *own]

    for size, arm in product(SIZES, ARMS):
        if size.startswith("w") and arm == "unit-1-over-sqrt-L":
            continue
        losses = read_row(tuning, f"{size}-{arm}")
        wanted = extend(losses, START[size], EXTENSIONS, FACTOR)
        for rate in wanted:
            add(size, arm, rate, TUNING_SEED)
        if set(wanted) <= set(losses) and not size.startswith("w"):
            best[size, arm] = min(losses, key=losses.__getitem__)
    for (size, arm), rate in best.items():
        for seed in SEEDS:
            add(size, arm, rate, seed)
    return grid
