"""The README's table: final runs of a results.jsonl beside step times, to one baseline or two.

    python experiments/003-zoo/table.py [results.jsonl [step times [baseline ...]]]

Step times are the rows of a `geonorm bench train`. The first baseline has p and the moderated interval beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from geonorm.lab.statistics.comparison import aggregate
from geonorm.report.tables import chances, moderated_difference, paired_difference

HERE = Path(__file__).parent
COST = HERE.parents[1] / "benchmarks" / "results" / "scheme_cost.json"
NOTES = {"keel", "angpt"}
"""Known here from notes alone."""
SHORT = {
    "geonorm(decay=constant, max_angle=pi, decay_on=update, retraction=projection, learn=step)": "SpheretNorm form",
    "first(a=hybrid(input=norm), b=hybrid)": "first(hybrid(input=norm), hybrid)",
}
BASELINES = ("pre", "pre(entry=embedding)")


def step_times(file: Path) -> dict[str, list[float]]:
    """Ratio to `pre` with its interval, of each scheme in eager mode; 001's file is of an older layout."""
    rows: Any = json.loads(file.read_text(encoding="utf-8"))["rows"]
    if isinstance(rows, list):
        return {row["scheme"]: row["ratio"] for row in rows}
    end = " / pre eager fp32"
    found = {name.removesuffix(end): row for name, row in rows.items() if name.endswith(end)}
    return {name: [row["ratio"], row["low"], row["high"]] for name, row in found.items()}


def main(results: Path, cost: Path, *baselines: str) -> None:
    runs = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    tables = [{row["scheme"]: row for row in aggregate(runs, baseline=name)} for name in baselines]
    ratios = step_times(cost)
    titles = [f"difference to `{name}` (95 %)" for name in baselines]
    titles[1:1] = ["p, by Holm", "moderated (95 %)"]
    head = ["scheme", "n", "validation loss, mean ± sd", *titles, "lr", "step time / `pre`"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for row in sorted(tables[0].values(), key=lambda row: row["val_loss_mean"]):
        name = row["scheme"]
        ratio = ratios.get(name)
        differences = [paired_difference(table[name]) for table in tables]
        differences[1:1] = [chances(row), moderated_difference(row)]
        cells = [
            f"`{SHORT.get(name, name)}`" + (" (notes)" if name in NOTES else ""),
            row["n"],
            f"{row['val_loss_mean']:.4f} ± {row['val_loss_std']:.4f}",
            *differences,
            f"{row['lr']:g}",
            "1" if name == "pre" else f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else "–",
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    results, cost = [*map(Path, sys.argv[1:3]), *(HERE / "results.jsonl", COST)[len(sys.argv[1:3]) :]]
    main(results, cost, *(sys.argv[3:] or BASELINES))
