"""What schemes, norms and the preset `modern` cost at preset nano: parameters, operations, bytes kept, time of a step.

    python benchmarks/scheme_cost.py [--rounds 41] [--out benchmarks/results/stream_cost.json]

As in experiment 003: a whole training step, 8 sequences of 128 tokens, fp32, eager, fused AdamW, the CPU time of one
thread, in turns; a ratio to `pre` is the median of those within rounds with its 95 % interval. FLOPs are PyTorch's own
count of a forward and backward pass (products of matrices and attention); bytes kept are those of `train --dry-run`.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from geonorm.bench.config import TrainBench
from geonorm.bench.timing import Clock, ratio, take_turns
from geonorm.bench.train import Program, make_program
from geonorm.lab.config import Model, TrainConfig
from geonorm.lab.plan import plan
from geonorm.lab.runs import environment
from geonorm.models import Decoder

RESULTS = Path(__file__).parent / "results" / "stream_cost.json"
BATCH = 8
SCHEMES = """pre geonorm geonorm(update=unit) nag gpas lambdas mhc mhc(mix=permutation) mhc(mix=identity) attnres
attnres(blocks=2) prores prores(geonorm)""".split()
ROWS: dict[str, dict[str, Any]] = {scheme: {"scheme": scheme} for scheme in SCHEMES} | {
    "pre, norm derf": {"scheme": "pre", "norm": "derf"},
    "pre, norm gated": {"scheme": "pre", "norm": "gated"},
    "pre, attn_gate": {"scheme": "pre", "attn_gate": True},
    "pre, values first": {"scheme": "pre", "values": "first"},
    "pre, values token": {"scheme": "pre", "values": "token"},
    "modern": {"preset": "modern", "scheme": "lambdas"},
    "modern, pre": {"preset": "modern", "scheme": "pre"},
    "modern, geonorm": {"preset": "modern", "scheme": "geonorm"},
}


def configured(preset: str = "nano", scheme: str = "pre", **fields: Any) -> TrainConfig:
    return TrainConfig(preset=preset, scheme=scheme, batch_size=BATCH, model=Model(**fields))


def count(config: TrainConfig) -> dict[str, float]:
    """Parameters, FLOPs and kept bytes a token."""
    shape = config.shape(config.scheme)
    found = plan(config, machine="cpu")
    model, ids = Decoder(shape), torch.zeros(1, shape.context, dtype=torch.long)
    with FlopCounterMode(display=False) as flops:
        model.loss(ids, ids).backward()
    return {
        "parameters": found["parameters"],
        "flops_per_token": flops.get_total_flops() / shape.context,
        "kept_bytes_per_token": found["memory"]["activations"] / (BATCH * shape.context),
    }


def measure(rounds: int, out: Path) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    device, bench = torch.device("cpu"), TrainBench(batch_size=BATCH, threads=1)
    clock = Clock(device)
    programs: dict[str, Program] = {}
    rows = []
    for label, fields in ROWS.items():
        config = configured(**fields)
        shape = config.shape(config.scheme)
        random = torch.Generator().manual_seed(1)
        tokens = torch.randint(0, shape.vocab_size, (BATCH, shape.context + 1), generator=random)
        ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        programs[label] = make_program(config.scheme, "eager", shape, bench, ids, targets, device)
        rows.append({"row": label, **count(config)})
    times = take_turns({label: partial(clock.seconds, p.step) for label, p in programs.items()}, rounds)
    for row in rows:
        own = times[str(row["row"])]
        row.update(seconds=median(own), ratio=ratio(own, times["pre"]))
    setting = {"preset": "nano", "batch_size": BATCH, "dtype": "fp32", "rounds": rounds, "clock": clock.name}
    found = {"setting": setting, "rows": rows, "environment": environment.collect(device, 1, "")}
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, each beside `pre`, as in docs/performance.md."""
    base = rows[0]
    lines = ["| | parameters | FLOPs a token | kept, kB a token | step time / `pre` |", "|---|---|---|---|---|"]
    for row in rows:
        name, *rest = row["row"].split(", ")
        label = ", ".join([f"`{name}`", *rest])
        flops, kept = row["flops_per_token"] / base["flops_per_token"], row["kept_bytes_per_token"] / 1000
        time = "1" if row is base else "{:.2f} ({:.2f} to {:.2f})".format(*row["ratio"])
        lines.append(f"| {label} | {row['parameters']:,} | {flops:.3f} | {kept:.1f} | {time} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    print(table(measure(given.rounds, given.out)))
