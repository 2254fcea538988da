"""Which spikes in the runs of an experiment are the batch's, and which a run's own, from its results.jsonl.

    python experiments/spikes.py experiments/012-depth [START]

Writes spikes.md: for the runs that say at which steps they have spikes, and whose names begin with START (all must have
seen the same batches at a seed), by what stands in a name before the rate: how many runs, their spikes of the loss and
of the gradient norm before clipping, how many of these are not the batch's, and the runs that have such ones of the
loss. A spike lies six standard deviations above the mean of the hundred steps before it; it is the batch's where more
than half of the other runs of that seed have one at the same step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from programme import folder_with, read_runs

from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.spikes import STEPS, count_apart
from geonorm.report.tables import markdown_lines

HEAD = ("runs", "n", "spikes of the loss", "own", "of the gradient", "own", "own ones of the loss in")


def read_known(experiment: Path, start: str = "") -> list[Summary]:
    """The runs that came to their end and say at which steps their spikes are."""
    runs = (run for run in read_runs(experiment) if run.run.startswith(start) and run.status == "finished")
    return [run for run in runs if all(getattr(run, key) is not None for key in STEPS.values())]


def tabulate(runs: Sequence[Summary]) -> list[str]:
    rows: dict[str, list[Summary]] = {}
    for run in runs:
        rows.setdefault(run.run.rpartition("-lr")[0], []).append(run)
    lines = [tell(name, own, runs) for name, own in sorted(rows.items())]
    return markdown_lines(HEAD, [*lines, [*tell("all", runs, runs)[:-1], ""]])


def tell(name: str, own: Sequence[Summary], runs: Sequence[Summary]) -> list[str]:
    cells = [name, str(len(own))]
    for kind in STEPS:
        apart = [count_apart([run], runs, kind) for run in own]
        cells += [str(sum(getattr(run, kind) for run in own)), str(sum(found or 0 for found in apart))]
    lost = {run.run.rpartition("-lr")[2]: count_apart([run], runs, "spikes") for run in own}
    return [*cells, ", ".join(f"{run}: {found}" for run, found in lost.items() if found)]


def main(experiment: Path, start: str = "") -> int:
    runs = read_known(experiment, start)
    if not runs:
        print(f"{experiment} has no run {start}* that says where its spikes are", file=sys.stderr)
        return 2
    (experiment / "spikes.md").write_text("\n".join(tabulate(runs)) + "\n", encoding="utf-8")
    print(experiment / "spikes.md")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=folder_with("results.jsonl"), help="folder of an experiment")
    parser.add_argument("start", nargs="?", default="", metavar="START", help="what the names of runs begin with")
    words = parser.parse_args()
    sys.exit(main(words.experiment, words.start))
