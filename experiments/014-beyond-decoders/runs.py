"""Which runs experiment 014 wants (experiments/programme.py trains them)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, settings
from rates import plan_rows

from geonorm.lab.compare.compare import slug

VISION = settings(
    objective="classify", preset="nano-vit", data="vision", model__layers=36, model__width=48, model__hidden=192,
    model__patch=8, batch_size=32, steps=1000, optim__weight_decay=0.05,
    evaluation__every=250, evaluation__whole="true", evaluation__trace_tokens=1024,
    checkpoint__keep=1, runtime__tensorboard="false",
)  # fmt: skip
"""36 narrow layers on CIFAR-10, 17 tokens an image, 32 images a step."""
FAMILIES = {"vision": VISION}
SMOOTH = "geonorm(retraction=0.5, max_angle=pi)"
SCHEMES = ("pre", "geonorm", "post", "peri", "deepnorm", SMOOTH)
"""The paper's rule and the smooth ceiling, beside those that they are compared with."""
RATES = (2e-3, 1e-3, 4e-3)
SEEDS = 3


def plan(known: Summaries) -> Grid:
    """The largest rate that is stable is beyond the best."""
    rows = {
        f"{family}-{slug(scheme)}": [*words, *settings(scheme=scheme)]
        for family, words in FAMILIES.items()
        for scheme in SCHEMES
    }
    return plan_rows(known, rows, RATES, SEEDS)
