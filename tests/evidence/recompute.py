"""All claims computed again by other code: numpy, scipy and yaml, nothing of geonorm or of evidence.

python tests/evidence/recompute.py prints how many of them are equal.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

ROOT = Path(__file__).parents[2]
FILE = yaml.safe_load((ROOT / "evidence" / "claims.yaml").read_text("utf-8"))


@cache
def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "experiments" / path).read_text("utf-8").splitlines()]


def rows_of(claim: dict[str, Any], side: Any) -> list[dict[str, Any]]:
    words = side if isinstance(side, dict) else {"scheme": side}
    setting = FILE["settings"][claim["setting"]]
    start = words.get("runs", setting.get("runs", ""))
    rows = read(f"{setting['experiment']}/{setting.get('results', 'results.jsonl')}")
    rows = [row for row in rows if row["scheme"] == words["scheme"] and row["run"].startswith(start)]
    rows = [row for row in rows if setting.get("without", "-nogains-") not in row["run"] and row.get("phase") != "tune"]
    if "steps" in setting:
        rows = [row for row in rows if row["steps"] == setting["steps"]]
    lr = words.get("lr") or claim.get("lr")
    return [row for row in rows if lr is None or abs(math.log(row["lr"] / lr)) < 0.01]


def losses(claim: dict[str, Any], side: Any) -> dict[int, float]:
    """By seed at the best rate."""
    rows = rows_of(claim, side)
    measure = claim.get("measure", "val_loss")
    ends = [row for row in rows if (row["status"] == "finished" and row["val_loss"]) or measure == "course"]
    bad = {row["lr"] for row in rows} - {row["lr"] for row in ends}
    bad |= {row["lr"] for row in rows if row["status"] == "diverged"}
    ends = [row for row in ends if row["lr"] not in bad] or ends
    seeds = {lr: {row["seed"] for row in ends if row["lr"] == lr} for lr in {row["lr"] for row in ends}}
    most = max(len(each) for each in seeds.values())
    rates = [lr for lr, each in seeds.items() if len(each) >= min(3, most)]
    tuning = FILE["settings"][claim["setting"]].get("tuning_seed")
    tuned = [row for row in ends if row["lr"] in rates and row["seed"] == tuning]
    if tuned:
        lr = min(tuned, key=lambda row: row["val_loss"])["lr"]
    else:
        full = [lr for lr in rates if len(seeds[lr]) == max(len(seeds[lr]) for lr in rates)]
        lr = min(full, key=lambda lr: np.mean([row.get("val_loss") or 0 for row in ends if row["lr"] == lr]))
    chosen = [row for row in ends if row["lr"] == lr]
    values = {"course": lambda row: dict(row["course"])[1500], "train": lambda row: row["train"][-1][1]}
    return {row["seed"]: values.get(measure, lambda row: row[measure])(row) for row in chosen}


def gaps(claim: dict[str, Any]) -> dict[int, float]:
    first, second = losses(claim, claim["first"]), claim["second"]
    if second == "better":
        other = min(
            (losses(claim, name) for name in ("pre(entry=embedding)", "pre")), key=lambda x: np.mean([*x.values()])
        )
    else:
        other = losses(claim, second)
    return {seed: first[seed] - other[seed] for seed in sorted(set(first) & set(other))}


def compute(name: str) -> dict[str, Any]:
    claim = FILE["claims"][name]
    if "change" in claim:
        one, two = (FILE["claims"][other] for other in claim["change"])
        known, other, claim = gaps(one), gaps(two), one
        pairs = {seed: known[seed] - other[seed] for seed in set(known) & set(other)}
    else:
        pairs = gaps(claim)
    tuning = FILE["settings"][claim["setting"]].get("tuning_seed")
    fresh = [gap for seed, gap in pairs.items() if seed != tuning]
    x = np.array(fresh if len(fresh) > 2 else [*pairs.values()])
    if len(x) == 1:
        return {"n": 1, "mean": x[0], "verdict": "one run"}
    test = stats.ttest_1samp(x, 0)
    low, high = test.confidence_interval()
    equal = max(
        stats.ttest_1samp(x, -0.01, alternative="greater").pvalue, stats.ttest_1samp(x, 0.01, alternative="less").pvalue
    )
    word = "better" if high < 0 else "worse" if low > 0 else "equal within 0.01" if equal < 0.05 else "not resolved"
    return {
        "n": len(x),
        "mean": x.mean(),
        "low": low,
        "high": high,
        "p": test.pvalue,
        "equal_p": equal,
        "verdict": word,
    }


def differing() -> dict[str, str]:
    """By claim, what is another number than in results.json."""
    stored = json.loads((ROOT / "evidence" / "results.json").read_text("utf-8"))["claims"]
    wrong = {}
    for name in FILE["claims"]:
        for key, value in compute(name).items():
            known = stored[name][key]
            if known != value if isinstance(value, (str, int)) else not math.isclose(known, value, abs_tol=2e-6):
                wrong[name] = f"{key}: {known} in results.json, {value} computed again"
    return wrong


if __name__ == "__main__":
    wrong = differing()
    print("\n".join(f"{name}: {text}" for name, text in wrong.items()))
    print(f"{len(FILE['claims']) - len(wrong)} of {len(FILE['claims'])} claims are equal")
