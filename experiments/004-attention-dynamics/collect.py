"""Keeps what the simulations found: summaries, slopes, clusters, both tables, figures, and what each ran on.

python experiments/004-attention-dynamics/collect.py runs/004-attention-dynamics

A simulation that the directory lacks keeps what was collected of it before.
"""

from __future__ import annotations

import json
import shutil
import sys
from math import log
from pathlib import Path
from statistics import linear_regression
from typing import Any

from geonorm.dynamics.simulate import COLLAPSED, ROUNDING
from geonorm.report.simulation import SavedSimulation
from geonorm.report.tables import markdown_lines

HERE = Path(__file__).parent
NAMES = ("equiangular", "kaiming-per-layer", "kaiming-per-run", "post-d3")
WINDOW = (40, 129)
"""t = layer + 1 of the slopes in log t."""
IN_T = ("post", "mix")
"""Schemes whose clock is t until tokens agree to rounding, so that their slope is against t."""
FEWEST = 4
"""Points that a slope needs."""


def slopes(trace: SavedSimulation) -> list[dict[str, Any]]:
    """Per scheme, mean over seeds and every seed: slopes of log(1 - cos) and log r against log t over WINDOW; where
    1 - cos of a scheme IN_T has reached rounding before, the slope of log(1 - cos) against t between mean cosine 0.99
    and rounding. None where there are too few points."""
    floor, found = ROUNDING[trace.summary["dtype"]], []
    for summary in trace.summary["schemes"]:
        rows = trace.rows[summary["scheme"]]
        seeds = [[row for row in rows if row["seed"] == seed] for seed in range(trace.summary["seeds"])]
        late = [[row for row in of_seed if WINDOW[0] <= row["t"] <= WINDOW[1]] for of_seed in seeds]
        clear = [[row for row in of_seed if row["gap"] > floor] for of_seed in late]
        row = {"scheme": summary["scheme"], "points": [len(of_seed) for of_seed in clear]}
        row |= measured("gap_log_t", clear, "gap", log) | measured("radius_log_t", late, "radius", log)
        row |= measured("gap_t", [], "gap", float)
        if row["gap_log_t"] is None and summary["scheme"] in IN_T:
            falling = [[each for each in of_seed if floor < each["gap"] < COLLAPSED] for of_seed in seeds]
            row |= measured("gap_t", falling, "gap", float)
        found.append(row)
    return found


def measured(name: str, seeds: list[list[dict[str, Any]]], key: str, scale: Any) -> dict[str, Any]:
    """Mean over seeds, and every seed, of the slope of log row[key] against scale(t)."""
    if not seeds or min(map(len, seeds)) < FEWEST:
        return {name: None, f"{name}_by_seed": None}
    lines = [linear_regression([scale(row["t"]) for row in rows], [log(row[key]) for row in rows]) for rows in seeds]
    each = [line.slope for line in lines]
    return {name: sum(each) / len(each), f"{name}_by_seed": each}


def merging(trace: SavedSimulation) -> list[dict[str, Any]]:
    """Measured times at which the number of clusters of the first scheme and seed is another than before."""
    kept: list[dict[str, Any]] = []
    for row in (row for row in trace.rows[trace.names[0]] if row["seed"] == 0):
        if not kept or row["clusters"] != kept[-1]["clusters"]:
            kept.append({"time": row["time"], "clusters": row["clusters"], "cos_pair": row["cos_pair"]})
    return kept


def slope_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Both cases of random weights side by side."""
    cases = ("kaiming-per-run", "kaiming-per-layer")
    lines = [
        "| scheme | shared: log(1 - cos) | log r | anew: log(1 - cos) | log r |",
        "|---|---|---|---|---|",
    ]
    for rows in zip(*(found[case] for case in cases), strict=True):
        cells = [cell for row in rows for cell in (gap_cell(row), number(row["radius_log_t"]))]
        lines.append(f"| {rows[0]['scheme']} | " + " | ".join(cells) + " |")
    return (
        f"## Slopes against log t over t = {WINDOW[0]} to {WINDOW[1]}\n\n"
        "*Least squares, mean of the seeds (each seed: slopes.json). shared: one draw of weights for all layers; anew: "
        "one per layer. e^(-k t): tokens agree to rounding before the window, and the slope is against t. –: too few "
        "points.*"
        "\n\n" + "\n".join(lines) + "\n"
    )


def gap_cell(row: dict[str, Any]) -> str:
    return number(row["gap_log_t"]) if row["gap_t"] is None else f"e^({row['gap_t']:.2f} t)"


def number(value: float | None) -> str:
    """Two decimals, or two digits where these would show little."""
    if value is None:
        return "–"
    return f"{value:.2f}".replace("-0.00", "0.00") if abs(value) >= 0.1 or abs(value) < 1e-4 else f"{value:.2g}"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    environments, fitted = read(HERE / "environment.json"), read(HERE / "slopes.json")
    for name in NAMES:
        folder = Path(sys.argv[1]) / name
        if not (folder / "summary.json").exists():
            continue
        trace = SavedSimulation.load(folder)
        write(HERE / f"{name}.json", read(folder / "summary.json") | {"out": name})
        environments[name] = read(folder / "environment.json")
        if trace.summary["weights"] != "identity":
            fitted[name] = slopes(trace)
        if trace.summary["dim"] == 3:
            write(HERE / "clusters.json", merging(trace))
        (HERE / "figures" / name).mkdir(parents=True, exist_ok=True)
        for figure in (folder / "figures").glob("*.png"):  # the SVGs, several MB together, stay where they are
            shutil.copy(figure, HERE / "figures" / name)
    write(HERE / "environment.json", environments)
    write(HERE / "slopes.json", fitted)
    texts = []
    for name in NAMES:
        study = SavedSimulation(HERE, read(HERE / f"{name}.json"), {}, {}, {})
        tables = ["\n".join(markdown_lines(*table)) for table in study.tables().values()]
        texts.append("\n\n".join([f"## {name}", f"*{study.caption()}*", *tables]) + "\n")
    (HERE / "tables.md").write_text("\n".join([*texts, slope_table(fitted)]), encoding="utf-8")
