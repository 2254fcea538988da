"""What the report says of a comparison over a grid of settings: loss against each, and every cell in a table."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path

from ..lab.runs.statistics import ending
from .checks import SEEDS_FOR_A_CLAIM, early, name_irregular_runs, name_other_sizes
from .columns import align, fit_width, wrap_all
from .page import Cells, Part, Section, html_table
from .runs import repeat_elsewhere
from .source import SavedTables
from .style import figures
from .tables import LIMITS, WIDTH, count, endings, learning_rate, outdated, paired_difference, spread, unfinished
from .vega import NUMBER, Axis, Chart, figure_specs
from .whole import Record, read_whole, refuse_damaged

NOTE = (
    "Mean ± standard deviation over seeds, each scheme at its best learning rate in its cell. Differences are to the "
    "first scheme of the same cell, paired by seed, with their 95 % interval; nothing is adjusted for the number of "
    "cells, so that the best of many looks better than it is."
)


@dataclass(frozen=True)
class SavedGrid(SavedTables):
    """The directory of a comparison over a grid: its results.json, of the curves that are shown."""

    @property
    def rows(self) -> list[Record]:
        return [row for row in self.every if row["curve"] in self.shown]

    @property
    def judged(self) -> list[Record]:
        """The rows that are shown, and the baselines of their cells."""
        return [row for row in self.every if row["curve"] in self.shown or row["scheme"] == row["baseline"]]

    @property
    def every(self) -> list[Record]:
        """A row per cell and scheme: `at` its values by setting, `diverged` the runs that did at its learning rate, or
        at any where none finished."""
        runs = [run for run in self.results["runs"] if ending(run) == "diverged"]
        lost = Counter((run["scheme"], *run["cell"], lr) for run in runs for lr in (run["lr"], None))
        return [
            {**row, "at": dict(text.split("=", 1) for text in row["cell"]),
             "diverged": lost[row["scheme"], *row["cell"], row["lr"]]}
            for row in self.results["schemes"]
        ]  # fmt: skip

    @property
    def axes(self) -> dict[str, list[str]]:
        """The values of each setting in the order of numbers, or as they were named."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            for name, value in row["at"].items():
                if value not in found.setdefault(name, []):
                    found[name].append(value)
        return {name: sorted(values, key=float) if numeric(values) else values for name, values in found.items()}

    def best(self, curve: str) -> Record:
        """The cell where a curve is lowest; those in which a run diverged come after all others, as such learning rates
        do: who survives is lucky."""
        rows = [row for row in self.rows if row["curve"] == curve]
        return min(rows, key=lambda row: (not row["n"], row["diverged"] > 0, loss(row)))

    def rank(self) -> Mapping[str, float]:
        """The loss of each curve in its best cell."""
        return {name: loss(self.best(name)) for name in self.shown}


def load(path: Path) -> SavedGrid:
    """Read the directory of a comparison over a grid. GeonormError where results.json is damaged, OSError where it is
    missing."""
    with refuse_damaged(path / "results.json", "compare") as file:
        results = read_whole(file)
        found = SavedGrid(path, results, list(dict.fromkeys(row["curve"] for row in results["schemes"])))
        text_lines(found)
        return found


def numeric(values: Sequence[str]) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in values)
    except ValueError:
        return False


def loss(row: Record) -> float:
    return math.inf if row["val_loss_mean"] is None else float(row["val_loss_mean"])


def headline(found: SavedGrid, curve: str) -> str:
    """Where on the grid this scheme has its lowest loss, in one plain sentence."""
    rows = [row for row in found.rows if row["curve"] == curve]
    best = found.best(curve)
    if not best["n"]:
        return f"{curve}: {unfinished(best)}"
    axes = {name: values for name, values in found.axes.items() if numeric(values) and len(values) > 1}
    ends = [name for name, values in axes.items() if best["at"].get(name) in (values[0], values[-1])]
    edge = f"; {' and '.join(ends)} {'is' if len(ends) == 1 else 'are'} at an end of the grid" if ends else ""
    where = ", ".join(best["cell"])
    seeds = count(best["n"], "seed") + (f" ({best['diverged']} diverged)" if best["diverged"] else "")
    lost = sum(row["diverged"] > 0 for row in rows)
    last = f", of which {lost} with diverged runs come{'s' if lost == 1 else ''} last" if lost else ""
    return f"{curve} is lowest at {where}: {spread(best)} nats, {seeds}, of {count(len(rows), 'cell')}{last}{edge}"


def caveats(found: SavedGrid) -> list[str]:
    """What a reader must know before believing the table, as sentences."""
    rows, said = found.judged, outdated(found)
    counted = [row for row in rows if row["n"]]
    if (least := min((row["n"] for row in counted), default=SEEDS_FOR_A_CLAIM)) < SEEDS_FOR_A_CLAIM:
        said.append(f"{count(least, 'seed').capitalize()} at the least: a claim needs {SEEDS_FOR_A_CLAIM}.")
    for row in rows:
        if lost := endings(row):
            luck = f" ({row['diverged']} at its learning rate, which may flatter the mean)"
            flattered = row["n"] and row["diverged"]
            said.append(f"{row['curve']} at {', '.join(row['cell'])}: {lost}{luck if flattered else ''}.")
    if edges := sum(row["lr_interior"] is False for row in counted):
        said.append(f"In {edges} of {count(len(counted), 'row')} the best learning rate is an edge of those tried.")
    if any(row["lr_interior"] is None for row in counted):
        said.append("Not every cell has tried several learning rates: a setting that wants another one pays for that.")
    bases = {tuple(row["cell"]): row["parameters"] for row in counted if row["scheme"] == row["baseline"]}
    known = [(row, bases.get(tuple(row["cell"]))) for row in counted]
    sizes = ((row["curve"], row["parameters"], base) for row, base in known if row["parameters"] and base)
    said += name_other_sizes(sizes, "the baseline of its cell")
    judged = {(row["scheme"], *row["cell"]) for row in rows}
    said += name_irregular_runs([run for run in found.results["runs"] if (run["scheme"], *run["cell"]) in judged])
    return [*said, *early(counted)]


def curves(found: SavedGrid) -> list[Chart]:
    """Loss against each setting, a chart for each combination of the others."""
    axes = found.axes
    return [
        chart
        for name, values in axes.items()
        if len(values) > 1
        for others in product(*([(other, value) for value in axes[other]] for other in axes if other != name))
        for chart in draw_curve(found, name, values, dict(others))
    ]


def draw_curve(found: SavedGrid, name: str, values: Sequence[str], others: Mapping[str, str]) -> list[Chart]:
    """Loss against one setting where the others have these values; nothing where no run has finished there."""
    rows = [
        row
        for row in found.rows
        if row["val_loss_mean"] is not None and name in row["at"] and others.items() <= row["at"].items()
    ]
    if not rows:
        return []
    places = [float(value) for value in values] if numeric(values) else [float(place) for place in range(len(values))]
    log = numeric(values) and min(places) > 0 and max(places) >= 4 * min(places)
    form = NUMBER if numeric(values) else f"{json.dumps(list(values))}[datum.value]"
    x = Axis.around(places, log=log, margin=0.08, form=form, title=name, labels=places)
    ends = [row[key] for row in rows for key in ("val_loss_mean", "val_loss_low", "val_loss_high")]
    y = Axis.around([end for end in ends if end is not None], margin=0.08, title="final validation loss (nats)")
    title = f"Loss against {name}" + (f" at {', '.join(f'{k}={v}' for k, v in others.items())}" if others else "")
    note = "Means over seeds; the band is the 95 % interval of each." + (" Logarithmic scale." if log else "")
    chart = Chart(title, x, y, found.looks, note)
    for curve in found.shown:
        here = {row["at"][name]: row for row in rows if row["curve"] == curve}
        line = [(place, here[value]) for place, value in zip(places, values, strict=True) if value in here]
        known = [(place, row) for place, row in line if row["val_loss_low"] is not None]
        chart.band(curve, [(place, row["val_loss_low"], row["val_loss_high"]) for place, row in known])
        chart.line(curve, [(place, row["val_loss_mean"]) for place, row in line])
        for place, row in line:
            label = f"{row['scheme']} · {', '.join(row['cell'])}: {figures(row['val_loss_mean'])}, n = {row['n']}"
            chart.mark(curve, place, row["val_loss_mean"], label)
    return [chart]


def table(found: SavedGrid) -> tuple[list[str], Cells]:
    """Every cell and scheme."""
    axes = list(found.axes)
    titles = ["scheme", *axes, "n", "val loss", "difference (95 %)", "lr", "not finished"]
    cells = [
        [row["curve"], *(row["at"].get(name, "–") for name in axes), str(row["n"]), spread(row), paired_difference(row),
         learning_rate(row), endings(row) or "0"]
        for row in found.rows
    ]  # fmt: skip
    return titles, cells


def text_lines(found: SavedGrid, width: int = WIDTH) -> list[str]:
    """The table, whose settings go by their last names where these differ, a sentence per scheme, and what
    limits them."""
    (scheme, *titles, _), cells = table(found)
    last = [name.rpartition(".")[2] for name in titles]
    heads = last if len(set(last)) == len(last) else titles
    lines = align(fit_width([[scheme, *heads], *(row[:-1] for row in cells)], width))
    said = [headline(found, curve) for curve in found.shown]
    if limited := caveats(found):
        said += ["", f"{LIMITS}:", *(f"- {limit}" for limit in limited)]
    return [*lines, "", *wrap_all(said, width)]


def report_grid(found: SavedGrid, place: Mapping[str, int]) -> Part:
    """`place`: where each curve stands in the legend."""
    name, drawn = found.path.resolve().name, curves(found)
    sizes = " x ".join(str(len(values)) for values in found.axes.values())
    caption = f"{sizes} cells: " + ", ".join(" ".join([axis, *values]) for axis, values in found.axes.items())
    nothing = "<p>No run finished with a validation loss, so there is nothing to draw yet.</p>"
    return Part(
        source=name,
        title=f"Grid: {name}",
        caption=caption,
        findings=[(curve, headline(found, curve)) for curve in found.shown],
        keys=found.keys,
        sections=[
            Section("Loss over the grid", [drawn or nothing]),
            Section("Table", [html_table(*table(found), place), f"<p>{escape(NOTE)}</p>"]),
            Section("Repeat it", [f"<pre>{escape(repeat_elsewhere(found.results.get('command')))}</pre>"]),
        ],
        limits=caveats(found),
        limits_title=LIMITS,
        tables=[table(found)],
        records=[row | row["at"] for row in found.rows],
        figures=figure_specs({"grid": drawn}, caption),
    )
