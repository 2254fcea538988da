"""The tables and figures of 016, from its results.jsonl and traces.csv.

    python experiments/016-streams/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: for each regime every row at its best
rate, its difference to the regime's baseline paired by seed, with p adjusted by Holm for the rows of all regimes; what
output matrices that start at 0 change of each scheme on the sphere; the differences as a figure, and loss against rate.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Cells, Runs, at_best, judge, read_runs, write
from runs import CELLS, SPHERE

from geonorm.lab.runs.statistics import Row, paired_interval
from geonorm.report.columns import markdown_lines
from geonorm.report.style import signed


def read_regimes(experiment: Path) -> dict[str, Runs]:
    """Runs by regime, its baseline first."""
    runs, found = read_runs(experiment), {}
    for cell, (_, schemes) in CELLS.items():
        own = [run for run in runs if run["run"].startswith(f"{cell}-")]
        found[cell] = sorted(own, key=lambda run: run["scheme"] != schemes[0])
    return {cell: own for cell, own in found.items() if own and own[0]["scheme"] == CELLS[cell][1][0]}


def cross(regimes: Cells, judged: Mapping[str, Sequence[Row]]) -> list[str]:
    """Of each scheme on the sphere: its difference to `pre` where outputs start at 0, less the same where they are
    drawn, paired by seed."""
    losses: dict[tuple[str, str], dict[int, float]] = {}
    for cell in ("zero", "plain"):
        for row in judged.get(cell, ()):
            losses[cell, row["scheme"]] = {n: run["val_loss"] for n, run in at_best(regimes[cell], row).items()}
    lines = []
    for scheme in SPHERE:
        four = [losses.get((cell, name), {}) for cell in ("zero", "plain") for name in (scheme, "pre")]
        seeds = sorted(set.intersection(*map(set, four)))
        if seeds:
            zero, zero_base, plain, base = ([each[seed] for seed in seeds] for each in four)
            gap = paired_interval([a - b - c + d for a, b, c, d in zip(zero, zero_base, plain, base, strict=True)])
            ends = "" if gap.low is None else f" ({signed(gap.low)} to {signed(gap.high or 0.0)})"
            lines.append([scheme, signed(gap.mean) + ends, "–" if gap.p is None else f"{gap.p:.2g}", str(gap.n)])
    return markdown_lines(("scheme", "zero less plain (95 %)", "p", "n"), lines) if lines else []


def main(experiment: Path) -> None:
    regimes = read_regimes(experiment)
    crossed = cross(regimes, judge(regimes))
    parts = ["## Outputs that start at 0\n\n" + "\n".join(crossed)] if crossed else []
    write(experiment, regimes, parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
