"""Which runs experiment 023 wants (experiments/programme.py trains them)."""

from __future__ import annotations

import sys
from math import pi, sqrt
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, read_kept as read_kept, settings
from rates import extend, name_run, read_row

from geonorm.lab.config import TUNING_SEED

RECIPE = settings(
    preset="nano", model__width=64, model__heads=4, model__hidden=256, model__mlp="gelu", data="books", batch_size=4,
    steps=2000, optim__floor=0, evaluation__every=1000, evaluation__whole="false", evaluation__tokens=65536,
    evaluation__trace_tokens=2048, checkpoint__keep=1, runtime__compile="true", runtime__tensorboard="false",
)  # fmt: skip
"""That of 012, with a schedule that ends at 0."""
LAYERS = (4, 12, 36)
OUTSIDE = 8e-3
"""The learning rate of embedding, head and gains, whatever that of the matrices inside the blocks is."""
START = {4: (5.66e-3, 8e-3, 1.13e-2), 12: (4e-3, 5.66e-3, 8e-3), 36: (2.83e-3, 4e-3, 5.66e-3)}
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
"""Both unit tangents turn by the same angle at 4 blocks. `beam` is the function of `peri`: no runs of its own."""
TURNS = dict(zip(ARMS, (1.95, 0.49, 4.07, 3.31, 7.76, 305), strict=True))
"""The turn of a step at 36 blocks over that at 4, as registered."""


def plan(known: Summaries) -> Grid:
    """Each arm is tuned at each depth; then each has three fresh seeds at its best rate."""
    grid: dict[str, list[str]] = {}
    tuning = {name: run for name, run in known.items() if name.endswith(f"-seed{TUNING_SEED}")}
    best: dict[tuple[int, str], float] = {}

    def add(layers: int, arm: str, rate: float, seed: int) -> None:
        roles = tuple(f"{role}={OUTSIDE / rate:.4g}" for role in ("embed", "head", "gain"))
        own = settings(scheme=ARMS[arm](layers), lr=f"{rate:g}", optim__rates=roles, seed=seed)
        grid[name_run(f"{layers}-{arm}", rate, seed)] = [*RECIPE, *settings(model__layers=layers), *own]

    for layers in LAYERS:
        for arm in ARMS:
            losses = read_row(tuning, f"{layers}-{arm}")
            wanted = extend(losses, START[layers], EXTENSIONS, FACTOR)
            for rate in wanted:
                add(layers, arm, rate, TUNING_SEED)
            if set(wanted) <= set(losses):
                best[layers, arm] = min(losses, key=losses.__getitem__)
    for (layers, arm), rate in best.items():
        for seed in SEEDS:
            add(layers, arm, rate, seed)
    return grid
