"""Final losses at equal learning rates: the difference of each scheme to `geonorm` at every rate it was trained at.

python experiments/002-geonorm-fields/rates.py
"""

from __future__ import annotations

import json
from pathlib import Path

from geonorm.lab.statistics import aggregate

HERE = Path(__file__).parent


def main() -> None:
    lines = [
        line for name in ("results", "results-rates") for line in (HERE / f"{name}.jsonl").read_text().splitlines()
    ]
    runs = {(r["scheme"], r["lr"], r["seed"]): r for line in lines if (r := json.loads(line))["steps"] == 400}
    for rate in sorted({lr for _, lr, _ in runs}):
        found = [run for (_, lr, _), run in runs.items() if lr == rate]
        if not any(run["scheme"] == "geonorm" for run in found):
            continue
        rows = aggregate(found, "geonorm")
        print(f"\n| scheme, rate {rate:g} | n | validation loss | difference to `geonorm` (95 %) |\n|---|---|---|---|")
        for row in sorted(rows, key=lambda row: row["val_loss_mean"]):
            low, high = row["difference_low"], row["difference_high"]
            interval = f" ({low:+.3f} to {high:+.3f})" if low is not None else ""
            said = "baseline" if row["scheme"] == "geonorm" else f"{row['difference']:+.3f}{interval}"
            spread = f" ± {row['val_loss_std']:.4f}" if row["val_loss_std"] is not None else ""
            print(
                f"| `{row['scheme']}` | {row['n']} | {row['val_loss_mean']:.4f}{spread} | {said} |".replace(
                    "-0.", "−0."
                )
            )


if __name__ == "__main__":
    main()
