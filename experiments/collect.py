"""Keeps what an experiment found: summaries as JSON lines, the table, figures, and what it ran on.

    python experiments/collect.py runs/001-placement-on-cpu experiments/001-placement-on-cpu
    python experiments/collect.py experiments/001-placement-on-cpu      # table.md again, from results.jsonl

Writes results.jsonl (one summary a run), environment.json, table.md and figures/ into the experiment's folder. The
table is to the first scheme, and where `pre` ran with both entries, to `pre(entry=embedding)` as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from programme import folder_with, read_runs

from geonorm.lab.statistics.comparison import aggregate
from geonorm.report import write_figures
from geonorm.report.comparison import markdown

RAW = "pre(entry=embedding)"
"""Pre-Norm as most papers have it: no norm at the entry."""


def collect(comparison: Path, experiment: Path) -> None:
    results = json.loads((comparison / "results.json").read_text())
    with open(experiment / "results.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(run) + "\n" for run in results["runs"])
    write_table(experiment)
    first = next(iter(sorted((comparison / "runs").iterdir())))
    shutil.copy(first / "environment.json", experiment / "environment.json")
    write_figures([comparison], experiment / "figures")


def write_table(experiment: Path) -> None:
    runs = read_runs(experiment)
    schemes = list(dict.fromkeys(run.scheme for run in runs))
    baselines = [schemes[0], *(name for name in schemes[1:] if name == RAW)]
    tables = [f"Differences to `{name}`\n\n{markdown(aggregate(runs, name))}" for name in baselines]
    (experiment / "table.md").write_text("\n".join(tables), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=folder_with("results.json", of="a comparison"), nargs="?")
    parser.add_argument("experiment", type=folder_with("README.md"))
    words = parser.parse_args()
    if words.comparison is not None:
        collect(words.comparison, words.experiment)
    elif (words.experiment / "results.jsonl").is_file():
        write_table(words.experiment)
    else:
        parser.error(f"{words.experiment} has no results.jsonl: name the folder of a comparison before it")
