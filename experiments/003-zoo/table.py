"""The README's table: final runs of results.jsonl beside the step times of benchmarks/results/scheme_cost.json.

python experiments/003-zoo/table.py [results.jsonl [baseline]]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from geonorm.lab.statistics import aggregate

HERE = Path(__file__).parent
COST = HERE.parents[1] / "benchmarks" / "results" / "scheme_cost.json"
NOTES = {"keel", "angpt"}
"""Known here from notes alone."""
SHORT = {
    "geonorm(decay=constant, max_angle=pi, decay_on=update, retraction=projection, learn=step)": "SpheretNorm form",
    "first(a=hybrid(input=norm), b=hybrid)": "first(hybrid(input=norm), hybrid)",
}


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}") if round(value, 3) else "0.000"


def main(results: Path, baseline: str = "pre") -> None:
    rows = aggregate([json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()], baseline=baseline)
    cost = {row["scheme"]: row["ratio"] for row in json.loads(COST.read_text(encoding="utf-8"))["rows"]}
    print(f"| scheme | n | validation loss, mean ± sd | paired difference to `{baseline}` (95 %) | resolved | lr | "
          "step time / `pre` | peak memory, MiB |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for row in sorted(rows, key=lambda row: row["val_loss_mean"]):
        name, base = row["scheme"], row["scheme"] == baseline
        ratio = cost.get(name)
        interval = f"{signed(row['difference_low'])} to {signed(row['difference_high'])}" if not base else ""
        cells = [
            f"`{SHORT.get(name, name)}`" + (" (notes)" if name in NOTES else ""),
            row["n"],
            f"{row['val_loss_mean']:.4f} ± {row['val_loss_std']:.4f}",
            "baseline" if base else f"{signed(row['difference'])} ({interval})",
            "–" if base else "yes" if row["resolved"] else "no",
            f"{row['lr']:g}",
            "1" if name == "pre" else f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else "–",
            round(row["peak_memory_bytes"] / 2**20),
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.jsonl", *sys.argv[2:3])
