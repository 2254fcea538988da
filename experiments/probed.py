"""Probes runs of an experiment while their weights are at hand, and keeps what is measured.

    python experiments/probed.py experiments/012-depth OUT

The experiment's runs.py says which runs under OUT: PROBED, a regular expression found in their names, at every
checkpoint that is there.
Writes probes.csv beside it, a line for each site of a run and step with the length of what
the sub-layer gives, the angle of the step, the mean cosine of two tokens before it and the norm of the weights'
gradient; and a line of kind `block` for each block with `worth`, the loss without it less the loss with it (nats per
token). What probes.csv has is not probed again.
"""

from __future__ import annotations

import argparse
import csv
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from programme import folder_with, read_finished, show

import geonorm
from geonorm.errors import GeonormError
from geonorm.lab.runs.folder import RunFolder

SITE = ("update_norm", "angle", "cos_pair", "grad_norm")
COLUMNS = ("run", "step", "layer", "kind", *SITE, "worth")
TOKENS = 8192
Line = list[str]


def checkpoints(run: Path) -> Iterator[tuple[int, Path]]:
    """Every checkpoint of a run by step, as a run folder that has no other."""
    for step in sorted((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.partition("-")[2])):
        with tempfile.TemporaryDirectory() as name:
            view = Path(name) / run.name
            (view / "checkpoints").mkdir(parents=True)
            for file in run.iterdir():
                if file.is_file():
                    (view / file.name).symlink_to(file.resolve())
            (view / "checkpoints" / step.name).symlink_to(step.resolve(), target_is_directory=True)
            yield int(step.name.partition("-")[2]), view


def measure(name: str, step: int, folder: Path) -> list[Line]:
    data = RunFolder(folder).config().data
    found = geonorm.probe(str(folder), data, tokens=TOKENS, gradients=True, ablate_blocks=True)
    rows: list[dict[str, Any]] = [{key: site.get(key) for key in ("layer", "kind", *SITE)} for site in found.sites]
    single = [row for row in found.ablation if row["blocks"] == 1]
    rows += [{"layer": row["first"], "kind": "block", "worth": row["increase"]} for row in single]
    return [[show(row.get(key)) for key in COLUMNS] for row in ({"run": name, "step": step, **row} for row in rows)]


def main(experiment: Path, out: Path) -> None:
    part = runpy.run_path(str(experiment / "runs.py")).get("PROBED", "")
    file = experiment / "probes.csv"
    known = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))[1:] if file.exists() else []
    done = {(row[0], row[1]) for row in known}
    for name in read_finished(out):
        for step, folder in checkpoints(out / name) if re.search(part, name) else ():
            if (name, str(step)) in done:
                continue
            known += measure(name, step, folder)
            print(name, step, flush=True)
            with file.open("w", encoding="utf-8", newline="") as text:
                csv.writer(text, lineterminator="\n").writerows([COLUMNS, *sorted(known, key=lambda row: row[0])])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=folder_with("runs.py"), help="folder with a plan, runs.py")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the runs")
    words = parser.parse_args()
    if not read_finished(words.out):
        parser.error(f"{words.out} holds no run that has finished: train them with experiments/programme.py")
    try:
        main(words.experiment, words.out)
    except GeonormError as error:
        parser.error(str(error))
