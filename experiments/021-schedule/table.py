"""The tables and figures of 021, from its results.jsonl.

    python experiments/021-schedule/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: GeoNorm and Pre-Norm under both
schedules, each at its best rate; what the schedule does to their difference; and what either half of the rates, which
are octaves, would have said of it alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Runs, at_best, describe, write
from curves import draw_losses
from programme import read_runs
from runs import RAW, SCHEDULES, SPHERE

from geonorm.lab.statistics.comparison import aggregate, usable
from geonorm.report.style import rate
from geonorm.report.tables import markdown_lines, paired_difference

ENTRIES = {"raw embedding": RAW, "norm after the embedding": SPHERE}
Cells = Mapping[tuple[str, str], Runs]
"""By entry and schedule."""


def read_cells(experiment: Path) -> Cells:
    """The runs of Pre-Norm, then those of GeoNorm; cells in which both have one that ended."""
    runs = read_runs(experiment)
    found = {
        (entry, schedule): [
            run for scheme in schemes for run in runs if run.scheme == scheme and run.run.startswith(f"{schedule}-")
        ]
        for (entry, schemes), schedule in product(ENTRIES.items(), SCHEDULES)
    }
    return {cell: own for cell, own in found.items() if len({run.scheme for run in own if usable(run)}) == 2}


def find_gaps(runs: Runs) -> dict[int, float]:
    """GeoNorm less Pre-Norm, each at its best rate, by seed."""
    base, own = (at_best(runs, row) for row in aggregate(runs, runs[0].scheme))
    return {seed: own[seed].val_loss - base[seed].val_loss for seed in own if seed in base}


def tabulate_schedules(cells: Cells) -> list[str]:
    """What a cosine in the place of a constant rate with a cool-down does to each scheme and to their difference."""
    lines = []
    for entry in ENTRIES:
        if not all((entry, schedule) in cells for schedule in SCHEDULES):
            continue
        rows = {schedule: aggregate(cells[entry, schedule], cells[entry, schedule][0].scheme) for schedule in SCHEDULES}
        for place in range(2):
            cosine, constant = (at_best(cells[entry, schedule], rows[schedule][place]) for schedule in SCHEDULES)
            shared = [seed for seed in cosine if seed in constant]
            told = describe([cosine[seed].val_loss - constant[seed].val_loss for seed in shared])
            lines.append([entry, rows["cosine"][place].scheme, *told])
        cosine_gaps, constant_gaps = (find_gaps(cells[entry, schedule]) for schedule in SCHEDULES)
        gaps = [cosine_gaps[seed] - constant_gaps[seed] for seed in cosine_gaps if seed in constant_gaps]
        lines.append([entry, "GeoNorm less Pre-Norm", *describe(gaps)])
    return markdown_lines(("entry", "loss of", "cosine less constant (95 %)", "p", "n"), lines)


def tabulate_octaves(cells: Cells) -> list[str]:
    """GeoNorm less Pre-Norm, each at the best of every other rate: what a search by octaves would have found."""
    lines = []
    for (entry, schedule), runs in cells.items():
        rates = sorted({run.lr for run in runs})
        for start in range(2):
            kept = [run for run in runs if run.lr in rates[start::2]]
            if len({run.scheme for run in kept if usable(run)}) == 2:
                base, own = aggregate(kept, kept[0].scheme)
                told = (", ".join(map(rate, rates[start::2])), rate(base.lr), rate(own.lr))
                lines.append([entry, schedule, *told, paired_difference(own), str(own.pairs)])
    titles = ("entry", "schedule", "rates", "best of Pre-Norm", "of GeoNorm", "GeoNorm less Pre-Norm (95 %)", "n")
    return markdown_lines(titles, lines)


def main(experiment: Path) -> None:
    cells = read_cells(experiment)
    parts = {"The schedule": tabulate_schedules(cells), "Octaves alone": tabulate_octaves(cells)}
    text = [f"## {title}\n\n" + "\n".join(lines) for title, lines in parts.items()]
    curves = [
        draw_losses(entry.capitalize(), "nats per token", [
            replace(run, scheme=f"{run.scheme}, {schedule}")
            for (own, schedule), runs in cells.items() if own == entry for run in runs
        ])
        for entry in dict.fromkeys(entry for entry, _ in cells)
    ]  # fmt: skip
    named = {f"{entry}, {schedule}": runs for (entry, schedule), runs in cells.items()}
    write(experiment, named, text, {"rates": curves})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
