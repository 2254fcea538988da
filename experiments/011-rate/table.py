"""The tables and figure of 011, from its results.jsonl and probes.csv.

    python experiments/011-rate/table.py [FOLDER]

Writes table.md and figures/rates.svg into the folder, by default that of the experiment: for each scheme, with warm-up
and without, its best rate, the loss there, its largest stable rate and its spikes; what going without warm-up costs;
and how the largest attention score and the lengths of outputs grow with the width, far above the best rate.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from math import log
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Runs, describe
from curves import draw_losses
from programme import read_runs
from rates import largest_stable, read_losses, tidy
from runs import BEYOND, RATES, SCHEMES, WARMUP, WIDE, WIDTHS

from geonorm.lab.statistics.comparison import paired_interval, usable
from geonorm.lab.statistics.spikes import count_apart
from geonorm.report.charts import Figure, figure
from geonorm.report.style import rate
from geonorm.report.tables import markdown_lines

GUESSING = log(1024)
"""Loss of a model that knows nothing, of 1024 tokens."""
LINES = {"warm": "with warm-up", "cold": "without"}


def read_arms(experiment: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The runs of width 64 by scheme and warm-up, but for those far above the two decades."""
    runs = read_runs(experiment)
    found = {
        (scheme, warmup): [
            run for run in runs if run.run.startswith(f"64-{warmup}-") and run.scheme == scheme and run.lr in RATES
        ]
        for scheme, warmup in product(SCHEMES, WARMUP)
    }
    return {arm: own for arm, own in found.items() if any(map(usable, own))}


def best_rate(runs: Runs) -> float:
    """By seed 0, which alone has all rates."""
    losses = read_losses([run for run in runs if run.seed == 0])
    return min(losses, key=losses.__getitem__)


def at(runs: Runs, lr: float) -> dict[int, float]:
    return {run.seed: run.val_loss for run in runs if run.lr == lr and usable(run)}


def lost_at(runs: Runs, lr: float) -> int:
    return sum(run.lr == lr and not usable(run) for run in runs)


def tell_spikes(runs: Runs, among: Runs, kind: str) -> str:
    """How many, in brackets those that are not the batch's."""
    apart = count_apart(runs, among, kind)
    return f"{sum(getattr(run, kind) for run in runs)}" + ("" if apart is None else f" ({apart})")


def tabulate_arms(arms: Mapping[tuple[str, str], Runs]) -> list[str]:
    lines, every = [], [run for runs in arms.values() for run in runs if usable(run)]
    for (scheme, warmup), runs in arms.items():
        best = best_rate(runs)
        ends = list(at(runs, best).values())
        spread = paired_interval(ends)
        found, bounded = largest_stable(read_losses(runs), GUESSING)  # a seed that diverges ends it
        stable = "none" if found is None else rate(found) if bounded else f"{rate(found)} or more"
        below = [run for run in runs if run.lr <= best and usable(run)]
        std = "" if spread.std is None else f" ± {spread.std:.4f}"
        lines.append(
            [
                scheme, LINES[warmup], rate(best), str(spread.n), f"{spread.mean:.4f}{std}", stable,
                *(tell_spikes(below, every, kind) for kind in ("spikes", "grad_spikes")), str(len(below)),
                str(sum(run.status == "diverged" for run in runs)),
            ]
        )  # fmt: skip
    titles = ("scheme", "", "best rate", "n", "loss there", "largest stable rate",
              "spikes of the loss up to the best (own)", "of the gradient (own)", "in runs",
              "diverged at any")  # fmt: skip
    return markdown_lines(titles, lines)


def tabulate_warmup(arms: Mapping[tuple[str, str], Runs]) -> list[str]:
    """Each at its own best rate, paired by seed."""
    lines = []
    for scheme in SCHEMES:
        if (scheme, "warm") in arms and (scheme, "cold") in arms:
            warm, cold = (at(runs, best_rate(runs)) for runs in (arms[scheme, "warm"], arms[scheme, "cold"]))
            lost = (lost_at(runs, best_rate(runs)) for runs in (arms[scheme, "warm"], arms[scheme, "cold"]))
            told = describe([cold[seed] - warm[seed] for seed in cold if seed in warm])
            lines.append([scheme, *told, " and ".join(map(str, lost))])
    return markdown_lines(
        ("scheme", "without less with warm-up (95 %)", "p", "n", "diverged there, with and without"), lines
    )


def tabulate_widths(experiment: Path, arms: Mapping[tuple[str, str], Runs]) -> list[str]:
    """Largest attention score of any site, and the median over sites of the length of what a sub-layer gives, at
    multiples of the best rate at width 64; with the loss."""
    file = experiment / "probes.csv"
    if not file.exists():
        return []
    sites: dict[str, list[Mapping[str, str]]] = {}
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        if row["kind"] != "block":
            sites.setdefault(row["run"], []).append(row)
    runs = {(run.run.partition("-")[0], run.scheme, run.lr): run for run in read_runs(experiment)
            if "-warm-" in run.run and run.seed == 0}  # fmt: skip
    lines = []
    for scheme, width, times in product(WIDE, WIDTHS, BEYOND):
        if (scheme, "warm") not in arms:
            continue
        run = runs.get((str(width), scheme, tidy(best_rate(arms[scheme, "warm"]) * times)))
        own: Sequence[Mapping[str, str]] = sites.get(run.run, ()) if run else ()
        if run:  # one that diverged before its first checkpoint has nothing to probe
            scores = [float(row["attn_logit"]) for row in own if row["attn_logit"]]
            lengths = [float(row["update_norm"]) for row in own if row["update_norm"]]
            loss = f"{run.val_loss:.3f}" if usable(run) else str(run.status)
            cells = [f"{max(scores):.3g}" if scores else "–", f"{median(lengths):.3g}" if lengths else "–", loss]
            lines.append([scheme, str(width), f"{times} x", *cells])
    return markdown_lines(("scheme", "width", "best rate", "largest score", "length of outputs", "loss"), lines)


def main(experiment: Path) -> None:
    arms = read_arms(experiment)
    parts = {
        "Rates": tabulate_arms(arms),
        "Without warm-up": tabulate_warmup(arms),
        "Width": tabulate_widths(experiment, arms),
    }
    text = [f"## {title}\n\n" + "\n".join(lines) for title, lines in parts.items() if lines]
    (experiment / "table.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print(experiment / "table.md")
    (experiment / "figures").mkdir(exist_ok=True)
    charts = []
    for warmup, name in LINES.items():
        runs = [run for (_, own), found in arms.items() if own == warmup for run in found]
        if runs:
            charts.append(draw_losses(name.capitalize(), "nats per token", runs))
    print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / "rates.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
