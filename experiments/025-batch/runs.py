"""Which runs experiment 025 wants (experiments/programme.py trains them)."""

from collections.abc import Sequence
from math import sqrt

from programme import Grid, Summaries, change, load_definitions, settings
from rates import extend, read_row, tidy, tune_then_repeat

from geonorm.lab.config import TUNING_SEED
from geonorm.lab.runs.folder import slug

OF_022 = load_definitions("022-embedding-rate")
RECIPE = change(OF_022["COMMON"], batch_size=32, steps=1612, optim__warmup_steps=25, evaluation__every=403)
"""That of 022 with 32 sequences a step for 4, and as many tokens in all."""
ARMS = ("pre(entry=embedding)", "geonorm(entry=embedding)", "pre", "peri")
MAIN = 16.0  # the multiplier of the embedding's rate that every arm is tuned at


def words(scheme: str, embedding: float) -> list[str]:
    return [*RECIPE, *settings(scheme=scheme, optim__rates=(f"embed={embedding:g}",))]


def plan(known: Summaries) -> Grid:
    rows = {slug(scheme): words(scheme, MAIN) for scheme in ARMS}
    grid = dict[str, Sequence[str]](tune_then_repeat(known, rows, (5.23e-3, 7.4e-3, 1.05e-2), OF_022["SEEDS"]))
    grid |= tune_then_repeat(known, {"pre-e1": words("pre", 1)}, (7.4e-3, 1.05e-2, 1.48e-2), OF_022["SEEDS"])
    for scheme in (*ARMS[:2], "peri"):
        grid |= tune_multiplier(known, scheme)
    return grid


def tune_multiplier(known: Summaries, scheme: str) -> Grid:
    """1, 4 and 64 times the matrices' rate, each tuned about the best such rate at 16; a factor of 4 beyond the best
    one where it is the last, 1/4 about the best rate at 1; then fresh seeds at the best and at 1, one rate for all."""
    rows = {m: slug(scheme) + (f"-e{m:g}" if m != MAIN else "") for m in (0.25, 1.0, 4.0, MAIN, 64.0, 256.0)}
    losses = {m: read_row(known, row, TUNING_SEED) for m, row in rows.items()}
    starts, ended = dict[float, list[float]](), dict[float, float]()
    for m, row in losses.items():
        if near := losses[1.0 if m < 1 else MAIN]:
            best = min(near, key=near.__getitem__)
            starts[m] = [tidy(best * sqrt(2) ** half) for half in (-1, 0, 1)]
            if set(extend(row, starts[m], 6, sqrt(2))) <= set(row):
                ended[m] = min(row.values())
    wanted = extend(ended, [1, MAIN / 4, MAIN, MAIN * 4], 1, 4)
    chosen = min(ended, key=ended.__getitem__) if set(wanted) <= set(ended) else MAIN
    grid: dict[str, Sequence[str]] = {}
    for m in sorted({*wanted} & {*starts} - {MAIN}):
        fresh = OF_022["SEEDS"] if m in (chosen, 1) else ()
        grid |= tune_then_repeat(known, {rows[m]: words(scheme, m)}, starts[m], fresh)
    return grid
