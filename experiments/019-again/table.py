"""The tables and figures of 019, from its results.jsonl and traces.csv.

    python experiments/019-again/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: for each length every scheme at its
best rate, its difference to `pre` paired by seed; the two entries of `pre` and `geonorm` crossed; and the minima of
parabolas through all runs of a scheme.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Cells, Runs, at_best, describe, judge, write
from curves import tabulate_minima
from programme import read_runs
from runs import LENGTHS

from geonorm.lab.runs.records import ComparisonRow
from geonorm.lab.statistics.comparison import usable
from geonorm.report.style import rate, signed
from geonorm.report.tables import markdown_lines

BASE = "pre"
ENTRIES = (
    ("geonorm", "pre"),
    ("geonorm(entry=embedding)", "pre(entry=embedding)"),
    ("geonorm", "pre(entry=embedding)"),
    ("pre(entry=embedding)", "pre"),
    ("geonorm(entry=embedding)", "geonorm"),
)
"""What is told of the two entries: the first less the second."""


def read_lengths(experiment: Path) -> dict[str, Runs]:
    """Runs by length, those of the baseline first."""
    runs, found = read_runs(experiment), dict[str, Runs]()
    for tokens in LENGTHS:
        own = sorted((run for run in runs if run.run.startswith(f"{tokens}-")), key=lambda run: run.scheme != BASE)
        if own and own[0].scheme == BASE:
            found[f"{tokens} tokens"] = own
    return found


def cross(lengths: Cells, judged: Mapping[str, Sequence[ComparisonRow]]) -> list[str]:
    """The differences of ENTRIES, each scheme at its best rate, paired by seed."""
    lines = []
    for length, rows in judged.items():
        losses = {
            row.scheme: {seed: run.val_loss for seed, run in at_best(lengths[length], row).items()} for row in rows
        }
        for first, second in ENTRIES:
            own, other = losses.get(first, {}), losses.get(second, {})
            if not (seeds := sorted(own.keys() & other.keys())):
                continue
            lines.append([length, f"{first} less {second}", *describe([own[seed] - other[seed] for seed in seeds])])
    return markdown_lines(("length", "difference", "nats per token (95 %)", "p", "n"), lines) if lines else []


def gain_by_rate(lengths: Cells, scheme: str = "post", lr: float = 6e-3) -> str | None:
    """What the best rate gives a scheme that had another one in 001, seed 0 of the longer runs; None before both are
    there."""
    runs = next(iter(lengths.values()), ())
    losses = {run.lr: run.val_loss for run in runs if run.scheme == scheme and run.seed == 0 and usable(run)}
    if lr not in losses:
        return None
    best = min(losses, key=losses.__getitem__)
    return (
        f"`{scheme}` at {rate(best)} less at {rate(lr)}, its rate in 001, seed 0: {signed(losses[best] - losses[lr])}."
    )


def main(experiment: Path) -> None:
    lengths = read_lengths(experiment)
    parts = ["## Entries\n\n" + "\n".join(crossed)] if (crossed := cross(lengths, judge(lengths))) else []
    if gain := gain_by_rate(lengths):
        parts.append(f"## The rate of 001\n\n{gain}")
    for length, runs in lengths.items():
        if minima := tabulate_minima(runs):
            parts.append(f"## Fitted minima, {length}\n\n" + "\n".join(minima))
    write(experiment, lengths, parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
