"""Which runs experiment 010 wants (experiments/programme.py trains them)."""

from math import sqrt

from programme import Grid, Summaries, settings
from rates import add_runs, extend, plan_rows, read_row, refine, tidy

from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", data="books", optim__warmup_steps=200, evaluation__whole="false", evaluation__tokens=262144,
    evaluation__trace_tokens=2048,
)  # fmt: skip
SIZES = {3: (0.182, 4, 4), 4: (0.329, 3, 4), 6: (0.865, 2, 2)}
"""By depth, which is width / 16: million parameters, seeds at the best rate, and how many of the schemes."""
BATCH = 4
TOKENS = 20
"""For each parameter, all counted."""
SCHEMES = ("pre(entry=embedding)", "geonorm(entry=embedding)", "pre", "geonorm")
DOUBLE, ROOT = (1.0, 0.5, 2.0), (2.0, sqrt(2), 2 * sqrt(2))
RATES = {3: DOUBLE, 4: DOUBLE, 6: ROOT}
"""By depth multiples of 19 / (width sqrt(steps)), the rule of `geonorm ladder`; the largest size begins where the
middle one was best, and goes on by factors of √2."""


def plan(known: Summaries) -> Grid:
    """The smallest size first: its rates say where those of the next ones lie. Without embedding norm also by √2."""
    grid: dict[str, list[str]] = {}
    for depth, (millions, seeds, count) in SIZES.items():
        width = 16 * depth
        steps = 100 * round(1e4 * millions * TOKENS / (BATCH * 128))
        size = settings(
            model__width=width, model__layers=depth, model__heads=depth, model__hidden=43 * depth, batch_size=BATCH,
            steps=steps, evaluation__every=steps // 4,
        )  # fmt: skip
        rows = {f"{depth}-{slug(scheme)}": [*COMMON, *size, *settings(scheme=scheme)] for scheme in SCHEMES[:count]}
        start = [tidy(19 / (width * sqrt(steps)) * times) for times in RATES[depth]]
        if RATES[depth] is ROOT:
            grid |= plan_rows(known, rows, start, seeds, factor=sqrt(2))
            continue
        wanted = plan_rows(known, rows, start, seeds)
        for row in list(rows)[:2]:
            losses = read_row(known, row, 0)
            halves = refine(losses, extend(losses, start))
            if not set(halves) <= set(losses):  # seeds wait for them
                wanted = {name: run for name, run in wanted.items() if name in known or name.endswith("-seed0")}
            add_runs(wanted, row, rows[row], halves)
        grid |= wanted
    return grid
