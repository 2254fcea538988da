"""Which runs experiment 013 wants (experiments/programme.py trains them): those that choose the candidate, then, once
it stands here by name, those that try it."""

from collections.abc import Iterable

from programme import EQUAL_SHARES, Grid, Summaries, settings
from rates import add_runs, find_best, plan_rows

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", model__width=64, model__hidden=172, batch_size=4, evaluation__every=2000, evaluation__whole="false",
    evaluation__tokens=262144, evaluation__average=0.1, evaluation__trace_tokens=2048,
)  # fmt: skip
BOOKS = [*COMMON, *settings(data="books", steps=4000)]
"""The regime `plain` of 016, of which it takes the rows KNOWN."""
KNOWN = ("pre", "pre(entry=embedding)", "geonorm", "geonorm(update=unit)", "nag")
VARIANTS = {
    "pi/4 / √t": "decay=sqrt",
    "pi/4 / t^0.75": "decay=0.75",
    "pi/8 / t": "alpha=0.5",
    "1 / t": "max_angle=pi",
    "2 / t, at most pi/2": "alpha=2, max_angle=pi/2",
    "learned from pi/4 / t": "alpha=pi/4, max_angle=pi, learn=step",
    "learned from pi/4 / √t": "alpha=pi/4, max_angle=pi, decay=sqrt, learn=step",
    "pi/4 / √n": "decay=sqrt, index=sublayer",
    "1 / √t": "decay=sqrt, max_angle=pi",
    "pi/4": "decay=constant",
    "pi/8": "alpha=0.5, decay=constant",
    "0.24 √t": "alpha=0.3, decay=-0.5",
    "equal shares: atan(1/√n)": EQUAL_SHARES,
}
"""Of GeoNorm with a unit tangent, by the angle of block t or sub-layer n: alpha decay min(1, max_angle). Learned steps
have room above: at the clamp a step has no gradient. By the last angle the embedding and all outputs have equal
shares of the state."""
LEFT = ("pi/8 / t", "2 / t, at most pi/2", "learned from pi/4 / t", "learned from pi/4 / √t", "pi/4")
"""More than 0.04 above the lowest at the first rate, and not trained further."""
RIVALS = ("peri", "deepnorm", "keel", "lns")
RATES = (6e-3, 3e-3, 1.2e-2)
SEEDS = 2
CANDIDATE = "geonorm(update=unit, decay=sqrt, index=sublayer)"
"""What selection found: pi/4 / √n in sub-layer n."""
SLOWER = 1.012
"""The candidate's step time over that of Pre-Norm (cost.json)."""
LATEX = [*COMMON, *settings(data="runs/latex-by-work")]
STEPS = 8000
AGAINST = ("geonorm", "pre", "pre(entry=embedding)", "peri", "deepnorm", "keel")
FRESH = range(10, 20)
"""Seeds that nothing was chosen by."""


def with_fields(variant: str) -> str:
    return f"geonorm(update=unit, {variant})"


def plan(known: Summaries) -> Grid:
    grid: dict[str, list[str]] = {}
    for row, words in select(with_fields(VARIANTS[name]) for name in LEFT).items():
        add_runs(grid, row, words, RATES[:1])
    tried = select(with_fields(fields) for name, fields in VARIANTS.items() if name not in LEFT)
    grid |= plan_rows(known, tried, RATES, SEEDS) | plan_rows(known, select(RIVALS), RATES, 1)
    return grid | plan_confirmation(known)


def select(schemes: Iterable[str]) -> dict[str, list[str]]:
    return {f"select-{slug(scheme)}": [*BOOKS, *settings(scheme=scheme)] for scheme in schemes}


def plan_confirmation(known: Summaries) -> dict[str, list[str]]:
    """Rates by factors of 2 with seed 0, then the fresh seeds at the best; those of the candidate also with as many
    steps as take the time of Pre-Norm's."""
    schemes = {f"confirm-{slug(scheme)}": settings(scheme=scheme) for scheme in (CANDIDATE, *AGAINST)}
    rows = {row: [*LATEX, *settings(steps=STEPS), *scheme] for row, scheme in schemes.items()}
    first = {name: run for name, run in known.items() if name.endswith("-seed0")}
    grid = plan_rows(first, rows, RATES, 1)
    best = find_best(first, rows, RATES)
    own = next(iter(rows))
    if own in best:
        rows[f"equal-{own}"] = [*LATEX, *settings(steps=round(STEPS / SLOWER)), *schemes[own]]
        best[f"equal-{own}"] = best[own]
    for seed in FRESH:
        for row, rate in best.items():
            add_runs(grid, row, rows[row], [rate], [seed])
    return grid
