"""Which runs experiment 018 wants (experiments/programme.py trains them)."""

from itertools import product

from programme import Grid, Summaries, settings
from rates import plan_rows

COMMON = settings(
    preset="nano", tokens__tokenizer="byte", model__vocab_size=257, model__layers=2, batch_size=4, steps=2000,
    evaluation__every=2000, evaluation__whole="false", evaluation__tokens=65536, evaluation__trace_tokens=1024,
)  # fmt: skip
"""1.02M bytes, two blocks: what a norm takes away is most where the stream is narrow, and few layers make it seen."""
TASKS = {"books": "books", "copy": "runs/tasks/copy", "addition": "runs/tasks/addition"}
"""Text as it is, and what tasks.py has written."""
NORMS = ("rms", "layer")
SCHEMES = ("pre", "geonorm", "post", "peri")
WIDTHS = {4: 1, 64: 4}
"""Width of the stream, and heads."""
RATES = (8e-3, 4e-3, 1.6e-2)
SEEDS = 3


def plan(known: Summaries) -> Grid:
    rows = {
        f"{task}-{width}-{norm}-{scheme}": [
            *COMMON, *settings(data=TASKS[task], model__width=width, model__hidden=4 * width),
            *settings(model__heads=WIDTHS[width], model__norm=norm, scheme=scheme),
        ]
        for width, task, scheme, norm in product(WIDTHS, TASKS, SCHEMES, NORMS)
    }  # fmt: skip
    return plan_rows(known, rows, RATES, SEEDS)
