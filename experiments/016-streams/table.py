"""The tables and figures of 016, from its results.jsonl and traces.csv.

    python experiments/016-streams/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: for each regime every row at its best
rate, its difference to the regime's baseline paired by seed, with p adjusted by Holm for the rows of all regimes; what
output matrices that start at 0 change of each scheme on the sphere; what a unit tangent changes of GeoNorm; the
differences as a figure, and loss against rate.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Cells, Runs, at_best, describe, judge, write
from programme import read_runs
from runs import CELLS, SPHERE

from geonorm.lab.runs.records import ComparisonRow
from geonorm.report.tables import markdown_lines

UNIT = {
    "plain": ("geonorm(update=unit)", "geonorm", "pre"),
    "zero": ("geonorm(update=unit)", "geonorm", "pre"),
    "neox": ("geonorm(entry=embedding, update=unit)", "geonorm(entry=embedding)", "pre(entry=embedding)"),
    "modern": ("geonorm(update=unit)", "geonorm", "lambdas"),
}
"""By regime: GeoNorm with a unit tangent, without, the baseline."""
Losses = Mapping[tuple[str, str], Mapping[int, float]]
"""By regime and scheme, then by seed, at the best rate."""


def read_regimes(experiment: Path) -> dict[str, Runs]:
    """Runs by regime, its baseline first."""
    runs, found = read_runs(experiment), {}
    for cell, (_, schemes) in CELLS.items():
        own = [run for run in runs if run.run.startswith(f"{cell}-") and run.scheme in schemes]
        found[cell] = sorted(own, key=lambda run: run.scheme != schemes[0])
    return {cell: own for cell, own in found.items() if own and own[0].scheme == CELLS[cell][1][0]}


def losses_of(regimes: Cells, judged: Mapping[str, Sequence[ComparisonRow]]) -> Losses:
    return {
        (cell, row.scheme): {seed: run.val_loss for seed, run in at_best(regimes[cell], row).items()}
        for cell, rows in judged.items()
        for row in rows
    }


def gaps(losses: Losses, cell: str, first: str, second: str) -> dict[int, float]:
    """By seed, the loss of the first scheme less that of the second."""
    own, other = losses.get((cell, first), {}), losses.get((cell, second), {})
    return {seed: own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())}


def cross(losses: Losses) -> list[str]:
    """Of each scheme on the sphere: its difference to `pre` where outputs start at 0, less the same where they are
    drawn, paired by seed."""
    lines = []
    for scheme in SPHERE:
        zero, plain = (gaps(losses, cell, scheme, "pre") for cell in ("zero", "plain"))
        if seeds := zero.keys() & plain.keys():
            lines.append([scheme, *describe([zero[seed] - plain[seed] for seed in sorted(seeds)])])
    return markdown_lines(("scheme", "zero less plain (95 %)", "p", "n"), lines) if lines else []


def tell_unit(losses: Losses) -> list[str]:
    """GeoNorm with a unit tangent less GeoNorm and less the baseline, by regime; then the mean of the regimes with
    AdamW, seed by seed: a seed is one observation, in however many regimes it ran."""
    lines = []
    for name, second in (("geonorm", 1), ("the baseline", 2)):
        found = {}
        for cell, schemes in UNIT.items():
            if own := gaps(losses, cell, schemes[0], schemes[second]):
                found[cell] = own
                lines.append([cell, name, *describe(list(own.values()))])
        adamw = [own for cell, own in found.items() if cell != "modern"]
        seeds = set.intersection(*map(set, adamw)) if len(adamw) > 1 else set()
        if seeds:
            means = [fmean(own[seed] for own in adamw) for seed in sorted(seeds)]
            lines.append([f"all {len(adamw)} with AdamW", name, *describe(means)])
    return markdown_lines(("regime", "unit tangent less", "nats per token (95 %)", "p", "n"), lines) if lines else []


def main(experiment: Path) -> None:
    regimes = read_regimes(experiment)
    losses = losses_of(regimes, judge(regimes))
    parts = {"Outputs that start at 0": cross(losses), "A unit tangent": tell_unit(losses)}
    write(experiment, regimes, [f"## {title}\n\n" + "\n".join(lines) for title, lines in parts.items() if lines])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
