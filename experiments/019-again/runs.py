"""Which runs experiment 019 wants (experiments/programme.py trains them)."""

from programme import Grid, Summaries, settings
from rates import plan_rows

from geonorm.lab.runs.folder import slug

RECIPE = settings(
    preset="nano", data="books-small", batch_size=8, evaluation__whole="true", evaluation__trace_tokens=4096,
)  # fmt: skip
"""As in 001 and 003, but for the held-out text, which is the whole, book by book, and for compiling (the first 23 runs
were made without, which is rounding alone)."""
PLACEMENTS = (
    "pre", "geonorm", "pre(entry=embedding)", "geonorm(entry=embedding)", "deepnorm", "peri", "post", "lns", "sqrt",
    "mix", "ngpt", "olmo2",
)  # fmt: skip
"""The rows of 001, and the entry that it lacks."""
QUOTED = (*PLACEMENTS[:5], "keel")
"""Of 003, what anyone would quote."""
LENGTHS = {"1.0M": (980, PLACEMENTS, (4.2e-3, 3e-3, 6e-3)), "0.4M": (400, QUOTED, (6e-3, 3e-3, 1.2e-2))}
"""By tokens: steps, schemes, rates."""
SEEDS = 3


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}
    for tokens, (steps, schemes, rates) in LENGTHS.items():
        own = settings(steps=steps, evaluation__every=steps // 4)
        rows = {f"{tokens}-{slug(scheme)}": [*RECIPE, *own, *settings(scheme=scheme)] for scheme in schemes}
        grid |= plan_rows(known, rows, rates, SEEDS)
    return grid
