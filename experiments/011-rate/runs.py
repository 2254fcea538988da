"""Which runs experiment 011 wants (experiments/programme.py trains them)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, settings
from rates import read_losses, tidy

from geonorm.lab.compare.compare import slug

COMMON = settings(
    preset="nano", data="books", batch_size=4, steps=2000, evaluation__every=2000, evaluation__whole="false",
    evaluation__tokens=65536, evaluation__trace_tokens=2048, checkpoint__keep=1, runtime__compile="true",
    runtime__tensorboard="false",
)  # fmt: skip
"""1.02M tokens; 65,536 held-out tokens spread over the five books, for 200 runs are to be told apart by tenths."""
WARMUP = {"warm": 0.1, "cold": 0.0}
"""Share of the steps in which the rate rises."""
RATES = tuple(tidy(5e-4 * 2**octave) for octave in range(8))
"""Two decades."""
SCHEMES = ("pre", "geonorm", "post", "deepnorm", "pre(entry=embedding)", "geonorm(entry=embedding)")
WIDTHS = {32: 86, 64: 172, 128: 344}
"""Width of the stream, and that of the MLP; heads of 16."""
WIDE, BEYOND = SCHEMES[:4], (1, 10, 30)
"""At every width: multiples of the scheme's best rate at width 64."""
SEEDS = 2


def plan(known: Summaries) -> Grid:
    """Every rate with and without warm-up, then what grows with the width far above the best rate, then a seed more."""
    grid: dict[str, list[str]] = {}

    def add(scheme: str, warmup: str, rate: float, seed: int = 0, width: int = 64) -> None:
        shape = settings(model__width=width, model__hidden=WIDTHS[width], model__heads=width // 16)
        own = settings(scheme=scheme, optim__warmup=WARMUP[warmup], lr=f"{rate:g}", seed=seed)
        grid[f"{width}-{warmup}-{slug(scheme)}-lr{rate:g}-seed{seed}"] = [*COMMON, *shape, *own]

    def losses(scheme: str) -> dict[float, float]:
        return dict(read_losses([run for name, run in known.items() if name.startswith(f"64-warm-{slug(scheme)}-lr")]))

    def ask_all(seed: int) -> None:
        for warmup in WARMUP:
            for rate in RATES:
                for scheme in SCHEMES:
                    add(scheme, warmup, rate, seed)

    ask_all(0)
    for scheme in WIDE:
        found = losses(scheme)
        if set(RATES) <= set(found):
            best = min(RATES, key=found.__getitem__)
            for width in WIDTHS:
                for times in BEYOND:
                    add(scheme, "warm", tidy(best * times), width=width)
    for seed in range(1, SEEDS):
        ask_all(seed)
    return grid
