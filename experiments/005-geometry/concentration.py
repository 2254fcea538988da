"""Is the stream of better models on a sphere? Rank correlation of radius spread, resultant length and concentration
with validation loss, over schemes, over seeds and over steps of runs that other experiments left.

python experiments/005-geometry/concentration.py experiments/005-geometry COMPARISON ... (directories with runs/)

Writes concentration.json. The measures are taken anew from the newest checkpoint on the first 1,024 held-out tokens, as
`geonorm.measure` defines them: radius_cv (mean over sites), and of the stream that enters the last site resultant
(length of the mean direction), concentration (kappa of a von Mises-Fisher distribution), cos_pair and effective_rank.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from geonorm.lab.data.batches import validation_batches
from geonorm.lab.open import open_run
from geonorm.lab.runs.folder import RunFolder, read_rows
from geonorm.lab.train import trace
from geonorm.lab.train.text import load_text

LAST = ("resultant", "concentration", "cos_pair", "effective_rank")
MEASURES = ("radius_cv", *LAST)
RESAMPLES = 2000


def held_out(path: Path) -> torch.Tensor:
    """The same tokens for all runs of a comparison, whose text is one."""
    config = RunFolder(path).config()
    text = load_text(config)
    return next(validation_batches(text.tokens.validation, 8, config.shape("pre").context))[0]


def measured(path: Path, ids: torch.Tensor) -> dict[str, Any] | None:
    """Of a finished final run."""
    summary = RunFolder(path).summary()
    if summary is None or summary["status"] != "finished" or summary["phase"] != "final":
        return None
    model = open_run(path).model
    rows = trace.trace(model, ids, summary["steps"], {}).sites
    steps = [
        {"step": row["step"], "val_loss": row["val_loss"]}
        for row in read_rows(path / "metrics.jsonl")
        if row.get("val_loss") is not None
    ]
    for step in steps:
        sites = [row for row in read_rows(path / "trace.jsonl") if row["step"] == step["step"]]
        step |= {"radius_cv": mean(row["radius_cv"] for row in sites), "cos_pair": sites[-1]["cos_pair"]}
    return {
        "scheme": summary["scheme"],
        "seed": summary["seed"],
        "val_loss": summary["val_loss"],
        "radius_cv": mean(row["radius_cv"] for row in rows),
        **{key: rows[-1][key] for key in LAST},
        "steps": steps,
    }


def spearman(a: list[float], b: list[float]) -> float:
    x, y = rankdata(a), rankdata(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale else 0.0


def chance(a: list[float], b: list[float]) -> float:
    """Share of permutations whose correlation is at least as far from 0."""
    random, found = np.random.default_rng(0), abs(spearman(a, b))
    return float(np.mean([abs(spearman(a, list(random.permutation(b)))) >= found - 1e-12 for _ in range(RESAMPLES)]))


def groups(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault(run["scheme"], []).append(run)
    return found


def correlations(runs: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    """Over scheme means; over seeds, each scheme's runs about their own mean; over the steps of each run (mean)."""
    known = [run for run in runs if run[measure] is not None]
    schemes = groups(known)
    a = [mean(run[measure] for run in group) for group in schemes.values()]
    b = [mean(run["val_loss"] for run in group) for group in schemes.values()]
    several = [group for group in schemes.values() if len(group) > 1]
    inside = [
        [run[key] - mean(other[key] for other in group) for group in several for run in group]
        for key in (measure, "val_loss")
    ]
    scale = [  # in units of the scheme's own spread, so that no scheme dominates
        [
            (run[key] - mean(o[key] for o in group)) / (np.std([o[key] for o in group]) or 1.0)
            for group in several
            for run in group
        ]
        for key in (measure, "val_loss")
    ]
    result = {
        "schemes": {"rho": spearman(a, b), "p": chance(a, b), "n": len(a)},
        "seeds": {"rho": spearman(*scale), "p": chance(*scale), "n": len(inside[0])},
    }
    if measure in known[0]["steps"][0]:
        over = [spearman([s[measure] for s in run["steps"]], [s["val_loss"] for s in run["steps"]]) for run in known]
        result["steps"] = {"rho": mean(over), "n": len(over), "points": len(known[0]["steps"])}
    return result


def main(experiment: Path, comparisons: list[Path]) -> None:
    found: dict[str, Any] = {}
    for comparison in comparisons:
        paths = sorted(path for path in (comparison / "runs").iterdir() if not path.name.endswith("-tune"))
        ids = held_out(paths[0])
        runs = [run for path in paths if (run := measured(path, ids)) is not None]
        found[comparison.name] = {
            "correlations": {measure: correlations(runs, measure) for measure in MEASURES},
            "schemes": {
                scheme: {"n": len(group), **{key: mean(run[key] for run in group) for key in ("val_loss", *MEASURES)}}
                for scheme, group in groups(runs).items()
                if all(run[key] is not None for run in group for key in MEASURES)
            },
        }
        for measure, result in found[comparison.name]["correlations"].items():
            told = ", ".join(
                f"{over} {r['rho']:+.2f} (p {r.get('p', float('nan')):.3f}, n {r['n']})" for over, r in result.items()
            )
            print(f"{comparison.name} {measure}: {told}", flush=True)
    (experiment / "concentration.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
