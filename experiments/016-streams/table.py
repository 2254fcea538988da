"""The tables and figures of 016, from its results.jsonl and traces.csv.

    python experiments/016-streams/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: for each regime every row at its best
rate, its difference to the regime's baseline paired by seed, with p adjusted by Holm for the rows of all regimes; what
output matrices that start at 0 change of each scheme on the sphere; the differences as a figure, and loss against rate.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from curves import draw_losses
from runs import CELLS, SPHERE

from geonorm.lab.runs.significance import holm
from geonorm.lab.runs.statistics import Row, aggregate, paired_interval, usable
from geonorm.report.columns import markdown_lines
from geonorm.report.style import Look, looks, signed
from geonorm.report.tables import chances, endings, learning_rate, moderated_difference, paired_difference, spread
from geonorm.report.vega import Axis, Chart, Figure, figure

Runs = Sequence[Mapping[str, Any]]
HEAD = (
    "scheme", "n", "loss", "difference (95 %)", "p, Holm", "moderated (95 %)", "averaged weights", "clamped", "rate",
    "not finished",
)  # fmt: skip


def read_regimes(experiment: Path) -> dict[str, list[dict[str, Any]]]:
    """Runs by regime, its baseline first."""
    lines = (experiment / "results.jsonl").read_text(encoding="utf-8").splitlines()
    runs = list(map(json.loads, lines))
    found = {}
    for cell, (_, schemes) in CELLS.items():
        own = [run for run in runs if run["run"].startswith(f"{cell}-")]
        found[cell] = sorted(own, key=lambda run: run["scheme"] != schemes[0])
    return {cell: own for cell, own in found.items() if own and own[0]["scheme"] == CELLS[cell][1][0]}


def judge(regimes: Mapping[str, Runs]) -> dict[str, list[Row]]:
    """Each regime's rows, p adjusted for those of all regimes together."""
    rows = {cell: aggregate(runs, CELLS[cell][1][0]) for cell, runs in regimes.items()}
    every = [row for own in rows.values() for row in own]
    for row, p in zip(every, holm([row["p"] for row in every]), strict=True):
        row["p_holm"] = p
    return rows


def at_best(runs: Runs, row: Row) -> dict[int, Mapping[str, Any]]:
    """By seed, the finished runs of a scheme at its best rate."""
    own = [run for run in runs if run["scheme"] == row["scheme"] and run["lr"] == row["lr"]]
    return {run["seed"]: run for run in own if usable(run)}


def clamped_share(runs: Mapping[int, Mapping[str, Any]], traces: Mapping[str, float]) -> str:
    """Of tokens of all sites at the end, mean over seeds; empty for schemes without a ceiling."""
    known = [traces[run["run"]] for run in runs.values() if run["run"] in traces]
    return f"{fmean(known):.0%}" if known else "–"


def read_clamped(experiment: Path) -> dict[str, float]:
    """By run, the mean share over sites after the last step."""
    file, found = experiment / "traces.csv", dict[str, dict[int, list[float]]]()
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()) if file.exists() else ():
        if row["clamped"]:
            found.setdefault(row["run"], {}).setdefault(int(row["step"]), []).append(float(row["clamped"]))
    return {run: fmean(steps[max(steps)]) for run, steps in found.items()}


def tabulate(runs: Runs, rows: Sequence[Row], clamped: Mapping[str, float]) -> list[str]:
    """A regime's table in lines of Markdown."""
    cells = []
    for row in rows:
        own = at_best(runs, row)
        averaged = [run["val_loss_average"] for run in own.values() if run.get("val_loss_average") is not None]
        cells.append(
            [
                row["scheme"], str(row["n"]), spread(row), paired_difference(row), chances(row),
                moderated_difference(row), f"{fmean(averaged):.4f}" if averaged else "–", clamped_share(own, clamped),
                learning_rate(row), endings(row) or "0",
            ]
        )  # fmt: skip
    return markdown_lines(HEAD, cells)


def cross(regimes: Mapping[str, Runs], judged: Mapping[str, Sequence[Row]]) -> list[str]:
    """Of each scheme on the sphere: its difference to `pre` where outputs start at 0, less the same where they are
    drawn, paired by seed."""
    losses: dict[tuple[str, str], dict[int, float]] = {}
    for cell in ("zero", "plain"):
        for row in judged.get(cell, ()):
            losses[cell, row["scheme"]] = {n: run["val_loss"] for n, run in at_best(regimes[cell], row).items()}
    cells = []
    for scheme in SPHERE:
        four = [losses.get((cell, name), {}) for cell in ("zero", "plain") for name in (scheme, "pre")]
        seeds = sorted(set.intersection(*map(set, four)))
        if seeds:
            zero, zero_base, plain, base = ([each[seed] for seed in seeds] for each in four)
            gap = paired_interval([a - b - c + d for a, b, c, d in zip(zero, zero_base, plain, base, strict=True)])
            ends = "" if gap.low is None else f" ({signed(gap.low)} to {signed(gap.high or 0.0)})"
            cells.append([scheme, signed(gap.mean) + ends, "–" if gap.p is None else f"{gap.p:.2g}", str(gap.n)])
    return markdown_lines(("scheme", "zero less plain (95 %)", "p", "n"), cells) if cells else []


def draw_differences(cell: str, runs: Runs, rows: Sequence[Row], shared: Mapping[str, Look]) -> Chart | None:
    """Of a regime's rows, seed by seed, with intervals; a scheme looks the same in all regimes."""
    base, others = rows[0], [row for row in rows[1:] if row["difference"] is not None]
    if not others:
        return None
    first = {seed: run["val_loss"] for seed, run in at_best(runs, base).items()}
    dots = {
        row["scheme"]: [
            (run["val_loss"] - first[seed], f"seed {seed}")
            for seed, run in at_best(runs, row).items() if seed in first
        ]
        for row in others
    }  # fmt: skip
    ends = [row[key] for row in others for key in ("difference_low", "difference_high") if row[key] is not None]
    x = Axis.around(
        [0.0, *ends, *(gap for own in dots.values() for gap, _ in own)],
        title=f"difference to {base['scheme']}, nats per token (left of 0 is better)",
    )
    chart = Chart(f"Regime {cell}", x, None, shared, "One mark a seed; bars: 95 %.")
    chart.rule(x=0.0)
    for row in others:
        spans = (row["difference"], row["difference_low"], row["difference_high"])
        chart.strip(row["scheme"], paired_difference(row), dots[row["scheme"]], spans)
    return chart


def main(experiment: Path) -> None:
    regimes = read_regimes(experiment)
    judged, clamped = judge(regimes), read_clamped(experiment)
    parts = [f"## {cell}\n\n" + "\n".join(tabulate(regimes[cell], rows, clamped)) for cell, rows in judged.items()]
    if crossed := cross(regimes, judged):
        parts.append("## Outputs that start at 0\n\n" + "\n".join(crossed))
    (experiment / "table.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(experiment / "table.md")
    (experiment / "figures").mkdir(exist_ok=True)
    shared = looks(list(dict.fromkeys(row["scheme"] for rows in judged.values() for row in rows)))
    drawn = {
        "differences": [
            chart for cell, rows in judged.items() if (chart := draw_differences(cell, regimes[cell], rows, shared))
        ],
        "rates": [
            draw_losses(f"Regime {cell}", "nats per token", runs) for cell, runs in regimes.items()
            if any(map(usable, runs))
        ],
    }  # fmt: skip
    for name, charts in drawn.items():
        if charts:
            print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / f"{name}.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
