"""The table and figure of 018, from its results.jsonl.

    python experiments/018-norms/table.py [FOLDER]

Writes table.md and figures/differences.svg into the folder, by default that of the experiment: LayerNorm less RMSNorm
for each task, width and scheme, each at its best rate, paired by seed, with p adjusted by Holm for all of them; and the
means over tasks and schemes that were predicted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Runs, at_best, judge
from programme import read_runs
from runs import SCHEMES, TASKS, WIDTHS

from geonorm.lab.runs.records import ComparisonRow
from geonorm.report.charts import Chart, Figure, figure, strip_chart
from geonorm.report.comparison_charts import difference_strip
from geonorm.report.style import looks, signed
from geonorm.report.tables import (
    chances,
    endings,
    learning_rate,
    markdown_lines,
    moderated_difference,
    paired_difference,
    spread,
)

HEAD = (
    "task", "width", "scheme", "pairs", "RMSNorm", "rate", "LayerNorm", "rate", "difference (95 %)", "p, Holm",
    "moderated (95 %)", "equal within 0.01", "ended otherwise (RMSNorm; LayerNorm)",
)  # fmt: skip
Cell = tuple[str, int, str]


def read_cells(experiment: Path) -> dict[Cell, Runs]:
    """Runs by task, width and scheme, those with RMSNorm first; `scheme` is the norm."""
    runs, found = read_runs(experiment), dict[Cell, Runs]()
    for task, width, scheme in product(TASKS, WIDTHS, SCHEMES):
        own = [
            replace(run, scheme=norm)
            for norm in ("rms", "layer") for run in runs if run.run.startswith(f"{task}-{width}-{norm}-{scheme}-lr")
        ]  # fmt: skip
        if {run.scheme for run in own} == {"rms", "layer"}:
            found[task, width, scheme] = own
    return found


def tabulate(pairs: Mapping[Cell, tuple[ComparisonRow, ComparisonRow]]) -> list[str]:
    lines = []
    for (task, width, scheme), (rms, layer) in pairs.items():
        equal = "–" if layer.equal is None else "yes" if layer.equal else "no"
        lines.append(
            [
                task, str(width), scheme, str(layer.pairs), spread(rms), learning_rate(rms), spread(layer),
                learning_rate(layer), paired_difference(layer), chances(layer.p, layer.p_holm),
                moderated_difference(layer), equal, "; ".join(endings(row) or "–" for row in (rms, layer)),
            ]
        )  # fmt: skip
    return markdown_lines(HEAD, lines)


def tabulate_means(pairs: Mapping[Cell, tuple[ComparisonRow, ComparisonRow]]) -> list[str]:
    """By width, over all tasks: how often LayerNorm is worse, its mean difference over all schemes and of each. Where
    one norm has no loss at all, it is the worse one, and no part of a mean."""
    lines = []
    for width in WIDTHS:
        own = {cell: rows for cell, rows in pairs.items() if cell[1] == width}
        gaps = {cell: layer.difference for cell, (_, layer) in own.items() if layer.pairs}
        alone = [(rms.n, layer.n) for cell, (rms, layer) in own.items() if cell not in gaps]
        if gaps:
            by_scheme = [[gap for (*_, name), gap in gaps.items() if name == scheme] for scheme in SCHEMES]
            lost = sum(bool(rms) and not layer for rms, layer in alone)
            worse = f"{sum(gap > 0 for gap in gaps.values()) + lost} of {len(own)}"
            means = (signed(fmean(each)) if each else "–" for each in by_scheme)
            lines.append([str(width), worse, signed(fmean(gaps.values())), *means])
    return markdown_lines(("width", "LayerNorm is worse in", "mean difference", *SCHEMES), lines)


def draw(width: int, cells: Mapping[Cell, Runs], pairs: Mapping[Cell, tuple[ComparisonRow, ComparisonRow]]) -> Chart:
    own = {
        f"{cell[0]}, {cell[2]}": (cells[cell], pair)
        for cell, pair in pairs.items()
        if cell[1] == width and pair[1].pairs
    }
    strips = []
    for name, (runs, (rms, layer)) in own.items():
        base, other = at_best(runs, rms), at_best(runs, layer)
        dots = [(run.val_loss - base[seed].val_loss, f"seed {seed}")
                for seed, run in other.items() if seed in base]  # fmt: skip
        strips.append(difference_strip(replace(layer, scheme=name), dots))
    unit, note = "LayerNorm − RMSNorm, nats per byte", "One mark a seed; bars: 95 %."
    return strip_chart(f"Width {width}", unit, strips, looks(list(own)), note, rule=0.0)


def main(experiment: Path) -> None:
    cells = read_cells(experiment)
    judged: Mapping[Cell, Sequence[ComparisonRow]] = judge(cells)
    pairs = {cell: (rows[0], rows[1]) for cell, rows in judged.items() if len(rows) == 2}
    text = ["\n".join(tabulate(pairs)), "\n".join(tabulate_means(pairs))]
    (experiment / "table.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print(experiment / "table.md")
    (experiment / "figures").mkdir(exist_ok=True)
    charts = [draw(width, cells, pairs) for width in WIDTHS if any(cell[1] == width for cell in pairs)]
    print(Figure(figure(charts, experiment.name)).save(experiment / "figures" / "differences.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
