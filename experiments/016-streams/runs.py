"""Which runs experiment 016 wants (experiments/programme.py trains them)."""

from programme import Grid, Summaries, settings
from rates import plan_rows

from geonorm.lab.runs.folder import slug

COMMON: dict[str, object] = {
    "model__width": 64, "model__hidden": 172, "data": "books", "batch_size": 4, "steps": 4000,
    "evaluation__every": 2000, "evaluation__whole": "false", "evaluation__tokens": 262144, "evaluation__average": 0.1,
    "evaluation__trace_tokens": 2048,
}  # fmt: skip
"""Validation on a quarter of the held-out text, spread over all of it: the whole, with the averaged weights once more,
would take a fifth of a run."""
SPHERE = ("geonorm", "geonorm(update=unit)", "nag", "ngpt")
"""Those that are crossed with output matrices that start at 0: some divide by the length of the update. `ngpt` ran
there, too, and its matrices stayed at 0, so that it is refused now and no longer asked for."""
STREAMS = ("lambdas", "gpas", "mhc", "mhc(mix=identity)", "attnres(blocks=4)", "prores(steps=100)")
PRORES = "prores(geonorm, steps=100)"
CELLS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "plain": ({"preset": "nano"}, ("pre", "pre(entry=embedding)", *SPHERE, *STREAMS, PRORES)),
    "zero": ({"preset": "nano", "model__init": "zero"}, ("pre", *SPHERE[:3])),
    "neox": (
        {"preset": "nano", "model__init": "neox"},
        ("pre(entry=embedding)", "geonorm(entry=embedding)", "geonorm(entry=embedding, update=unit)"),
    ),
    "modern": (
        {"preset": "modern", "model__hidden": 256},
        ("lambdas", "pre", "geonorm", "geonorm(update=unit)", PRORES),
    ),
}
"""Settings of a regime, and its rows; the first row is what the others are compared with."""
RATES = (6e-3, 3e-3, 1.2e-2)
SEEDS = 3


def plan(known: Summaries) -> Grid:
    rows = {}
    for cell, (own, schemes) in CELLS.items():
        common = {key: value for key, value in COMMON.items() if key not in own}
        for scheme in schemes:
            rows[f"{cell}-{slug(scheme)}"] = settings(**common, **own, scheme=scheme)
    return plan_rows(known, rows, RATES, SEEDS)
