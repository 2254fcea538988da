"""Which runs experiment 014 wants (experiments/programme.py trains them)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, settings
from rates import extend, read_losses

from geonorm.lab.compare.compare import slug

VISION = settings(
    objective="classify", preset="nano-vit", data="vision", model__layers=36, model__width=48, model__hidden=192,
    model__patch=8, batch_size=32, steps=1000, optim__weight_decay=0.05,
    evaluation__every=250, evaluation__whole="true", evaluation__trace_tokens=1024,
    checkpoint__keep=1, runtime__tensorboard="false",
)  # fmt: skip
"""36 narrow layers on CIFAR-10, 17 tokens an image, 32 images a step."""
FAMILIES = {"vision": VISION}
SMOOTH = "geonorm(retraction=0.5, max_angle=pi)"
SCHEMES = ("pre", "geonorm", "post", "peri", "deepnorm", SMOOTH)
"""The paper's rule, and what "The regime of GeoNorm" found best, beside those that it is compared with."""
RATES = (2e-3, 1e-3, 4e-3)
SEEDS = 3


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}

    def add(family: str, scheme: str, rate: float, seed: int = 0) -> str:
        start = f"{family}-{slug(scheme)}-lr"
        own = settings(scheme=scheme, lr=f"{rate:g}", seed=seed)
        grid[f"{start}{rate:g}-seed{seed}"] = [*FAMILIES[family], *own]
        return start

    rows = [(family, scheme) for family in FAMILIES for scheme in SCHEMES]
    losses = {}
    for rate in RATES:
        for row in rows:
            start = add(*row, rate)
            losses[row] = read_losses([run for name, run in known.items() if name.startswith(start)])
    best = {}
    for row in rows:  # octaves until the best is interior: beyond it, the largest rate that is stable
        rates = extend(losses[row], RATES)
        for rate in rates:
            add(*row, rate)
        if set(rates) <= set(losses[row]):
            best[row] = min(rates, key=losses[row].__getitem__)
    for seed in range(1, SEEDS):
        for row, rate in best.items():
            add(*row, rate, seed)
    return grid
