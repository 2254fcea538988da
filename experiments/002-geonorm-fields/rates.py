"""Final losses at equal learning rates: the difference of each scheme to `geonorm` at every rate it was trained at.

python experiments/002-geonorm-fields/rates.py [COMPARISON ...]

With directories of comparisons, their finished runs that results.jsonl does not have become results-rates.jsonl first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from geonorm.lab.statistics.comparison import aggregate
from geonorm.report.tables import chances, moderated_difference, paired_difference, spread

HERE = Path(__file__).parent
TUNED, OTHERS = HERE / "results.jsonl", HERE / "results-rates.jsonl"
Key = tuple[str, float, int]


def key(run: dict[str, Any]) -> Key:
    return run["scheme"], run["lr"], run["seed"]


def final(file: Path) -> dict[Key, dict[str, Any]]:
    """Runs of 400 steps."""
    runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {key(run): run for run in runs if run["steps"] == 400}


def gather(comparisons: list[Path]) -> None:
    known = final(TUNED)
    found = [run for path in comparisons for run in json.loads((path / "results.json").read_text())["runs"]]
    OTHERS.write_text("".join(json.dumps(run) + "\n" for run in found if key(run) not in known), encoding="utf-8")


def show() -> None:
    runs = final(TUNED) | final(OTHERS)
    for rate in sorted({lr for _, lr, _ in runs}):
        found = [run for (_, lr, _), run in runs.items() if lr == rate]
        if not any(run["scheme"] == "geonorm" for run in found):
            continue
        titles = ["n", "validation loss", "difference to `geonorm` (95 %)", "p, by Holm", "moderated (95 %)"]
        print(f"\n| scheme, rate {rate:g} | " + " | ".join(titles) + " |\n" + "|---" * 6 + "|")
        for row in sorted(aggregate(found, "geonorm"), key=lambda row: row["val_loss_mean"]):
            cells = [row["n"], spread(row), paired_difference(row), chances(row), moderated_difference(row)]
            print(f"| `{row['scheme']}` | " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    if sys.argv[1:]:
        gather([Path(path) for path in sys.argv[1:]])
    show()
