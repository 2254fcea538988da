"""The tables and figures of 014, from its results.jsonl and traces.csv.

    python experiments/014-beyond-decoders/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: for each family loss and accuracy at
the best rate, differences to `pre` paired by seed, the largest stable rate (rates.py); loss against rate; of the vision
transformers at their best rate the gradient and the step of each block's MLP at the end of training.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from math import inf, log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from curves import draw_losses
from programme import read_runs
from rates import largest_stable, read_losses

from geonorm.lab.runs.records import ComparisonRow
from geonorm.lab.statistics.comparison import Interval, aggregate, paired_interval, usable
from geonorm.report.charts import Axis, Chart, Figure, figure
from geonorm.report.style import looks, rate
from geonorm.report.tables import (
    chances,
    endings,
    learning_rate,
    markdown_lines,
    moderated_difference,
    paired_difference,
    spread,
    with_interval,
)

Runs = Sequence[Mapping[str, Any]]
BASELINE = "pre"
FAMILIES = {
    "vision": ("images", "nats per image", log(10)),
    "mlm": ("masked tokens", "nats per masked token", inf),
    "denoise": ("missing spans", "nats per target", inf),
    "long": ("masked tokens, four times as long", "nats per masked token", inf),
}
"""By the beginning of a run's name: what is to be told, the unit of its loss, and that of guessing, as in runs.py."""
DEPTH = {
    "grad_norm": ("Gradient over depth", "length of the gradient of a block's weights", True),
    "angle": ("Step over depth", "angle (radians)", False),
}
"""By column of the trace: title, unit, whether the axis is logarithmic."""
HEAD = (
    "scheme", "n", "loss", "difference (95 %)", "p, Holm", "moderated (95 %)", "accuracy", "difference (95 %)", "rate",
    "largest stable rate", "not finished",
)  # fmt: skip


def read_families(experiment: Path) -> dict[str, list[dict[str, Any]]]:
    """Runs by family, `pre` first, then as they stand in the file."""
    runs = sorted(read_runs(experiment), key=lambda run: run.scheme != BASELINE)
    found = {name: [run for run in runs if run.run.startswith(f"{name}-")] for name in FAMILIES}
    return {name: of for name, of in found.items() if of}


def accuracies(runs: Runs, row: ComparisonRow) -> dict[int, float]:
    """By seed, of the finished runs of a scheme at its best rate."""
    at = [run for run in runs if run.scheme == row.scheme and run.lr == row.lr and usable(run)]
    return {run.seed: run.val_accuracy for run in at}


def percent(found: Interval) -> str:
    """A difference of accuracies in points of a hundred, with its interval."""
    return with_interval(*(end and 100 * end for end in found[:3]), digits=1)


def describe_stable(runs: Runs, guessing: float) -> str:
    found, bounded = largest_stable(read_losses(runs), guessing)
    return "none" if found is None else rate(found) if bounded else f"{rate(found)} or more"


def tabulate(runs: Runs, guessing: float = inf) -> list[str]:
    """A family's table in lines of Markdown. guessing: the loss of a model that knows nothing."""
    rows = aggregate(runs, BASELINE if any(run.scheme == BASELINE for run in runs) else None)
    base = accuracies(runs, rows[0])
    cells = []
    for row in rows:
        own = accuracies(runs, row)
        hits = paired_interval(list(own.values()))
        apart = [own[seed] - base[seed] for seed in own if seed in base]
        told = "–" if not own else f"{hits.mean:.1%}" + (f" ± {100 * hits.std:.1f}" if hits.std is not None else "")
        cells.append(
            [
                row.scheme, str(row.n), spread(row), paired_difference(row), chances(row.p, row.p_holm),
                moderated_difference(row), told, percent(paired_interval(apart)) if apart and row != rows[0] else "–",
                learning_rate(row), describe_stable([run for run in runs if run.scheme == row.scheme], guessing),
                endings(row) or "0",
            ]
        )  # fmt: skip
    return markdown_lines(HEAD, cells)


def draw_depth(runs: Runs, rows: Sequence[Mapping[str, str]]) -> list[Chart]:
    """What stands over depth, one line a scheme: its first seed at the best rate, the last step of the trace."""
    best = {row.scheme: row.lr for row in aggregate(runs) if row.n}
    chosen: dict[str, str] = {}
    for run in sorted(filter(usable, runs), key=lambda run: int(run.seed)):
        if run.lr == best[run.scheme]:
            chosen.setdefault(run.scheme, run.run)
    charts = []
    for key, (title, unit, logarithmic) in DEPTH.items():
        lines = {}
        for scheme, name in chosen.items():
            own = [row for row in rows if (row["run"], row["kind"]) == (name, "mlp") and row[key]]
            last = max((int(row["step"]) for row in own), default=0)
            lines[scheme] = [(int(row["layer"]) + 1, float(row[key])) for row in own if int(row["step"]) == last]
        points = [point for line in lines.values() for point in line]
        if not points:
            continue
        y = Axis.around([value for _, value in points], log=logarithmic, title=unit)
        x = Axis.around([block for block, _ in points], title="block")
        chart = Chart(title, x, y, looks(list(chosen)), "MLP of each block, after the last step.", legend=True)
        for scheme, line in lines.items():
            chart.line(scheme, line)
        charts.append(chart)
    return charts


def read_traces(experiment: Path) -> list[dict[str, str]]:
    file = experiment / "traces.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.exists() else []


def main(experiment: Path) -> None:
    families = read_families(experiment)
    parts = [f"## {name}\n\n" + "\n".join(tabulate(runs, FAMILIES[name][2])) + "\n" for name, runs in families.items()]
    (experiment / "table.md").write_text("\n".join(parts), encoding="utf-8")
    print(experiment / "table.md")
    (experiment / "figures").mkdir(exist_ok=True)
    drawn = {
        "rates": [
            draw_losses(f"Loss of {FAMILIES[name][0]}", FAMILIES[name][1], runs)
            for name, runs in families.items()
            if any(map(usable, runs))
        ],
        "depth": draw_depth(families.get("vision", []), read_traces(experiment)),
    }
    for name, charts in drawn.items():
        if charts:
            print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / f"{name}.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
