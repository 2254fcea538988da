"""Which runs experiment 011 wants (experiments/programme.py trains them)."""

from itertools import product

from programme import Grid, Summaries, settings
from rates import add_runs, read_row, tidy

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", data="books", batch_size=4, steps=2000, evaluation__every=2000, evaluation__whole="false",
    evaluation__tokens=65536, evaluation__trace_tokens=2048,
)  # fmt: skip
"""1.02M tokens; 65,536 held-out tokens spread over the five books, for 200 runs are to be told apart by tenths."""
WARMUP = {"warm": 0.1, "cold": 0.0}
"""Share of the steps in which the rate rises."""
RATES = tuple(tidy(5e-4 * 2**double) for double in range(8))
"""Two decades."""
SCHEMES = ("pre", "geonorm", "post", "deepnorm", "pre(entry=embedding)", "geonorm(entry=embedding)")
WIDTHS = {32: 86, 64: 172, 128: 344}
"""Width of the stream, and that of the MLP; heads of 16."""
WIDE, BEYOND = SCHEMES[:4], (1, 10, 30)
"""At every width: multiples of the scheme's best rate at width 64."""
SEEDS = 3


def plan(known: Summaries) -> Grid:
    """Every rate with and without warm-up, then what grows with the width far above the best rate, then more seeds at
    the best rates."""
    grid: dict[str, list[str]] = {}

    def add(scheme: str, warmup: str, rate: float, seed: int = 0, width: int = 64) -> None:
        shape = settings(model__width=width, model__hidden=WIDTHS[width], model__heads=width // 16)
        words = [*COMMON, *shape, *settings(scheme=scheme, optim__warmup=WARMUP[warmup])]
        add_runs(grid, f"{width}-{warmup}-{slug(scheme)}", words, [rate], [seed])

    for warmup in WARMUP:
        for rate in RATES:
            for scheme in SCHEMES:
                add(scheme, warmup, rate)
    best = {}
    for warmup, scheme in product(WARMUP, SCHEMES):
        losses = read_row(known, f"64-{warmup}-{slug(scheme)}", 0)
        if set(RATES) <= set(losses):
            best[warmup, scheme] = min(RATES, key=losses.__getitem__)
    for scheme in WIDE:
        if found_best := best.get(("warm", scheme)):
            for width, times in product(WIDTHS, BEYOND):
                add(scheme, "warm", tidy(found_best * times), width=width)
    for seed in range(1, SEEDS):
        for (warmup, scheme), rate in best.items():
            add(scheme, warmup, rate, seed)
    return grid
