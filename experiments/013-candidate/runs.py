"""Which runs experiment 013 wants (experiments/programme.py trains them): here those that choose the candidate."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, settings
from rates import plan_rows

from geonorm.lab.compare.compare import slug

COMMON = settings(
    preset="nano", model__width=64, model__hidden=172, data="books", batch_size=4, steps=4000,
    evaluation__every=2000, evaluation__whole="false", evaluation__tokens=262144, evaluation__average=0.1,
    evaluation__trace_tokens=2048, checkpoint__keep=1, runtime__compile="true", runtime__tensorboard="false",
)  # fmt: skip
"""The regime `plain` of 016, of which it takes the rows KNOWN."""
KNOWN = ("pre", "pre(entry=embedding)", "geonorm", "geonorm(update=unit)", "nag")
VARIANTS = (
    "decay=sqrt", "decay=0.75", "alpha=0.5", "max_angle=pi", "alpha=2, max_angle=pi/2",
    "alpha=pi/4, max_angle=pi, learn=step", "alpha=pi/4, max_angle=pi, decay=sqrt, learn=step",
    "decay=sqrt, index=sublayer",
)  # fmt: skip
"""Of GeoNorm with a unit tangent, which turns a token of block t by alpha decay(t) min(1, max_angle), pi/4 / t without
fields. Learned steps begin there, too, with room above: at the ceiling a step has no gradient."""
RIVALS = ("peri", "deepnorm", "keel", "lns")
RATES = (6e-3, 3e-3, 1.2e-2)
SEEDS = 2


def with_fields(variant: str) -> str:
    return f"geonorm(update=unit, {variant})"


def plan(known: Summaries) -> Grid:
    schemes = (*map(with_fields, VARIANTS), *RIVALS)
    rows = {f"select-{slug(scheme)}": [*COMMON, *settings(scheme=scheme)] for scheme in schemes}
    return plan_rows(known, rows, RATES, SEEDS)
