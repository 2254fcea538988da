"""GeoNorm − Pre-Norm in the experiments that trained both with tuned rates: one figure, from their results.jsonl.

    python experiments/answer.py

Writes docs/figures/answer.svg and answer.md beside it: a row for each comparison of two seeds or more, each scheme at
the best of the rates that have two, unless the row says another, paired by seed, with 95 % intervals; on one side both
without embedding norm, as in the papers, on the other both with it, the default here. Without
001 and 003, which 019 repeats, and 015, which converts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parent))
from cells import at_best, describe
from programme import read_runs

from geonorm.lab.statistics.comparison import aggregate, paired_interval, usable
from geonorm.report.charts import Axis, Chart, Figure, Strip, figure, strip_chart
from geonorm.report.style import COLOURS, Look
from geonorm.report.tables import markdown_lines

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "figures"
ENTRIES = {
    "Without embedding norm in both": ("geonorm(entry=embedding)", "pre(entry=embedding)"),
    "With embedding norm in both": ("geonorm", "pre"),
}
"""GeoNorm and Pre-Norm by what they take in."""
NAMES = {"books": "novels", "latex": "LaTeX"}
RECIPES = {
    "early": Look(*COLOURS["sky"], "", "circle"),
    "ours": Look(*COLOURS["blue"], "", "square"),
    "paper": Look(*COLOURS["vermilion"], "", "diamond"),
    "other": Look(*COLOURS["green"], "", "triangle-up"),
}
NOTE = (
    "First number: tokens per parameter. Red: the paper's recipe; blue: the laboratory's; light: less than two tokens "
    "per parameter; green: others. One mark a seed; bars: 95 %; rows with longer ones than half a nat "
    "are in the table alone."
)
POOL_HEAD = ("what", "settings", "difference (95 %)", "p", "n")
POOL_NOTE = (
    "Each setting counts once, with the mean of its seeds; n is the number of settings. All are decoders on text with\n"
    "ten tokens per parameter or more, each scheme at its best rate. They share text and seeds, so are not independent."
)
DRAWN = 0.5
"""Nats: longer intervals would press all others into a line."""


POOLED = {
    "our recipe, without embedding norm": "novels, 20, cosine, 0.18M; novels, 20, cosine, 0.33M; novels, 20, cosine, "
    "0.86M; novels, 50; LaTeX, 12; novels, 12, sequences of 256; novels, 12, sequences of 512",
    "all recipes, with embedding norm in both": "novels, 20, cosine, 0.18M; novels, 20, cosine, 0.33M; novels, 50; "
    "LaTeX, 12, ten seeds; novels, 39, best rates",
}
"""For each of ENTRIES what is averaged, and the places: decoders on text with ten tokens per parameter or more, each
scheme at its best rate; one budget of a ladder, the longest; of two comparisons of a setting the larger."""


Gaps = dict[int, float]
"""GeoNorm's loss − Pre-Norm's, by seed."""


@dataclass(frozen=True)
class Place:
    """Where both were trained: runs of an experiment whose names begin so, of a number of steps."""

    label: str
    recipe: str
    experiment: str
    start: str
    steps: int | None = None
    lr: float | None = None
    """One rate for both; else each at its best one."""
    fresh: int = 0
    """The first seed that counts: those before it chose the rates."""
    averaged: bool = False
    """Whether the loss is that of the weights averaged over the last tenth, at the rates that are best without."""


def places() -> Iterator[Place]:
    """In the order of the figure."""
    for start, tokens in (("0.4M", "0.4"), ("1.0M", "1")):
        yield Place(f"novels, {tokens}, width 128", "early", "019-again", f"{start}-")
    for layers, tokens in ((36, "0.5"), (12, "1.4"), (4, "3")):
        recipe = "early" if layers > 4 else "ours"
        yield Place(f"novels, {tokens}, {layers} blocks", recipe, "012-depth", f"{layers}-")
    yield Place("novels, 3, cosine", "ours", "011-rate", "64-warm-")
    yield Place("novels, 3, cosine, no warm-up", "ours", "011-rate", "64-cold-")
    yield Place("novels, 3, cosine, half octaves", "ours", "021-schedule", "cosine-")
    yield Place("novels, 3, constant, half octaves", "ours", "021-schedule", "constant-")
    for layers, size in ((3, "0.18M"), (4, "0.33M"), (6, "0.86M")):
        yield Place(f"novels, 20, cosine, {size}", "ours", "010-size", f"{layers}-")
    for (data, name), (steps, each) in product(
        NAMES.items(),
        {2000: 3, 4000: 6, 8000: 12, 16000: 25, 32000: 50}.items(),
    ):
        yield Place(f"{name}, {each}", "ours", "009-tokens", f"{data}-", steps)
    yield Place("LaTeX, 12, ten seeds", "ours", "013-candidate", "confirm-", fresh=10)
    for length in (256, 512):
        yield Place(f"novels, 12, sequences of {length}", "ours", "009-tokens", f"length{length}-")
    yield Place("novels, 6, 4,000 cosine steps", "ours", "016-streams", "plain-")
    yield Place("novels, 6, outputs from 0", "ours", "016-streams", "zero-")
    yield Place("novels, 6, the paper's start", "paper", "016-streams", "neox-")
    paper = "017-paper-recipe"
    yield Place("novels, 39, at the paper's rate", "paper", paper, "books-", lr=7.2e-3)
    yield Place("novels, 39, at half of it", "paper", paper, "books-", lr=3.6e-3)
    for data, name in NAMES.items():
        yield Place(f"{name}, 39, best rates", "paper", paper, f"{data}-")
        yield Place(f"{name}, 39, the same, averaged", "paper", paper, f"{data}-", averaged=True)
    yield Place("novels, 6, nanochat's block, Muon", "other", "016-streams", "modern-")
    yield Place("images, half an epoch, 36 blocks", "other", "014-beyond-decoders", "vision-")
    yield Place("masked text, 3", "other", "014-beyond-decoders", "mlm-")
    yield Place("masked text, 12", "other", "014-beyond-decoders", "long-")
    yield Place("missing text, 1.7", "other", "014-beyond-decoders", "denoise-")


def compare(place: Place, schemes: tuple[str, str]) -> Gaps:
    """Empty where one of the two has no rate with two seeds."""
    runs = [
        run
        for run in read_runs(HERE / place.experiment)
        if run.scheme in schemes
        and run.run.startswith(place.start)
        and run.seed >= place.fresh
        and "-nogains-" not in run.run
        and place.steps in (None, run.steps)
        and place.lr in (None, run.lr)
    ]
    several = Counter((run.scheme, run.lr) for run in runs if usable(run))
    runs = [run for run in runs if several[run.scheme, run.lr] > 1]
    if {run.scheme for run in runs} != set(schemes):
        return {}
    rows = {row.scheme: at_best(runs, row) for row in aggregate(runs, schemes[1])}
    key = "val_loss_average" if place.averaged else "val_loss"
    own, base = (rows[scheme] for scheme in schemes)
    return {seed: getattr(own[seed], key) - getattr(base[seed], key) for seed in sorted(own.keys() & base.keys())}


def draw(title: str, found: Mapping[Place, Gaps], shared: Mapping[str, Look], x: Axis) -> Chart:
    rows = []
    for place, gaps in found.items():
        pairs = list(gaps.values())
        dots = [(gap, f"seed {seed}") for seed, gap in gaps.items()]
        rows.append(Strip(place.label, describe(pairs)[0], dots, *paired_interval(pairs)[:3]))
    return strip_chart(title, "", rows, shared, NOTE, rule=0.0, axis=x)


Sides = Mapping[str, Mapping[Place, Gaps]]


def collect() -> Sides:
    """By entry, the places that have two pairs or more."""
    return {
        title: {place: gaps for place in places() if len(gaps := compare(place, schemes)) > 1}
        for title, schemes in ENTRIES.items()
    }


def pool(sides: Sides) -> dict[str, list[float]]:
    """The mean difference of each setting, by what is averaged."""
    pooled = {}
    for (name, labels), found in zip(POOLED.items(), sides.values(), strict=True):
        means = {place.label: fmean(gaps.values()) for place, gaps in found.items()}
        pooled[name] = [means[label] for label in labels.split("; ")]
    return pooled


def tabulate(sides: Sides) -> str:
    head = ("where, tokens per parameter", "experiment", "difference (95 %)", "p", "n")
    parts = []
    for title, found in sides.items():
        rows = [[place.label, place.experiment, *describe(list(gaps.values()))] for place, gaps in found.items()]
        parts.append("\n".join([f"## {title}", "", *markdown_lines(head, rows)]))
    rows = [[name, POOLED[name], *describe(means)] for name, means in pool(sides).items()]
    parts += ["## Means over settings", POOL_NOTE, "\n".join(markdown_lines(POOL_HEAD, rows))]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    sides = collect()
    ends, drawn = [0.0], dict[str, dict[Place, Gaps]]()
    for title, found in sides.items():
        drawn[title] = {}
        for place, gaps in found.items():
            _, low, high, *_ = paired_interval(list(gaps.values()))
            if low is not None and high is not None and high - low <= DRAWN:
                drawn[title][place] = gaps
                ends += [low, high, *gaps.values()]
    x = Axis.around(ends, title="GeoNorm − Pre-Norm, nats (left of 0 GeoNorm is better)")
    shared = {place.label: RECIPES[place.recipe] for place in places()}
    charts = [draw(title, found, shared, x) for title, found in drawn.items()]
    print(Figure(figure(charts, "GeoNorm − Pre-Norm")).save(OUT / "answer.svg"))
    (OUT / "answer.md").write_text(tabulate(sides), encoding="utf-8")
    print(OUT / "answer.md")


if __name__ == "__main__":
    main()
