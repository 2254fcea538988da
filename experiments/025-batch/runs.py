"""Which runs experiment 025 wants (experiments/programme.py trains them)."""

from programme import Grid, Summaries, change, load_definitions, settings
from rates import tune_multiplier, tune_then_repeat

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
    grid = tune_then_repeat(known, rows, (5.23e-3, 7.4e-3, 1.05e-2), OF_022["SEEDS"])
    grid |= tune_then_repeat(known, {"pre-e1": words("pre", 1)}, (7.4e-3, 1.05e-2, 1.48e-2), OF_022["SEEDS"])
    for scheme in (*ARMS[:2], "peri"):
        marks = {0.25: "-e0.25", 1.0: "-e1", 4.0: "-e4", MAIN: "", 64.0: "-e64", 256.0: "-e256"}
        others = {m: (slug(scheme) + mark, words(scheme, m)) for m, mark in marks.items()}
        grid |= tune_multiplier(known, others, MAIN, (1, MAIN / 4, MAIN, MAIN * 4), OF_022["SEEDS"])
    return grid
