"""Which runs experiment 021 wants (experiments/programme.py trains them)."""

from collections.abc import Sequence
from itertools import product
from math import sqrt

from programme import Grid, Summaries, settings
from rates import Losses, add_runs, extend, name_run, read_losses, read_row, tidy

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", data="books", model__width=64, model__hidden=172, batch_size=4, steps=2000, evaluation__every=2000,
    evaluation__whole="false", evaluation__tokens=262144, evaluation__trace_tokens=2048, optim__warmup_steps=200,
)  # fmt: skip
"""1.02M tokens, 3 for each parameter: what 009 at its shortest budget and 011 with warm-up have in common."""
SCHEDULES = {"cosine": "cosine", "constant": "wsd"}
RAW, SPHERE = ("pre(entry=embedding)", "geonorm(entry=embedding)"), ("pre", "geonorm")
SEEDS = {RAW: range(10, 15), SPHERE: range(10, 13)}
"""Fresh ones: 009 and 011 have 0 to 2."""
RATES = tuple(tidy(6e-3 * sqrt(2) ** half) for half in range(4))
"""Factors of √2: a factor of 2 may hide some hundredths."""
EXTENSIONS = 3


def find_shared(known: Summaries, row: str, first: Losses, seeds: Sequence[int]) -> list[float]:
    """Rates for all seeds: the best by the first one and its two neighbours, none while rates are missing; then half an
    rate beyond the end at which the best by all seeds stands."""
    rates = sorted(extend(first, RATES, EXTENSIONS, sqrt(2)))
    if not set(rates) <= set(first):
        return []
    place = rates.index(min(rates, key=first.__getitem__))
    shared = rates[max(place - 1, 0) : place + 2]
    named = {rate: [name_run(row, rate, seed) for seed in seeds] for rate in first}
    ends = [known[name] for names in named.values() if known.keys() >= set(names) for name in names]
    return extend(read_losses(ends), shared, EXTENSIONS, sqrt(2))


def plan(known: Summaries) -> Grid:
    """The raw entry first: each arm at all rates with the first seed, then with all of them about the best."""
    grid: dict[str, list[str]] = {}
    for schemes, seeds in SEEDS.items():
        rows = {f"{name}-{slug(scheme)}": [*COMMON, *settings(scheme=scheme, optim__schedule=schedule)]
                for (name, schedule), scheme in product(SCHEDULES.items(), schemes)}  # fmt: skip
        first = {row: read_row(known, row, seeds[0]) for row in rows}
        for row, losses in first.items():
            add_runs(grid, row, rows[row], extend(losses, RATES, EXTENSIONS, sqrt(2)), seeds[:1])
        for row, losses in first.items():
            add_runs(grid, row, rows[row], find_shared(known, row, losses, seeds), seeds)
    return grid
