"""Draws what the clamp does in the runs of an experiment, from its results.jsonl and traces.csv.

    python experiments/clamp.py experiments/017-paper-recipe

One chart a scheme, one line a run, by rate. figures/clamped.svg: the share of clamped updates over training.
figures/ratio.svg: for the first seed of each scheme and rate the ratio |v|/|x| site by site, v the tangential part of
what the sub-layer proposes, median over tokens: above the dashed line it is clamped.
"""

import argparse
import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from programme import folder_with, read_kept, shorten

from geonorm.lab.runs.folder import slug
from geonorm.lab.runs.records import Summary
from geonorm.report.charts import Axis, Chart, figure
from geonorm.report.render import Figure
from geonorm.report.style import Look, ramp, rate
from geonorm.schemes import parse

Rows = dict[str, list[dict[str, str]]]
STEPS = "optimizer step"


def read_traces(experiment: Path) -> Rows:
    """Rows of traces.csv by run, of the runs that have a clamp and are not at it by definition."""
    found: Rows = {}
    with (experiment / "traces.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["clamped"]:
                found.setdefault(row["run"], []).append(row)
    return {run: rows for run, rows in found.items() if any(float(row["clamped"]) < 1 for row in rows)}


def name_row(run: Summary) -> str:
    """What a run shares with those at other rates and seeds: its scheme and what else its name says."""
    rest = str(run.run).rpartition("-lr")[0].replace(slug(run.scheme), "", 1)
    marks = [mark for mark in rest.split("-") if mark not in ("", "books")]
    return ", ".join([shorten(run.scheme), *marks])


def draw_shares(traces: Rows, runs: Mapping[str, Summary]) -> list[Chart]:
    """A chart for each row: its runs, each with the name of its rate, which looks the same in all."""
    lines: dict[str, list[tuple[str, list[tuple[float, float]]]]] = {}
    for name, rows in traces.items():
        at: dict[int, list[float]] = {}
        for row in rows:
            at.setdefault(int(row["step"]), []).append(float(row["clamped"]))
        course = [(float(step), mean(shares)) for step, shares in sorted(at.items())]
        lines.setdefault(name_row(runs[name]), []).append((rate(runs[name].lr), course))
    x = Axis.around([float(row["step"]) for rows in traces.values() for row in rows], log=True, title=STEPS)
    rates = ramp(sorted({lr for row in lines.values() for lr, _ in row}, key=float))
    charts = []
    for title, courses in lines.items():
        chart = Chart(title, x, Axis(0, 1.02, title="share of clamped updates"), rates, width=260)
        for lr, line in courses:
            chart.line(lr, line)
        charts.append(chart)
    return charts


def clamp_of(scheme: str) -> float:
    """What the ratio of a proposal is compared with; NaN where that is another number."""
    rule = parse(scheme)
    hard = [getattr(rule, name, "") for name in ("retraction", "decay_on")] == ["exp", "angle"]
    return float(getattr(rule, "max_angle", math.nan)) if hard else math.nan


def draw_ratio(rows: Sequence[Mapping[str, str]], run: Summary, y: Axis) -> Chart:
    blocks = sorted({int(row["layer"]) for row in rows})
    colours = ramp([f"block {block + 1}" for block in blocks])
    sites: dict[str, Look] = {}
    for name, look in colours.items():
        sites[f"{name}, attn"] = look
        sites[f"{name}, MLP"] = Look(look.light, look.dark, "4 3", "square")
    x = Axis.around([int(row["step"]) for row in rows], log=True, title=STEPS)
    clamp = clamp_of(run.scheme)
    hard = not math.isnan(clamp)
    note = "Median over tokens" + ("; clamped above the dashed line." if hard else ".")
    chart = Chart(f"{rate(run.lr)} {name_row(run)}", x, y, sites, note, width=260)
    if hard:
        chart.rule(y=clamp)
    for site in sites:
        block, kind = site.removeprefix("block ").split(", ")
        place = str(int(block) - 1), "mlp" if kind == "MLP" else "attn"
        own = [row for row in rows if (row["layer"], row["kind"]) == place]
        chart.line(site, [(int(row["step"]), float(row["proposal_p50"])) for row in own])
    return chart


def main(experiment: Path) -> int:
    runs, traces = read_kept(experiment), read_traces(experiment)
    if not traces:
        print(f"{experiment} has no runs with a clamp", file=sys.stderr)
        return 2
    values = [float(row["proposal_p50"]) for rows in traces.values() for row in rows]
    y = Axis.around(values, log=True, title="|v| / |x|")
    first: dict[tuple[str, float | None], str] = {}
    for name in sorted(traces, key=lambda name: runs[name].seed or 0):
        first.setdefault((name_row(runs[name]), runs[name].lr), name)
    ratios = [draw_ratio(traces[name], runs[name], y) for _, name in sorted(first.items())]
    for name, charts in {"clamped": draw_shares(traces, runs), "ratio": ratios}.items():
        print(Figure(figure(charts)).save(experiment / "figures" / f"{name}.svg"))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=folder_with("results.jsonl", "traces.csv"), help="folder of an experiment")
    sys.exit(main(parser.parse_args().experiment))
