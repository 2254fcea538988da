"""All claims computed again by other code: numpy, scipy and yaml, nothing of geonorm or of evidence.

python tests/evidence/recompute.py prints how many of them are equal.
"""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import optimize, special, stats

ROOT = Path(__file__).parents[2]
FILE = yaml.safe_load((ROOT / "evidence" / "claims.yaml").read_text("utf-8"))
STORED = json.loads((ROOT / "evidence" / "results.json").read_text("utf-8"))
CLAIMS = FILE["claims"]


@cache
def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "experiments" / path).read_text("utf-8").splitlines()]


def rows_of(claim: dict[str, Any], side: Any) -> list[dict[str, Any]]:
    words = side if isinstance(side, dict) else {"scheme": side}
    setting = FILE["settings"][words.get("setting", claim["setting"])]
    start = words.get("runs", setting.get("runs", ""))
    rows = read(f"{setting['experiment']}/{setting.get('results', 'results.jsonl')}")
    rows = [row for row in rows if words.get("scheme", row["scheme"]) == row["scheme"] and row["run"].startswith(start)]
    rows = [row for row in rows if not re.search(setting.get("without", "-nogains-"), row["run"])]
    rows = [row for row in rows if row.get("phase") != "tune" or row["seed"] in setting.get("tuned_by", ())]
    if "steps" in setting:
        rows = [row for row in rows if row["steps"] == setting["steps"]]
    lr = words.get("lr") or claim.get("lr")
    return [row for row in rows if lr is None or abs(math.log(row["lr"] / lr)) < 0.01]


def cells(claim: dict[str, Any], side: Any, factors: dict[str, str]) -> dict[Any, float]:
    wanted, ends = ({} if isinstance(side, str) else side).get("levels", {}), {}
    for row in rows_of(claim, side):
        levels = {name: re.findall(pattern, row["scheme"]) for name, pattern in factors.items()}
        if all(levels.values()) and all(levels[name] == [level] for name, level in wanted.items()):
            rest = [levels[name][0] for name in factors if name not in wanted]
            ends[(*rest, row["lr"], row["seed"])] = row["val_loss"]
    return ends


def losses(claim: dict[str, Any], side: Any) -> dict[Any, float]:
    factors = FILE["settings"][claim["setting"]].get("factors")
    if factors is not None:
        return cells(claim, side, factors)
    rows = [{**row, "lr": (row["run"].rpartition("-seed")[0], row["lr"])} for row in rows_of(claim, side)]
    measure = claim.get("measure", "val_loss")
    ends = [row for row in rows if (row["status"] == "finished" and row["val_loss"]) or measure == "course"]
    bad = {row["lr"] for row in rows} - {row["lr"] for row in ends}
    bad |= {row["lr"] for row in rows if row["status"] == "diverged"}
    ends = [row for row in ends if row["lr"] not in bad] or ends
    seeds = {lr: {row["seed"] for row in ends if row["lr"] == lr} for lr in {row["lr"] for row in ends}}
    most = max(len(each) for each in seeds.values())
    rates = [lr for lr, each in seeds.items() if len(each) >= min(3, most)]
    tuning = FILE["settings"][claim["setting"]].get("tuned_by", ())
    tuned = [row for row in ends if row["lr"] in rates and row["seed"] in tuning[:1]]
    if tuned:
        lr = min(tuned, key=lambda row: row["val_loss"])["lr"]
    else:
        full = [lr for lr in rates if len(seeds[lr]) == max(len(seeds[lr]) for lr in rates)]
        lr = min(full, key=lambda lr: np.mean([row.get("val_loss") or 0 for row in ends if row["lr"] == lr]))
    chosen = [row for row in ends if row["lr"] == lr]
    values = {"course": lambda row: dict(row["course"])[1500], "train": lambda row: row["train"][-1][1]}
    return {row["seed"]: values.get(measure, lambda row: row[measure])(row) for row in chosen}


def gaps(claim: dict[str, Any]) -> dict[Any, float]:
    first, second = losses(claim, claim["first"]), claim["second"]
    if second == "better":
        other = min(
            (losses(claim, name) for name in ("pre(entry=embedding)", "pre")), key=lambda x: np.mean([*x.values()])
        )
    else:
        other = losses(claim, second)
    pairs = {pair: first[pair] - other[pair] for pair in sorted(set(first) & set(other))}
    if FILE["settings"][claim["setting"]].get("factors") is None:
        return pairs
    seeds = {pair[-1] for pair in pairs}
    return {seed: float(np.mean([gap for pair, gap in pairs.items() if pair[-1] == seed])) for seed in seeds}


def compute(name: str) -> dict[str, Any]:
    claim = FILE["claims"][name]
    if "change" in claim:
        one, two = (FILE["claims"][other] for other in claim["change"])
        known, other, claim = gaps(one), gaps(two), one
        pairs = {seed: known[seed] - other[seed] for seed in set(known) & set(other)}
    else:
        pairs = gaps(claim)
    tuning = FILE["settings"][claim["setting"]].get("tuned_by", ())
    fresh = [gap for seed, gap in pairs.items() if seed not in tuning]
    x = np.array(fresh if len(fresh) > 2 else [*pairs.values()])
    if len(x) == 1:
        return {"n": 1, "mean": x[0], "verdict": "one run", "fresh": fresh}
    test = stats.ttest_1samp(x, 0)
    low, high = test.confidence_interval()
    equal = max(
        stats.ttest_1samp(x, -0.01, alternative="greater").pvalue, stats.ttest_1samp(x, 0.01, alternative="less").pvalue
    )
    word = "better" if high < 0 else "worse" if low > 0 else "equal within 0.01" if equal < 0.05 else "not resolved"
    return {
        "n": len(x), "mean": x.mean(), "low": low, "high": high, "p": test.pvalue, "equal_p": equal, "verdict": word,
        "variance": x.var(ddof=1), "df": len(x) - 1, "fresh": fresh,
    }  # fmt: skip


def experiment_of(claim: dict[str, Any]) -> str:
    place = claim if "setting" in claim else FILE["claims"][claim["change"][0]]
    return FILE["settings"][place["setting"]]["experiment"]


def adjust(results: dict[str, dict[str, Any]]) -> None:
    """Adds p by Holm, within one measure of an experiment; a comparison that stands twice counts once."""
    families: dict[Any, list[str]] = {}
    for name, claim in CLAIMS.items():
        families.setdefault((experiment_of(claim), claim.get("measure", "val_loss")), []).append(name)
    for (experiment, _), names in families.items():
        tested = sorted({results[name]["p"] for name in names if "p" in results[name]})
        size = max(len(tested), FILE["families"].get(experiment, 0))
        steps = [p * (size - rank) for rank, p in enumerate(tested)]
        adjusted = dict(zip(tested, np.minimum(1, np.maximum.accumulate(steps or [0.0])), strict=False))
        for name in names:
            if "p" in results[name]:
                results[name]["p_holm"] = float(adjusted[results[name]["p"]])


def moderate(results: dict[str, dict[str, Any]]) -> None:
    """Adds the moderated error: variances of an experiment under a common scaled inverse chi-square (Smyth 2004)."""
    groups: dict[str, list[str]] = {}
    for name, claim in CLAIMS.items():
        groups.setdefault(experiment_of(claim), []).append(name)
    for names in groups.values():
        known = [name for name in names if results[name]["n"] > 1]
        if len(known) < 2:
            continue
        s2, d = (np.array([results[name][key] for name in known]) for key in ("variance", "df"))
        z = np.log(np.maximum(s2, 1e-5 * np.median(s2[s2 > 0]))) - special.digamma(d / 2) + np.log(d / 2)
        excess = z.var(ddof=1) - special.polygamma(1, d / 2).mean()
        if excess <= 0:
            d0, s0 = math.inf, float(d @ s2 / d.sum())
        else:
            d0 = 2 * optimize.brentq(lambda x, e=excess: special.polygamma(1, x) - e, 1e-6, 1e6, xtol=1e-14, rtol=1e-13)
            s0 = math.exp(z.mean() + special.digamma(d0 / 2) - math.log(d0 / 2))
        for name in names:
            row = results[name]
            v, df = (row["variance"], row["df"]) if row["n"] > 1 else (0.0, 0)
            row["moderated_error"] = math.sqrt((s0 if math.isinf(d0) else (d0 * s0 + df * v) / (d0 + df)) / row["n"])


def pooled(name: str, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Paule and Mandel's variance between settings, Hartung and Knapp's interval, at least as wide as the fixed one."""
    members = [claim for claim, words in FILE["claims"].items() if words.get("pool") == name]
    y = np.array([np.mean(results[member]["fresh"]) for member in members])
    rows = [results[member] for member in members]
    v = np.array([row["moderated_error"] ** 2 * row["n"] / len(row["fresh"]) for row in rows])
    k = len(y)

    def q(tau2: float) -> float:
        return float(np.sum((y - np.average(y, weights=1 / (v + tau2))) ** 2 / (v + tau2)))

    tau2 = optimize.bisect(lambda t: q(t) - (k - 1), 0, 10, xtol=1e-15) if q(0) > k - 1 else 0.0
    mean = np.average(y, weights=1 / (v + tau2))
    error = math.sqrt(max(1.0, q(tau2) / (k - 1)) / np.sum(1 / (v + tau2)))
    low, high = stats.t(k - 1, mean, error).interval(0.95)
    ends = stats.t(k - 1, mean, math.hypot(error, math.sqrt(tau2))).interval(0.95)
    margin = FILE["pools"][name]["margin"]
    equal = max(stats.t.cdf((mean - margin) / error, k - 1), stats.t.sf((mean + margin) / error, k - 1))
    word = (
        "better" if high < 0 else "worse" if low > 0 else f"equal within {margin}" if equal < 0.05 else "not resolved"
    )
    return {"n": k, "mean": mean, "low": low, "high": high, "expected_low": ends[0], "expected_high": ends[1],
            "between": math.sqrt(tau2), "verdict": word}  # fmt: skip


def differing() -> dict[str, str]:
    results = {name: compute(name) for name in CLAIMS}
    adjust(results)
    moderate(results)
    pools = {name: pooled(name, results) for name in FILE["pools"]}
    wrong = {}
    for kind, rows in (("claims", results), ("pools", pools)):
        for name, row in rows.items():
            for key, value in row.items():
                known = STORED[kind][name].get(key)
                if key in ("variance", "df", "fresh"):
                    continue
                if known != value if isinstance(value, (str, int)) else not math.isclose(known, value, abs_tol=2e-6):
                    wrong[name] = f"{key}: {known} in results.json, {value} computed again"
    return wrong


if __name__ == "__main__":
    wrong = differing()
    print("\n".join(f"{name}: {text}" for name, text in wrong.items()))
    total = len(CLAIMS) + len(FILE["pools"])
    print(f"{total - len(wrong)} of {total} claims and pools are equal")
