"""Which runs experiment 024 wants, the most wanted first (experiments/programme.py trains them, on a GPU)."""

from math import inf

from programme import Grid, Summaries, settings
from rates import name_run, tidy

from geonorm.lab.runs.folder import slug

RECIPE = settings(
    preset="mini", model__context=512, model__vocab_size=8192, data="books", tokens__tokenizer="bpe", batch_size=64,
    steps=6100, optim__warmup_steps=300, optim__floor=0, optim__independent="true", optim__weight_decay=1e-4,
    evaluation__every=1525, evaluation__whole="false", evaluation__tokens=1048576, evaluation__trace_tokens=8192,
    checkpoint__every=6100, runtime__dtype="bf16",
)  # fmt: skip
"""12 blocks, heads of 64, 200M tokens of novels: 6,100 steps of 64 x 512, and a schedule that ends at 0."""
ARMS = (
    "pre(entry=embedding)", "pre", "peri", "geonorm(update=unit, decay=sqrt, index=sublayer)", "geonorm(input=norm)",
    "geonorm",
)  # fmt: skip
HIDDEN = {256: 688, 384: 1024, 640: 1712}
"""Of the MLP, by width: 14M, 28M and 70M parameters."""
RATE, EMBEDDING = 2e-3, 3.2e-2
"""Matrices at width 256, and the embedding at every width."""
SEEDS = (20, 21)


def add(grid: dict[str, list[str]], width: int, scheme: str, factor: float, seed: int) -> str:
    """One run: matrices and head at RATE x 256 / width, embedding and gains at one rate for all widths. Its name."""
    rate = tidy(factor * RATE * 256 / width)
    roles = (f"embed={EMBEDDING / rate:.4g}", f"gain={RATE / rate:.4g}")
    shape = settings(model__width=width, model__heads=width // 64, model__hidden=HIDDEN[width])
    own = settings(scheme=scheme, lr=rate, optim__rates=roles, seed=seed)
    grid[name := name_run(f"{width}-{slug(scheme)}", rate, seed)] = [*RECIPE, *shape, *own]
    return name


def plan(known: Summaries) -> Grid:
    """Six uses of a GPU, one after the other: six arms at 256; Pre-Norm and the best two others at half and twice the
    rate; their fresh seeds at the best; four arms at 384; three at 640; fresh seeds at 384. A use asks for runs once
    the one before is on record."""
    grid: dict[str, list[str]] = {}
    first = {scheme: add(grid, 256, scheme, 1, 0) for scheme in ARMS}
    if not set(grid) <= set(known):
        return grid
    order = list(dict.fromkeys(["pre", *sorted(ARMS, key=lambda scheme: known[first[scheme]].val_loss or inf)]))
    tried = {scheme: {factor: add(grid, 256, scheme, factor, 0) for factor in (1, 0.5, 2)} for scheme in order[:3]}
    if not set(grid) <= set(known):
        return grid
    best = {scheme: min(by, key=lambda factor: known[by[factor]].val_loss or inf) for scheme, by in tried.items()}
    for width, count, seeds in ((256, 3, SEEDS), (384, 4, (0,)), (640, 3, (0,)), (384, 4, SEEDS)):
        for seed in seeds:
            for scheme in order[:count]:
                add(grid, width, scheme, best.get(scheme, 1), seed)
    return grid
