"""Times a training step of schemes in the shape of an experiment's runs, in turns.

    python experiments/cost.py experiments/013-candidate 'geonorm(update=unit)' [--baseline pre] [--rounds 101]

Everything but the scheme is as in the first run of the experiment's plan. Writes cost.json into its folder: for each
scheme the median seconds of a step, CPU time of one thread, and the median of its ratios to the baseline within a
round, with the 95 % interval of order statistics.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from programme import folder_with

from geonorm.bench.config import TrainBench
from geonorm.bench.timing import clock_of, ratio, take_turns
from geonorm.bench.train import one_step, ours, warm_up
from geonorm.cli.arguments import read
from geonorm.errors import GeonormError
from geonorm.lab.config import TrainCommand
from geonorm.lab.runs import environment
from geonorm.lab.runs.folder import write_json
from geonorm.schemes import parse

DEVICE = torch.device("cpu")


def measure(experiment: Path, schemes: list[str], rounds: int) -> dict[str, Any]:
    """The first scheme is the baseline."""
    words = next(iter(runpy.run_path(str(experiment / "runs.py"))["plan"]({}).values()))
    config = read(TrainCommand, "geonorm train", list(words)).run()
    torch.set_num_threads(1)
    clock, mode = clock_of(DEVICE, 1), "compiled" if config.runtime.compile else "eager"
    bench = TrainBench(batch_size=config.batch_size, threads=1)
    shapes = {scheme: replace(config, scheme=scheme).shape(scheme) for scheme in schemes}
    shape = shapes[schemes[0]]
    tokens = torch.randint(shape.vocab_size, (config.batch_size, shape.context + 1))
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    programs = {
        scheme: warm_up(partial(ours, scheme, mode, own, bench, ids, targets, DEVICE, config.steps), DEVICE)
        for scheme, own in shapes.items()
    }
    times = take_turns({scheme: partial(one_step, own, clock, DEVICE) for scheme, own in programs.items()}, rounds)
    rows = [
        {"scheme": scheme, "seconds": median(own), "ratio": ratio(own, times[schemes[0]])}
        for scheme, own in times.items()
    ]
    setting = {"width": shape.width, "layers": shape.layers, "batch_size": config.batch_size, "mode": mode}
    return {"setting": setting, "rounds": rounds, "rows": rows, "environment": environment.collect(DEVICE, 1, "")}


def name_scheme(word: str) -> str:
    """A scheme as its runs name it."""
    try:
        return str(parse(word))
    except GeonormError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=folder_with("runs.py"), help="folder with a plan, runs.py")
    parser.add_argument("schemes", nargs="+", type=name_scheme, metavar="SCHEME")
    parser.add_argument("--baseline", default="pre", type=name_scheme, metavar="SCHEME")
    parser.add_argument("--rounds", type=int, default=101)
    given = parser.parse_args()
    wanted = list(dict.fromkeys((given.baseline, *given.schemes)))
    found = measure(given.experiment, wanted, given.rounds)
    write_json(given.experiment / "cost.json", found)
    print(json.dumps(found["rows"], indent=1))
