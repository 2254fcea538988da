"""Keeps what an experiment found: summaries as JSON lines, the table, figures, and what it ran on.

    python experiments/collect.py runs/001-placement-on-cpu experiments/001-placement-on-cpu

Writes results.jsonl (one summary a run), environment.json, table.md and figures/ into the experiment's folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from geonorm.report import write_figures
from geonorm.report.tables import markdown


def collect(comparison: Path, experiment: Path) -> None:
    results = json.loads((comparison / "results.json").read_text())
    with open(experiment / "results.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(run) + "\n" for run in results["runs"])
    (experiment / "table.md").write_text(markdown(results["schemes"]), encoding="utf-8")
    first = next(iter(sorted((comparison / "runs").iterdir())))
    shutil.copy(first / "environment.json", experiment / "environment.json")
    write_figures([comparison], experiment / "figures")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path)
    parser.add_argument("experiment", type=Path)
    arguments = parser.parse_args()
    collect(arguments.comparison, arguments.experiment)
