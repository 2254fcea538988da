"""Which runs experiment 100 wants (experiments/programme.py trains them, where a GPU is)."""

from programme import EQUAL_SHARES, Grid, Summaries, settings
from rates import plan_rows

from geonorm.lab.runs.folder import slug

RECIPE = settings(
    preset="paper-125m", model__init="neox", data="books", tokens__tokenizer="runs/gpt2.tokenizer.json", batch_size=64,
    steps=3000, optim__warmup_steps=300, optim__weight_decay=6e-5, optim__independent="true", evaluation__every=1000,
    evaluation__whole="false", evaluation__tokens=524288, evaluation__average=0.1, evaluation__trace_tokens=8192,
    checkpoint__every=3000, runtime__dtype="bf16", micro_batch=32,
)  # fmt: skip
"""98.3M tokens, 0.6 for each parameter: 3,000 steps of 64 x 512, LayerNorm, GELU, GPT-NeoX's initialisation, the weight
decay of a step that the paper has at its highest rate. One checkpoint, at the end: a run is complete by itself."""
RATES = (6e-4, 1.2e-3)
"""The paper's, and twice that: a seventeenth of its steps ask for a higher one."""
FIRST = ("pre(entry=embedding)", "geonorm(entry=embedding)")
OTHERS = (
    "geonorm(entry=embedding, update=unit)", f"geonorm(entry=embedding, update=unit, {EQUAL_SHARES})", "pre", "geonorm",
    "peri(entry=embedding)", "deepnorm(entry=embedding)", "post(entry=embedding)",
)  # fmt: skip
SEEDS = 1


def plan(known: Summaries) -> Grid:
    """The paper's two at both rates and on by factors of 2 until the best is interior, then the others."""
    grid: Grid = {}
    for schemes in (FIRST, OTHERS):
        rows = {slug(scheme): [*RECIPE, *settings(scheme=scheme)] for scheme in schemes}
        grid = {**grid, **plan_rows(known, rows, RATES, SEEDS)}
    return grid
