"""What probing a model costs beside running it.

    python benchmarks/probe.py [--rounds 15] [--batch 4] [--context 128] [--out benchmarks/results/probe.json]

A random GPT-2 of transformers, 12 layers, width 768, fp32 on one CPU thread. In turns, in an order that rotates: the
forward pass of the model, that of its body alone (no logits), and the body under the probe's hooks with every measure
of sites and norms. Ratios are medians over rounds with their 95 % interval, in CPU time. `rows` is what is paid once at
the end, whatever the number of tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from geonorm.lab.runs import environment
from geonorm.lab.statistics.comparison import ratio_interval
from geonorm.measure.probe import ProbedModel


def seconds(run: Callable[[], Any]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    subject = ProbedModel(model)
    ids = torch.randint(0, model.config.vocab_size, (options.batch, options.context))
    programs = {
        "model": lambda: subject.run({"input_ids": ids}, head=True),
        "body": lambda: subject.run({"input_ids": ids}, head=False),
        "probe": lambda: subject.measure([ids]),
    }
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for run in programs.values():  # the first pass of each is slower
        run()
    names = list(programs)
    for turn in range(options.rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            spent[name].append(seconds(programs[name]))
    found: dict[str, Any] = {
        "model": "GPT-2, 12 layers, width 768, random weights, fp32, one thread",
        "batch": options.batch,
        "context": options.context,
        "rounds": options.rounds,
        "rows_seconds": sum(
            map(seconds, (subject.capture.rows, subject.capture.norm_rows, subject.capture.layer_rows))
        ),
    }
    for name in ("model", "body"):
        ratio, low, high = ratio_interval([a / b for a, b in zip(spent["probe"], spent[name], strict=True)])
        found[f"probe_over_{name}"] = {"ratio": ratio, "low": low, "high": high}
        print(f"probe / {name}: {ratio:.3f} ({low:.3f} to {high:.3f})" if low and high else f"{name}: {ratio:.3f}")
    print(f"rows: {found['rows_seconds']:.1f} s once")
    if options.out:
        about = environment.collect(torch.device("cpu"), threads=1)
        options.out.write_text(json.dumps({**found, "environment": about}, indent=1) + "\n")


if __name__ == "__main__":
    main()
