"""Tables and figures of an experiment whose runs fall into cells, each with a baseline of its own.

A cell is a list of runs, those of its baseline first; what is compared in it is `scheme`. Every row stands at its best
rate, its difference to the baseline paired by seed, with p adjusted by Holm for the rows of all cells together.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from curves import DRAWN, draw_losses

from geonorm.lab.runs.records import ComparisonRow, Summary
from geonorm.lab.statistics.comparison import aggregate, paired_interval, usable
from geonorm.lab.statistics.moderated import holm
from geonorm.report.charts import Chart, Figure, figure, strip_chart
from geonorm.report.comparison_charts import difference_strip
from geonorm.report.style import Look, looks
from geonorm.report.tables import (
    chances,
    endings,
    learning_rate,
    markdown_lines,
    moderated_difference,
    paired_difference,
    spread,
    with_interval,
)

Runs = Sequence[Summary]
Cells = Mapping[Any, Runs]
HEAD = (
    "scheme", "n", "loss", "difference (95 %)", "p, Holm", "moderated (95 %)", "averaged weights", "clamped", "rate",
    "not finished",
)  # fmt: skip


Clamped = Mapping[str, Mapping[int, float]]
"""By run and step, the share of clamped tokens, mean over sites."""


def read_clamped(experiment: Path) -> dict[str, dict[int, float]]:
    """Of schemes with a ceiling alone."""
    file, found = experiment / "traces.csv", dict[str, dict[int, list[float]]]()
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()) if file.exists() else ():
        if row["clamped"]:
            found.setdefault(row["run"], {}).setdefault(int(row["step"]), []).append(float(row["clamped"]))
    return {run: {step: fmean(shares) for step, shares in sorted(steps.items())} for run, steps in found.items()}


def describe(pairs: Sequence[float]) -> list[str]:
    """Of differences: the mean with Student's interval, p, n."""
    gap = paired_interval(pairs)
    return [with_interval(*gap[:3]), "–" if gap.p is None else f"{gap.p:.2g}", str(gap.n)]


def judge(cells: Cells) -> dict[Any, list[ComparisonRow]]:
    """Each cell's rows, p adjusted for those of all cells together."""
    rows = {cell: aggregate(runs, runs[0].scheme) for cell, runs in cells.items()}
    every = [row for own in rows.values() for row in own]
    for row, p in zip(every, holm([row.p for row in every]), strict=True):
        row.p_holm = p
    return rows


def at_best(runs: Runs, row: ComparisonRow) -> dict[int, Summary]:
    """By seed, the finished runs of a row at its best rate."""
    own = [run for run in runs if run.scheme == row.scheme and run.lr == row.lr]
    return {run.seed or 0: run for run in own if usable(run)}


def clamped_at_end(runs: Mapping[int, Summary], clamped: Clamped) -> str:
    """Of tokens of all sites, mean over seeds; a dash for schemes without a ceiling."""
    known = [clamped[run.run] for run in runs.values() if run.run in clamped]
    return f"{fmean(shares[max(shares)] for shares in known):.0%}" if known else "–"


def tabulate(runs: Runs, rows: Sequence[ComparisonRow], clamped: Clamped) -> list[str]:
    """A cell's table in lines of Markdown."""
    lines = []
    for row in rows:
        own = at_best(runs, row)
        averaged = [run.val_loss_average for run in own.values() if run.val_loss_average is not None]
        lines.append(
            [
                row.scheme, str(row.n), spread(row), paired_difference(row), chances(row.p, row.p_holm),
                moderated_difference(row), f"{fmean(averaged):.4f}" if averaged else "–", clamped_at_end(own, clamped),
                learning_rate(row), endings(row) or "0",
            ]
        )  # fmt: skip
    return markdown_lines(HEAD, lines)


def draw_differences(cell: str, runs: Runs, rows: Sequence[ComparisonRow], shared: Mapping[str, Look]) -> Chart | None:
    """Of a cell's rows, seed by seed, with intervals; a scheme looks the same in all cells."""
    high = DRAWN * min((row.val_loss_mean for row in rows if row.n), default=0.0)
    base, others = rows[0], [row for row in rows[1:] if row.difference is not None and row.val_loss_mean <= high]
    if not others:
        return None
    first = {seed: run.val_loss for seed, run in at_best(runs, base).items()}
    strips = []
    for row in others:
        ends = at_best(runs, row)
        dots = [(run.val_loss - first[seed], f"seed {seed}") for seed, run in ends.items() if seed in first]
        strips.append(difference_strip(row, dots))
    unit = f"difference to {base.scheme}, nats per token (left of 0 is better)"
    return strip_chart(cell, unit, strips, shared, "One mark a seed; bars: 95 %.", rule=0.0)


def write(
    experiment: Path,
    cells: Cells,
    parts: Sequence[str] = (),
    more: Mapping[str, Sequence[Chart]] = {},
    clamped: Clamped | None = None,
    judged: Mapping[Any, Sequence[ComparisonRow]] | None = None,
) -> None:
    """table.md: a table for each cell, then these parts. figures/: differences, loss against rate, and these. clamped:
    where runs of another experiment are among them. judged: where p is not adjusted for all cells together."""
    judged, clamped = judged or judge(cells), read_clamped(experiment) if clamped is None else clamped
    tables = [f"## {cell}\n\n" + "\n".join(tabulate(cells[cell], rows, clamped)) for cell, rows in judged.items()]
    (experiment / "table.md").write_text("\n\n".join([*tables, *parts]) + "\n", encoding="utf-8")
    print(experiment / "table.md")
    shared = looks(list(dict.fromkeys(row.scheme for rows in judged.values() for row in rows)))
    gaps = [draw_differences(cell, cells[cell], rows, shared) for cell, rows in judged.items()]
    drawn = {
        "differences": [chart for chart in gaps if chart],
        "rates": [
            draw_losses(cell, "nats per token", runs, shared) for cell, runs in cells.items() if any(map(usable, runs))
        ],
        **more,
    }
    (experiment / "figures").mkdir(exist_ok=True)
    for name, charts in drawn.items():
        if charts:
            print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / f"{name}.svg"))
