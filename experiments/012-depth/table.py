"""The tables and figures of 012, from its results.jsonl, traces.csv and probes.csv.

    python experiments/012-depth/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: for each depth every scheme at its best
rate and its difference to `pre`; for each scheme what depth is worth, with intervals under the spread of all rows; and
how the use of blocks and the gradient of their weights fall over depth, as powers of the block's number.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Runs, at_best, judge, write
from curves import DRAWN
from programme import read_runs
from runs import LAYERS, NAMES, RATES

from geonorm.lab.runs.records import ComparisonRow
from geonorm.lab.statistics.moderated import Estimate, Prior, contrast, fit_prior, moderate
from geonorm.report.charts import Axis, Chart
from geonorm.report.style import looks
from geonorm.report.tables import markdown_lines, with_interval

BASE = "pre"
Rows = Mapping[str, Sequence[ComparisonRow]]


def read_depths(experiment: Path) -> dict[str, Runs]:
    """Runs by depth, the shallowest first; what has a number of its own at each depth has one name."""
    found: dict[str, Runs] = {}
    runs = read_runs(experiment)
    for layers in sorted(LAYERS):
        own = [run for run in runs if run.run.startswith(f"{layers}-")]
        names = {make(layers): name for name, make in NAMES.items()}
        named = (replace(run, scheme=names.get(run.scheme, run.scheme)) for run in own)
        ordered = sorted(named, key=lambda run: run.scheme != BASE)
        if ordered and ordered[0].scheme == BASE:
            found[f"{layers} blocks"] = ordered
    return found


def at_depths(depths: Mapping[str, Runs], judged: Rows) -> dict[str, dict[str, ComparisonRow]]:
    """By scheme, its rows by depth, where all rates are known: one rate says nothing of the best."""
    found: dict[str, dict[str, ComparisonRow]] = {}
    for depth, rows in judged.items():
        for row in rows:
            tried = {run.lr for run in depths[depth] if run.scheme == row.scheme}
            if row.n and tried >= set(RATES):
                found.setdefault(row.scheme, {})[depth] = row
    return found


def tabulate_depth(depths: Mapping[str, Runs], judged: Rows) -> list[str]:
    """Of every scheme the change of loss from each depth to the next, each at its best rate."""
    spreads = [row for rows in judged.values() for row in rows if row.val_loss_std]
    prior = fit_prior([row.val_loss_std**2 for row in spreads], [row.n - 1 for row in spreads])
    lines = []
    for scheme, rows in at_depths(depths, judged).items():
        cells = []
        for fewer, more in pairwise(judged):
            if fewer not in rows or more not in rows:
                cells.append("–")
                continue
            gap: Sequence[float | None] = (rows[more].val_loss_mean - rows[fewer].val_loss_mean, None, None)
            if prior:
                gap = contrast(estimate(rows[more], prior), estimate(rows[fewer], prior), prior.total)[:3]
            cells.append(with_interval(*gap))
        lines.append([scheme, *cells])
    return markdown_lines(("scheme", *(f"{a} to {b}" for a, b in pairwise(judged))), lines)


def estimate(row: Mapping[str, Any], prior: Prior) -> Estimate:
    variance, df = moderate((row.val_loss_std or 0.0) ** 2, row.n - 1, prior)
    return Estimate(row.val_loss_mean, variance / row.n, df)


def power(values: Mapping[int, float]) -> float | None:
    """p of value ~ t^-p, a line through the logarithms over the blocks t = 2, 3, ... whose value is above 0."""
    points = [(log(block + 1), log(value)) for block, value in values.items() if block > 0 and value > 0]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return -float(np.polyfit(xs, ys, 1)[0]) if len(points) > 2 else None


def tabulate_use(experiment: Path, depths: Mapping[str, Runs], judged: Rows) -> list[str]:
    """At every step that was probed, of runs at the best rate: powers of the use of a block and of the gradient of its
    MLP, mean over seeds."""
    file = experiment / "probes.csv"
    if not file.exists():
        return []
    use: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
    for probe in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        values = use.setdefault((probe["run"], int(probe["step"])), {"block": {}, "mlp": {}})
        if probe["kind"] in values:
            values[probe["kind"]][int(probe["layer"])] = float(
                probe["worth"] if probe["kind"] == "block" else probe["grad_norm"]
            )
    lines = []
    for depth, rows in judged.items():
        for row in rows:
            names = {run.run for run in at_best(depths[depth], row).values()}
            for step in sorted({step for name, step in use if name in names}):
                probed = [found for (name, at), found in use.items() if name in names and at == step]
                cells = []
                for kind in ("block", "mlp"):
                    known = [value for found in probed if (value := power(found[kind])) is not None]
                    cells.append(f"{np.mean(known):.2f}" if known else "–")
                lines.append([depth, row.scheme, str(step), str(len(probed)), *cells])
    return markdown_lines(("depth", "scheme", "step", "n", "use falls as t^-", "gradient as t^-"), lines)


def draw_depth(depths: Mapping[str, Runs], judged: Rows) -> Chart:
    """Loss at the best rate against depth."""
    lines = {
        scheme: [(float(depth.partition(" ")[0]), row.val_loss_mean) for depth, row in rows.items()]
        for scheme, rows in at_depths(depths, judged).items()
    }
    points = [point for line in lines.values() for point in line]
    high = DRAWN * min(y for _, y in points)
    chart = Chart(
        "Loss against depth", Axis.around([x for x, _ in points], log=True, title="blocks", labels=sorted(LAYERS)),
        Axis.around([y for _, y in points if y <= high], title="loss (nats per token)"), looks(list(lines)),
        "Each at its best rate; means over seeds.", legend=True,
    )  # fmt: skip
    for scheme, line in lines.items():
        chart.line(scheme, line)
        for x, y in line:
            chart.mark(scheme, x, y, f"{scheme}, {x:g} blocks: {y:.4f}")
    return chart


def main(experiment: Path) -> None:
    depths = read_depths(experiment)
    judged = judge(depths)
    parts = ["## What depth is worth\n\n" + "\n".join(tabulate_depth(depths, judged))]
    if used := tabulate_use(experiment, depths, judged):
        parts.append("## Which blocks are used\n\n" + "\n".join(used))
    write(experiment, depths, parts, {"depth": [draw_depth(depths, judged)]})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
