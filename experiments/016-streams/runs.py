"""Which runs experiment 016 wants (experiments/programme.py trains them)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, settings
from rates import extend, read_losses

from geonorm.lab.compare.compare import slug

COMMON = settings(
    model__width=64, model__hidden=172, data="books", batch_size=4, steps=4000,
    evaluation__every=800, evaluation__whole="true", evaluation__average=0.1, evaluation__trace_tokens=2048,
    checkpoint__keep=1, runtime__tensorboard="false",
)  # fmt: skip
SPHERE = ("geonorm", "geonorm(update=unit)", "nag", "ngpt")
"""Those that are crossed with output matrices that start at 0: some divide by the length of the update."""
STREAMS = ("lambdas", "gpas", "mhc", "mhc(mix=identity)", "attnres(blocks=4)", "prores(steps=100)")
PRORES = "prores(geonorm, steps=100)"
CELLS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "plain": ({"preset": "nano"}, ("pre", "pre(entry=embedding)", *SPHERE, *STREAMS, PRORES)),
    "zero": ({"preset": "nano", "model__init": "zero"}, ("pre", *SPHERE)),
    "modern": (
        {"preset": "modern", "model__hidden": 256},
        ("lambdas", "pre", "geonorm", "geonorm(update=unit)", PRORES),
    ),
    "neox": (
        {"preset": "nano", "model__init": "neox"},
        ("pre(entry=embedding)", "geonorm(entry=embedding)", "geonorm(entry=embedding, update=unit)"),
    ),
}
"""Settings of a regime, and its rows; the first row is what the others are compared with."""
RATES = (6e-3, 3e-3, 1.2e-2)
SEEDS = 3


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}

    def add(cell: str, scheme: str, rate: float, seed: int = 0) -> str:
        start = f"{cell}-{slug(scheme)}-lr"
        own = settings(**CELLS[cell][0], scheme=scheme, lr=f"{rate:g}", seed=seed)
        given = {word for word in own if word.startswith("--")}
        pairs = zip(COMMON[::2], COMMON[1::2], strict=True)
        grid[f"{start}{rate:g}-seed{seed}"] = [w for pair in pairs if pair[0] not in given for w in pair] + own
        return start

    rows = [(cell, scheme) for cell, (_, schemes) in CELLS.items() for scheme in schemes]
    losses = {}
    for rate in RATES:
        for cell, scheme in rows:
            start = add(cell, scheme, rate)
            losses[cell, scheme] = read_losses([run for name, run in known.items() if name.startswith(start)])
    best = {}
    for row in rows:  # octaves until the best is interior
        rates = extend(losses[row], RATES)
        for rate in rates:
            add(*row, rate)
        if set(rates) <= set(losses[row]):
            best[row] = min(rates, key=losses[row].__getitem__)
    for seed in range(1, SEEDS):
        for row, rate in best.items():
            add(*row, rate, seed)
    return grid
