"""Which runs experiment 017 wants (experiments/programme.py trains them)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from programme import EQUAL_SHARES, Grid, Summaries, settings
from rates import Losses, add_runs, extend, read_row, refine

from geonorm.lab.runs.folder import slug

RECIPE = settings(
    preset="nano", model__width=64, model__hidden=256, model__mlp="gelu", model__norm="layer", model__bias="true",
    model__init="neox", model__init_depth=12, batch_size=2, steps=50000, optim__warmup_steps=500,
    optim__weight_decay=6e-5, optim__independent="true", evaluation__every=2500, evaluation__average=0.1,
    evaluation__trace_tokens=4096, checkpoint__every=2500,
)  # fmt: skip
"""GPT-NeoX's initialisation with output matrices as for twelve layers, two sequences a step, 500 steps of warm-up, and
weight decay of 6e-5 a step at the highest rate: what the paper's 6e-4 x 0.1 is."""
AS_IT_IS, PAPER = 6e-4, 7.2e-3
"""The paper's rate, and by width, 6e-4 x 768 / 64; an embedding's best rate may not go by width."""
RATES = (PAPER, PAPER / 2, PAPER / 4)
SMOOTH = "geonorm(entry=embedding, retraction=0.5, max_angle=pi)"
CELLS = ("pre(entry=embedding)", "geonorm(entry=embedding)", "pre", "geonorm")
UNIT = "geonorm(entry=embedding, update=unit)"
EQUAL = f"geonorm(entry=embedding, update=unit, {EQUAL_SHARES})"
OTHERS = (UNIT, EQUAL, SMOOTH, *(f"{name}(entry=embedding)" for name in ("peri", "post", "deepnorm", "sandwich")))
READ = "geonorm(entry=embedding, input=norm)"  # reads as Pre-Norm does
PARTS = {
    False: ("pre(entry=embedding)", "geonorm(entry=embedding)", READ),
    True: ("pre(entry=embedding, input=raw)", READ),
}
"""Without and with gains, schemes with equal reads: what of a gain is the step, and what the absence of norms."""


class Wanted:
    """A plan as it grows: runs by name, in the order of their weight."""

    def __init__(self, known: Summaries) -> None:
        self.known = known
        self.grid: dict[str, list[str]] = {}

    def add(
        self, schemes: Iterable[str], rates: Iterable[float], seeds: Iterable[int] = (0,), data: str = "books",
        gains: bool = True,
    ) -> None:  # fmt: skip
        extra = [] if gains else settings(model__gains="false")
        for scheme in schemes:
            words = [*RECIPE, *extra, *settings(scheme=scheme, data=data)]
            add_runs(self.grid, label(scheme, data, gains), words, rates, seeds)

    def losses(self, scheme: str, data: str = "books", gains: bool = True) -> Losses:
        """By rate, of seed 0: the other seeds run at few rates."""
        return read_row(self.known, label(scheme, data, gains), 0)


def label(scheme: str, data: str, gains: bool) -> str:
    return f"{data}-{slug(scheme)}" + ("" if gains else "-nogains")


def tune(
    wanted: Wanted, scheme: str, start: Sequence[float] = RATES, half: bool = False, **where: Any
) -> Iterator[float]:
    """Asks for the rates of a scheme; yields the best of them when they are all there. half: factors of √2 about the
    best too, since the losses lie on no parabola."""
    losses = wanted.losses(scheme, **where)
    rates = extend(losses, start)
    rates = [*rates, *(refine(losses, rates) if half else ())]
    wanted.add([scheme], rates, **where)
    if set(rates) <= set(losses):
        yield min(rates, key=losses.__getitem__)


def plan(known: Summaries) -> Grid:
    wanted = Wanted(known)
    pair = RATES[:2]
    wanted.add((*CELLS, UNIT, EQUAL), pair)  # the sign at the paper's rate and at half of it, first of all
    wanted.add((EQUAL, UNIT), RATES[1:2], range(1, 3))
    for scheme in CELLS:
        for rate in tune(wanted, scheme, half=True):
            wanted.add([scheme], [rate], range(5))
    wanted.add(CELLS[:2], pair, range(1, 3))
    for scheme in (*OTHERS, READ):
        for rate in tune(wanted, scheme, pair):
            wanted.add([scheme], [rate], range(3))
    for gains, schemes in PARTS.items():  # what is compared has one rate
        wanted.add(schemes, pair, gains=gains)
    for scheme in CELLS[:2]:
        for rate in tune(wanted, scheme, pair, data="latex"):
            wanted.add([scheme], [rate], range(3), data="latex")
    wanted.add([READ], pair, range(1, 3))  # the other seeds of Pre-Norm at the two rates, which the parts compare
    for scheme in CELLS[:2]:  # added: the embedding at the paper's rate as it is
        row = f"{label(scheme, 'books', True)}-embed{AS_IT_IS:g}"
        losses = read_row(known, row, 0)
        for rate in extend(losses, pair):
            words = [*RECIPE, *settings(scheme=scheme, data="books", optim__rates=f"embed={AS_IT_IS / rate:.4g}")]
            best = rate in pair or rate == min(losses, key=losses.__getitem__, default=0)
            add_runs(wanted.grid, row, words, [rate], range(3) if best else [0])
    return wanted.grid
