"""Draws what the clamp does in the runs of an experiment, from its results.jsonl and traces.csv.

    python experiments/clamp.py experiments/017-paper-recipe [RUN ...]

figures/course.svg: the share of site-tokens at the ceiling over training, and the training loss less that of `pre` with
the same entry, rate and seed, on the same batches. figures/ratio.svg: for each run and site the ratio |v|/|x|, v the
tangential part of what the sub-layer proposes, median over tokens: above the dashed line it is clamped.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from programme import folder_with

from geonorm.report.style import Look, looks, ramp
from geonorm.report.vega import Axis, Chart, Figure, figure
from geonorm.schemes import parse

Rows = dict[str, list[dict[str, str]]]
STEPS = "optimizer step"


def read_traces(experiment: Path) -> Rows:
    """Rows of traces.csv by run, of the runs that have a ceiling."""
    found: Rows = {}
    with (experiment / "traces.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["clamped"]:
                found.setdefault(row["run"], []).append(row)
    return found


def describe(run: Mapping[str, Any]) -> str:
    """The rate first: legends end before a long scheme does."""
    return f"{run['lr']:g} {run['scheme']}" + (f" seed {run['seed']}" if run["seed"] else "")


def draw_shares(traces: Rows, runs: Mapping[str, Any]) -> Chart:
    names = {name: describe(runs[name]) for name in traces}
    chart = Chart(
        "Clamped share", Axis.around(steps(traces), log=True, title=STEPS), Axis(0, 1, title="share of site-tokens"),
        looks(list(names.values())), "Mean over all sites.", own_legend=True,
    )  # fmt: skip
    for name, rows in traces.items():
        at: dict[int, list[float]] = {}
        for row in rows:
            at.setdefault(int(row["step"]), []).append(float(row["clamped"]))
        chart.line(names[name], [(step, mean(shares)) for step, shares in sorted(at.items())])
    return chart


def draw_ratio(rows: Sequence[Mapping[str, str]], run: Mapping[str, Any], y: Axis) -> Chart:
    blocks = sorted({int(row["layer"]) for row in rows})
    colours = ramp([f"block {block + 1}" for block in blocks])
    sites: dict[str, Look] = {}
    for name, look in colours.items():
        sites[f"{name}, attention"] = look
        sites[f"{name}, MLP"] = Look(look.light, look.dark, "4 3", "square")
    chart = Chart(
        describe(run), Axis.around([int(row["step"]) for row in rows], log=True, title=STEPS), y, sites,
        "Median over tokens; clamped above the dashed line.", own_legend=True,
    )  # fmt: skip
    chart.rule(y=float(getattr(parse(run["scheme"]), "max_angle", math.nan)))
    for site in sites:
        block, kind = site.removeprefix("block ").split(", ")
        place = str(int(block) - 1), "mlp" if kind == "MLP" else "attn"
        own = [row for row in rows if (row["layer"], row["kind"]) == place]
        chart.line(site, [(int(row["step"]), float(row["proposal_p50"])) for row in own])
    return chart


def draw_gaps(runs: Mapping[str, Any]) -> Chart | None:
    """The course of each run against that of its Pre-Norm twin, where it has one."""
    pairs = {}
    for run in runs.values():
        entry = getattr(parse(run["scheme"]), "entry", "sphere")
        twin = f"pre(entry={entry})" if entry != "sphere" else "pre"
        place = [run.get(key) for key in ("lr", "seed", "data", "steps")]
        for other in runs.values():
            alike = other["scheme"] == twin and [other.get(key) for key in ("lr", "seed", "data", "steps")] == place
            if alike and other is not run:
                pairs[describe(run)] = (run["train"], dict(other["train"]))
    if not pairs:
        return None
    lines = {name: [(s, loss - base[s]) for s, loss in course if s in base] for name, (course, base) in pairs.items()}
    points = [point for line in lines.values() for point in line]
    chart = Chart(
        "Training loss less that of Pre-Norm", Axis.around([s for s, _ in points], log=True, title=STEPS),
        Axis.around([gap for _, gap in points], title="difference (nats per token)"), looks(list(lines)),
        "Means over 500 steps; the twin has the same entry, rate and seed, so the same batches.", own_legend=True,
    )  # fmt: skip
    chart.rule(y=0.0)
    for name, line in lines.items():
        chart.line(name, line)
    return chart


def steps(traces: Rows) -> list[float]:
    return [float(row["step"]) for rows in traces.values() for row in rows]


def main(experiment: Path, chosen: Sequence[str]) -> int:
    kept = [json.loads(line) for line in (experiment / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    runs = {run["run"]: run for run in kept if not chosen or run["run"] in chosen}
    traces = {name: rows for name, rows in read_traces(experiment).items() if name in runs}
    if not traces or not runs.keys() >= set(chosen):
        print(f"{experiment} has no such runs, or none with a ceiling: name runs as traces.csv does", file=sys.stderr)
        return 2
    y = Axis.around(
        [float(row["proposal_p50"]) for rows in traces.values() for row in rows], log=True, title="|v| / |x|"
    )
    over = [chart for chart in (draw_shares(traces, runs), draw_gaps(runs)) if chart]
    ratios = [draw_ratio(rows, runs[name], y) for name, rows in traces.items()]
    (experiment / "figures").mkdir(exist_ok=True)
    for name, charts in {"course": over, "ratio": ratios}.items():
        print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / f"{name}.svg"))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=folder_with("results.jsonl", "traces.csv"), help="folder of an experiment")
    parser.add_argument("runs", metavar="RUN", nargs="*", help="names of runs; all where none is given")
    words = parser.parse_args()
    sys.exit(main(words.experiment, words.runs))
