"""Which runs experiment 014 wants (experiments/programme.py trains them)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import inf, log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import Grid, Summaries, settings
from rates import plan_rows

from geonorm.lab.runs.run import slug

COMMON = settings(evaluation__trace_tokens=1024, checkpoint__keep=1, runtime__tensorboard="false")
VISION = settings(
    objective="classify", preset="nano-vit", data="vision", model__layers=36, model__width=48, model__hidden=192,
    model__patch=8, batch_size=32, steps=800, optim__weight_decay=0.05, evaluation__every=400,
    evaluation__whole="true", runtime__compile="true",
)  # fmt: skip
"""36 narrow layers on CIFAR-10, 17 tokens an image, 32 images a step. Compiled: a third off a step of 36 layers, where
the runs of text are too short to win back what compiling takes."""
TEXT = settings(preset="nano", data="books", model__width=64, model__hidden=172, batch_size=8)
"""The decoder of the other experiments, seeing both sides, or two stacks of it: 8 windows of 128 tokens a step."""
END = {"evaluation__whole": "false", "evaluation__tokens": 262144}
"""A quarter of the held-out text, spread over all of it, once: the whole would take a fifth of a run."""
MLM = settings(objective="mlm", steps=1000, evaluation__every=1000, **END)
LONG = settings(objective="mlm", steps=4000, evaluation__every=1000, **END)
"""For of those of 1,000 steps most have only begun to read what stands beside a mask."""
DENOISE = settings(objective="denoise", steps=1000, evaluation__every=1000, **END)
FAMILIES = {
    "vision": ([*VISION, *COMMON], (2e-3, 1e-3, 4e-3), 3, log(10)),
    "mlm": ([*TEXT, *MLM, *COMMON], (4e-3, 2e-3, 8e-3), 0, inf),
    "denoise": ([*TEXT, *DENOISE, *COMMON], (4e-3, 2e-3, 8e-3), 0, inf),
    "long": ([*TEXT, *LONG, *COMMON], (4e-3, 2e-3, 8e-3), 0, inf),
}
"""Settings of a family, the rates that it begins with, the octaves beyond them that are tried at most for its
largest stable rate, and the loss of guessing, where a scheme may come no further."""
SMOOTH = "geonorm(retraction=0.5, max_angle=pi)"
SCHEMES = ("pre", "geonorm", "post", "peri", "deepnorm", SMOOTH)
"""The paper's rule and the smooth ceiling, beside those that they are compared with."""
VIT = "pre(entry=embedding)"
"""Pre-Norm as a vision transformer has it, without a norm at the entry."""
SEEDS = 3


def plan(known: Summaries) -> Grid:
    """One family after the other."""

    def ask(family: str, schemes: Sequence[str]) -> Grid:
        words, rates, climb, guessing = FAMILIES[family]
        rows = {f"{family}-{slug(scheme)}": [*words, *settings(scheme=scheme)] for scheme in schemes}
        return plan_rows(known, rows, rates, SEEDS, climb, guessing)

    grid: dict[str, Sequence[str]] = {}
    for family in FAMILIES:
        grid.update(ask(family, SCHEMES))
    return {**grid, **ask("vision", (VIT,))}
