"""Which runs experiment 022 wants (experiments/programme.py trains them)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from programme import Grid, Summaries, settings
from rates import add_runs, extend, read_row, tidy

from geonorm.lab.config import TUNING_SEED
from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", data="books", model__width=64, model__layers=4, model__heads=4, model__hidden=172, batch_size=4,
    steps=12900, optim__warmup_steps=200, optim__floor=0, evaluation__every=3225, evaluation__whole="false",
    evaluation__tokens=262144, evaluation__trace_tokens=2048, checkpoint__keep=1,
    runtime__compile="true", runtime__tensorboard="false",
)  # fmt: skip
"""0.33M parameters, 6.6M tokens, 20 for each parameter: the middle size of 010, with a schedule that ends at 0."""
CANDIDATE = "update=unit, decay=sqrt, index=sublayer"
WITHOUT = [
    "pre(entry=embedding)", "geonorm(entry=embedding)", "geonorm(entry=embedding, input=norm)", "peri(entry=embedding)",
    f"geonorm(entry=embedding, {CANDIDATE})",
]  # fmt: skip
"""Without a norm after the embedding. GeoNorm in both readings of the paper: sub-layers that read the stream, and
sub-layers that keep their input norm."""
WITH = ["pre", "geonorm", "geonorm(input=norm)", "peri", f"geonorm({CANDIDATE})"]
RATES = (2.61e-3, 3.7e-3, 5.23e-3)
FACTOR = sqrt(2)
EXTENSIONS = 5
EMBEDDINGS = (1, 4, 16, 64)
"""Multipliers of the embedding's learning rate."""
MAIN = 16
SEEDS = range(20, 25)
"""Fresh ones: the tuning seed does not count."""
HEADS = (0.25, 4)
Tuned = tuple[float, float] | None
"""The best rate of the matrices and its loss; None while runs are missing."""


def label(scheme: str, embedding: float, head: float = 1) -> str:
    return f"{slug(scheme)}-e{embedding:g}" + (f"-h{head:g}" if head != 1 else "")


def plan(known: Summaries) -> Grid:
    """Pre-Norm and GeoNorm without an embedding norm at all four multipliers first, then their fresh seeds at the best
    and with the embedding at the matrices' rate; then every other row, which tries the other multipliers only beside
    its best matrix rate at 16; then the head's rate."""
    grid: dict[str, list[str]] = {}

    def add(scheme: str, embedding: float, rates: Sequence[float], seeds: Sequence[int], head: float = 1) -> None:
        roles = (f"embed={embedding:g}", *([f"head={head:g}"] if head != 1 else []))
        words = [*COMMON, *settings(scheme=scheme, optim__rates=roles)]
        add_runs(grid, label(scheme, embedding, head), words, rates, seeds)

    def tune(scheme: str, embedding: float, start: Sequence[float] = RATES) -> Tuned:
        """The best rate and its loss once it is interior; asks for what is missing."""
        losses = read_row(known, label(scheme, embedding), TUNING_SEED)
        wanted = extend(losses, start, EXTENSIONS, FACTOR)
        add(scheme, embedding, wanted, [TUNING_SEED])
        if not set(wanted) <= set(losses):
            return None
        best = min(losses, key=losses.__getitem__)
        return best, losses[best]

    def finish(scheme: str, tuned: dict[float, Tuned], also: Sequence[float] = ()) -> None:
        """Fresh seeds at the best multiplier and rate, and at the best rate of other multipliers."""
        if None in tuned.values():
            return
        best = min(tuned, key=lambda embedding: tuned[embedding][1])  # type: ignore[index]
        for embedding in dict.fromkeys([best, *also]):
            add(scheme, embedding, [tuned[embedding][0]], SEEDS)  # type: ignore[index]

    pair = WITHOUT[:2]
    every: dict[str, dict[float, Tuned]] = {
        scheme: {embedding: tune(scheme, embedding) for embedding in (MAIN, 1, 4, 64)} for scheme in pair
    }
    for scheme, tuned in every.items():
        finish(scheme, tuned, also=(1, MAIN))
    for scheme in [*WITH[:3], WITHOUT[2], WITH[3], WITHOUT[3], WITH[4], WITHOUT[4]]:
        if (ended := tune(scheme, MAIN)) is not None:
            near = [tidy(ended[0] * FACTOR**half) for half in (-1, 0, 1)]
            finish(scheme, {MAIN: ended, **{embedding: tune(scheme, embedding, near) for embedding in (4, 64)}})
    for scheme, tuned in every.items():
        if (ended := tuned[MAIN]) is not None:
            for head in HEADS:
                add(scheme, MAIN, [ended[0]], [TUNING_SEED], head)
    return grid
