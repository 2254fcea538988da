"""Which runs experiment 009 wants (experiments/programme.py trains them)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from programme import EQUAL_SHARES, Grid, Summaries, settings
from rates import extend, name_run, plan_rows, read_row

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", model__width=64, model__hidden=172, optim__schedule="wsd", optim__warmup_steps=200,
    evaluation__whole="false", evaluation__tokens=262144, evaluation__trace_tokens=2048,
)  # fmt: skip
"""One rate until the last fifth of the steps, so that all budgets of a rate and a seed share a prefix."""
BOOKS = settings(data="books", batch_size=4)
LATEX = settings(data="runs/latex-by-work", batch_size=4)
STEPS = {1: 2000, 2: 4000, 4: 8000, 8: 16000, 16: 32000}
"""Steps of 512 tokens, by million tokens: 3 to 50 for each of 0.33M parameters."""
SMOOTH = "geonorm(retraction=0.5, max_angle=pi)"
EQUAL = f"geonorm(update=unit, {EQUAL_SHARES})"
FOUR = ("pre(entry=embedding)", "geonorm(entry=embedding)", "pre", "geonorm")
OTHERS = (EQUAL, SMOOTH, "deepnorm", "keel", "peri", "lns")
RATES = (3e-3, 1.5e-3, 6e-3)
SEEDS = 2
LENGTHS = {256: 2, 512: 1}
"""Sequences a step, by their length: 512 tokens, as in the other runs."""


def plan_budgets(
    known: Summaries, rows: Mapping[str, Sequence[str]], budgets: Sequence[int], seeds: int = SEEDS, tuned: int = 16
) -> dict[str, list[str]]:
    """Every row at every rate and budget, each budget a branch of the next shorter one; factors of 2 at a budget whose
    best is at an end; then, at every rate that is best at some budget, all budgets with more seeds. Budgets of more
    than `tuned` million tokens are trained at the rate that is best at that, by every seed."""
    grid: dict[str, list[str]] = {}

    def add(row: str, rate: float, budget: int, seed: int = 0) -> None:
        steps = STEPS[budget]
        names = {length: name_run(f"{row}-{length}M", rate, seed) for length in budgets}
        words = [*rows[row], *settings(steps=steps, evaluation__every=steps, lr=f"{rate:g}", seed=seed)]
        shorter = [name for length, name in names.items() if length < budget and name in grid]
        grid[names[budget]] = [*words, *(settings(branch=shorter[-1]) if shorter else ())]

    for rate in RATES:
        for row in rows:
            for budget in budgets:
                if budget <= tuned:
                    add(row, rate, budget)
    best: dict[str, dict[int, float]] = {row: {} for row in rows}
    for row, found in best.items():
        for before, budget in pairwise((0, *budgets)):
            if budget > tuned:
                if before in found:
                    found[budget] = found[before]
                    add(row, found[budget], budget)
                continue
            losses = read_row(known, f"{row}-{budget}M", 0)  # more seeds, which few rates have, would move the best
            rates = extend(losses, RATES)
            for rate in rates:
                add(row, rate, budget)
            if set(rates) <= set(losses):
                found[budget] = min(losses, key=losses.__getitem__)
    for seed in range(1, seeds):
        for row, found in best.items():
            for rate in sorted(set(found.values())):
                for budget in budgets:
                    if budget <= tuned or rate == found.get(budget):
                        add(row, rate, budget, seed)
    return grid


def plan(known: Summaries) -> Grid:
    """Both entries of Pre-Norm and GeoNorm first, then the other schemes, then LaTeX, then longer sequences."""

    def rows(arm: str, words: Sequence[str], schemes: Sequence[str]) -> dict[str, list[str]]:
        return {f"{arm}-{slug(scheme)}": [*COMMON, *words, *settings(scheme=scheme)] for scheme in schemes}

    budgets = tuple(STEPS)
    grid: dict[str, list[str]] = {}
    for schemes, seeds in ((FOUR[:2], 3), (FOUR[2:], 3), (OTHERS, 1)):
        grid |= plan_budgets(known, rows("books", BOOKS, schemes), budgets, seeds, tuned=8)
    grid |= plan_budgets(known, rows("latex", LATEX, FOUR), budgets[:3], seeds=3)
    for length, batch in LENGTHS.items():
        own = settings(
            data="books", model__context=length, batch_size=batch, steps=STEPS[4], evaluation__every=STEPS[4]
        )
        grid |= plan_rows(known, rows(f"length{length}", own, FOUR[:2]), RATES, SEEDS)
    return grid
