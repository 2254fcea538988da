"""How differences to a baseline move with tokens or size, in the runs of an experiment.

    python experiments/trends.py experiments/009-tokens [--only "books, raw entry" ...]

The experiment's runs.py names its ladders, LADDERS = {name: (what names of runs begin with, baseline, schemes)}; each
is judged as `geonorm ladder` judges its own: every scheme at its best rate for each budget and size, the effective
speed-up, and slopes of the difference within a seed. Writes trends.md and, for each ladder of more than one size or
budget, figures/trend-NAME.svg; with --only of these ladders alone, as while others are incomplete. Where runs.py has
PUBLISHED = {where: (parameters, difference)}, the differences of a ladder of several sizes are drawn over size, beside
these points.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from programme import Grid, folder_with, read_runs

from geonorm.cli.arguments import read
from geonorm.lab.compare.ladder import about
from geonorm.lab.config import TrainCommand
from geonorm.lab.load import Ladder
from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.speedup import judge_ladder
from geonorm.report.charts import NUMBER, Axis, Chart, Figure, Point, figure
from geonorm.report.ladder import ROUGHLY, SavedLadder, difference_charts, loss_charts
from geonorm.report.style import looks, si, signed
from geonorm.report.tables import markdown_lines

Ladders = Mapping[str, tuple[str, str, Sequence[str]]]
Published = Mapping[str, tuple[float, float]]


def place_runs(runs: Sequence[Summary], grid: Grid) -> list[Summary]:
    """The runs of rows that the plan has, each with its size and tokens, which rates and seeds share; also at rates
    that the plan no longer asks for, now that it knows more."""
    wanted = {run.run.rpartition("-lr")[0] for run in runs}
    known: dict[str, dict[str, Any]] = {}
    for name, words in grid.items():
        if (row := name.rpartition("-lr")[0]) in wanted - known.keys():
            known[row] = about(read(TrainCommand, "geonorm train", list(words)))
    return [replace(run, **known[row]) for run in runs if (row := run.run.rpartition("-lr")[0]) in known]


def open_ladder(path: Path, runs: Sequence[Summary], baseline: str, schemes: Sequence[str]) -> SavedLadder:
    order = [baseline, *(scheme for scheme in schemes if any(run.scheme == scheme for run in runs))]
    own = [run for run in runs if run.scheme in order]
    return SavedLadder(path, Ladder(path, {**judge_ladder(own, baseline), "runs": [], "data": path.name}), chosen=order)


def over_size(found: SavedLadder, published: Published) -> list[Chart]:
    """The difference to the baseline at every size, and published ones, through which nothing is fitted."""
    rows = [row for row in found.rows("points") if row.difference is not None and row.scheme != found.baseline]
    if len(found.sizes) < 2 or not rows or not published:
        return []
    places = [row.parameters for row in rows] + [size for size, _ in published.values()]
    ends = [end for row in rows for end in (row.difference, row.difference_low, row.difference_high)]
    x = Axis.around(places, log=True, margin=0.08, title="parameters", labels=sorted(set(places)), form=ROUGHLY)
    y = Axis.around(
        [0.0, *(end for end in ends if end is not None), *(gap for _, gap in published.values())], margin=0.08,
        title="difference (nats per token)", form=NUMBER,
    )  # fmt: skip
    note = (
        f"Difference to {found.baseline}, paired by seed; band: the 95 % interval. Published: single runs, another "
        "tokenizer, so not the same nats; nothing is fitted through them."
    )
    chart = Chart("Difference over size", x, y, looks([*found.looks, *published]), note)
    chart.rule(y=0.0)
    for scheme in dict.fromkeys(row.scheme for row in rows):
        chart.curve(scheme, [
            Point(row.parameters, row.difference, row.difference_low, row.difference_high,
                  f"{si(row.parameters)} parameters: {signed(row.difference, 4)} nats")
            for row in rows if row.scheme == scheme
        ])  # fmt: skip
    for where, (size, gap) in published.items():
        chart.mark(where, size, gap, f"{signed(gap, 4)} nats", kind="hollow")
    return [chart]


def open_ladders(experiment: Path, made: Mapping[str, Any], only: Sequence[str] = ()) -> dict[str, SavedLadder]:
    """Of an experiment, `made` what its runs.py has: the ladders of which two schemes have runs, those of `only`."""
    runs = read_runs(experiment)
    placed = place_runs(runs, made["plan"]({run.run: run for run in runs}))
    found = {}
    for name, (start, baseline, schemes) in made["LADDERS"].items():
        own = [run for run in placed if run.run.startswith(start)]
        there = {run.scheme for run in own}
        if name in (only or made["LADDERS"]) and baseline in there and there & set(schemes):
            found[name] = open_ladder(experiment, own, baseline, schemes)
    return found


def main(experiment: Path, only: Sequence[str] = ()) -> int:
    made = runpy.run_path(str(experiment / "runs.py"))
    ladders: Ladders = made["LADDERS"]
    if strange := sorted(set(only) - set(ladders)):
        print(f"{experiment} has no ladder {strange[0]!r}: it has {', '.join(map(repr, ladders))}", file=sys.stderr)
        return 2
    (experiment / "figures").mkdir(exist_ok=True)
    parts = []
    for name, found in open_ladders(experiment, made, only).items():
        parts.append(f"## {name}, less `{found.baseline}`")
        parts += ["\n".join([f"### {title}", "", *markdown_lines(*table)]) for title, table in found.tables().items()]
        if (
            len({(row.size, row.tokens) for row in found.ladder.points}) > 1
        ):  # one place is no trend: its table says it all
            charts = [*loss_charts(found), *(over_size(found, made.get("PUBLISHED", {})) or difference_charts(found))]
            drawn = figure(charts, f"{experiment.name}, {name}")
            print(Figure(drawn).save(experiment / "figures" / f"trend-{name.replace(',', '').replace(' ', '-')}.svg"))
    if not parts:
        print(f"{experiment} has no two schemes of one ladder yet: train its runs first", file=sys.stderr)
        return 2
    (experiment / "trends.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(experiment / "trends.md")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=folder_with("runs.py", "results.jsonl"), help="folder of an experiment")
    parser.add_argument("--only", nargs="+", default=(), metavar="LADDER", help="names of ladders in runs.py")
    words = parser.parse_args()
    sys.exit(main(words.experiment, words.only))
