"""The table and figures of 013, from its results.jsonl and the rows that it takes from 016.

    python experiments/013-candidate/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: every row at its best rate, its
difference to `pre` paired by seed, with p adjusted by Holm; then the variants in the order of their losses, by the
seeds that all of them have, of which the first is the candidate.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Runs, at_best, judge, read_clamped, read_runs, write
from runs import KNOWN, SEEDS, VARIANTS, with_fields

from geonorm.report.columns import markdown_lines
from geonorm.schemes import parse

STREAMS = Path(__file__).parents[1] / "016-streams"
SELECTION = "selection"


def read_selection(experiment: Path, other: Path) -> Runs:
    """Own runs, and those of KNOWN in the regime `plain` of the other experiment, the baseline first."""
    known = [run for run in read_runs(other) if run["run"].startswith("plain-") and run["scheme"] in KNOWN]
    own = [run for run in read_runs(experiment) if run["run"].startswith("select-")]
    return sorted([*known, *own], key=lambda run: run["scheme"] != KNOWN[0])


def rank(runs: Runs) -> list[str]:
    """Of the variants: mean loss at the best rate over the seeds that all of them have."""
    wanted = {str(parse(name)) for name in (*KNOWN[3:], *map(with_fields, VARIANTS))}
    found = []
    for row in judge({SELECTION: runs})[SELECTION]:
        ends = at_best(runs, row)
        if row["scheme"] in wanted and set(range(SEEDS)) <= ends.keys():
            losses = [ends[seed]["val_loss"] for seed in range(SEEDS)]
            found.append((fmean(losses), row["scheme"], ", ".join(f"{loss:.4f}" for loss in losses)))
    return markdown_lines(
        ("variant", f"mean of {SEEDS} seeds", "seed by seed"),
        [[scheme, f"{mean:.4f}", each] for mean, scheme, each in sorted(found)],
    )


def main(experiment: Path, other: Path = STREAMS) -> None:
    runs = read_selection(experiment, other)
    clamped = read_clamped(other) | read_clamped(experiment)
    write(experiment, {SELECTION: runs}, ["## Candidates\n\n" + "\n".join(rank(runs))], clamped=clamped)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
