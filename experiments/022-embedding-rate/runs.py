"""Which runs experiment 022 wants (experiments/programme.py trains them)."""

from collections.abc import Mapping, Sequence
from math import sqrt

from programme import Grid, Summaries, settings
from rates import add_runs, extend, read_row, tidy

from geonorm.lab.config import TUNING_SEED
from geonorm.lab.runs.folder import slug

COMMON = settings(
    preset="nano", data="books", model__width=64, model__layers=4, model__heads=4, model__hidden=172, batch_size=4,
    steps=12900, optim__warmup_steps=200, optim__floor=0, evaluation__every=3225, evaluation__whole="false",
    evaluation__tokens=262144, evaluation__trace_tokens=2048,
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
RIVALS = ["deepnorm", "sandwich(entry=sphere)", "post"]
"""Of 017, where they have no embedding norm; here they have one, and 16 as the only multiplier."""
RATES = (2.61e-3, 3.7e-3, 5.23e-3)
FACTOR = sqrt(2)
MAIN = 16.0
"""The multiplier of the embedding's rate that every scheme is tuned at; 1, 4 and 64 are the others."""
SEEDS = range(20, 25)
"""Fresh ones: the tuning seed does not count."""
HEADS = (0.25, 4)
Tuned = tuple[float, float] | None
"""The loss at the best rate of the matrices, and that rate; None while runs are missing."""


def label(scheme: str, embedding: float, head: float = 1) -> str:
    return f"{slug(scheme)}-e{embedding:g}" + (f"-h{head:g}" if head != 1 else "")


def plan(known: Summaries) -> Grid:
    """Pre-Norm and GeoNorm without an embedding norm at all four multipliers first, then their fresh seeds at the best
    and with the embedding at the matrices' rate; then every other row, which tries 4 and 64 beside its best
    matrix rate at 16, and 1 where 4 is best; then rivals; then the head's rate."""
    grid: dict[str, list[str]] = {}

    def add(scheme: str, embedding: float, rates: Sequence[float], seeds: Sequence[int], head: float = 1) -> None:
        roles = (f"embed={embedding:g}", *([f"head={head:g}"] if head != 1 else []))
        words = [*COMMON, *settings(scheme=scheme, optim__rates=roles)]
        add_runs(grid, label(scheme, embedding, head), words, rates, seeds)

    def tune(scheme: str, embedding: float, near: Tuned = None) -> Tuned:
        """The loss at the best rate, and that rate, once it is interior; asks for what is missing."""
        start = [tidy(near[1] * FACTOR**half) for half in (-1, 0, 1)] if near else RATES
        losses = read_row(known, label(scheme, embedding), TUNING_SEED)
        wanted = extend(losses, start, 5, FACTOR)
        add(scheme, embedding, wanted, [TUNING_SEED])
        return min((loss, rate) for rate, loss in losses.items()) if set(wanted) <= set(losses) else None

    def finish(scheme: str, tuned: Mapping[float, Tuned], also: Sequence[float] = ()) -> None:
        """Fresh seeds at the best multiplier and rate, and at the best rate of other multipliers. Where 4 is the best
        and the lowest that was tried, 1 is tried first."""
        ended = {embedding: best for embedding, best in tuned.items() if best}
        if len(ended) < len(tuned):
            return
        best = min(ended, key=ended.__getitem__)
        if best == 4 and 1 not in tuned:
            finish(scheme, {**tuned, 1: tune(scheme, 1, ended[4])}, also)
            return
        for embedding in dict.fromkeys([best, *also]):
            add(scheme, embedding, [ended[embedding][1]], SEEDS)

    every = {scheme: {each: tune(scheme, each) for each in (MAIN, 1.0, 4.0, 64.0)} for scheme in WITHOUT[:2]}
    for scheme, tuned in every.items():
        finish(scheme, tuned, also=(1, MAIN))
    for scheme in [*WITH[:3], WITHOUT[2], WITH[3], WITHOUT[3], WITH[4], WITHOUT[4], "olmo2(entry=embedding)", *RIVALS]:
        if ended := tune(scheme, MAIN):
            others = () if scheme in RIVALS else (4.0, 64.0)
            finish(scheme, {MAIN: ended, **{each: tune(scheme, each, ended) for each in others}})
    for scheme, tuned in every.items():
        if ended := tuned[MAIN]:
            for head in HEADS:
                add(scheme, MAIN, [ended[1]], [TUNING_SEED], head)
    return grid
