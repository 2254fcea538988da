"""Which runs experiment 101 wants, the most wanted first (experiments/programme.py trains them, on a GPU)."""

from programme import Grid, Summaries, change, load_definitions, settings
from rates import name_run

from geonorm.lab.runs.folder import slug

OF_100 = load_definitions("100-paper-125m")["RECIPE"]
RECIPE = change(OF_100, steps=600, optim__warmup_steps=60, evaluation__every=150, checkpoint__every=600)
"""That of experiment 100 with 600 steps: its gap of half a nat was there at step 500."""
ARMS = (
    ("pre(entry=embedding)", 12), ("geonorm(entry=embedding)", 12), ("pre(entry=embedding)", 1),
    ("geonorm(entry=embedding)", 1), ("geonorm", 1), ("geonorm(entry=embedding, input=norm)", 1),
)  # fmt: skip
"""Scheme, and the embedding's learning rate over that of the matrices."""


def plan(known: Summaries) -> Grid:
    """One run of each arm at the paper's rate."""
    return {
        name_run(f"{slug(scheme)}-e{embedding}", 6e-4, 0): [
            *RECIPE, *settings(scheme=scheme, lr=6e-4, optim__rates=(f"embed={embedding}",), seed=0)
        ]
        for scheme, embedding in ARMS
    }  # fmt: skip
