"""Which runs experiment 027 wants (experiments/programme.py trains them)."""

from programme import Grid, Summaries, change, load_definitions, settings
from rates import tune_then_repeat

from geonorm.lab.runs.folder import slug

OF_022 = load_definitions("022-embedding-rate")
RECIPE = change(OF_022["COMMON"], optim__floor=0.1)
"""That of 022, but the cosine ends at a tenth of the highest rate."""
ARMS = ("pre(entry=embedding)", "geonorm(entry=embedding)", "peri")


def plan(known: Summaries) -> Grid:
    rows = {slug(scheme): [*RECIPE, *settings(scheme=scheme, optim__rates=("embed=16",))] for scheme in ARMS}
    return tune_then_repeat(known, rows, OF_022["RATES"], OF_022["SEEDS"])
