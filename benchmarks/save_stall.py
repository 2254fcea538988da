"""How long a save holds up the training, against a copy of the same state in memory.

    python benchmarks/save_stall.py [--rounds 15] [--out benchmarks/results/save_stall.json]

A model of about 50M parameters with AdamW's averages: 560 MB. Copy and save take turns; copy: every tensor cloned.
stall: what the training thread waits in `Saver.save`; both in wall time and in CPU time of that thread, which others
on a shared machine do not disturb. beside: how much slower a fixed piece of work (matrix products on one thread) gets
while the other thread writes, where the machine has a core for it. Ratios are medians of pairs with their
distribution-free 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from geonorm.lab import checkpoint
from geonorm.lab.config import Optim
from geonorm.lab.runs import environment
from geonorm.lab.statistics.comparison import ratio_interval
from geonorm.lab.train import optim
from geonorm.models import Decoder, DecoderConfig

SHAPE = DecoderConfig(scheme="geonorm", layers=12, width=512, heads=8, hidden=1408, vocab_size=8192, context=64)


def clock(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def clocks(row: dict[str, float], name: str, work: Any) -> None:
    """Wall time, and CPU time of this thread."""
    cpu = time.thread_time()
    row[name] = clock(work)
    row[f"{name}_cpu"] = time.thread_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder when not given")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Decoder(SHAPE)
    optimizers = optim.build_optimizers(model, Optim(), 1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    tensors, _ = checkpoint.tensors_to_save(model, optimizers, checkpoint.ALONE)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    a = torch.randn(700, 700)

    def work() -> None:
        for _ in range(40):
            a @ a

    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        saver = checkpoint.Saver(Path(folder), keep=1)
        for index in range(options.rounds + 1):
            row = {"copy": 0.0, "alone": clock(work)}
            for name in ("copy", "stall") if index % 2 else ("stall", "copy"):
                if name == "copy":
                    clocks(row, "copy", lambda: [tensor.clone() for tensor in tensors.values()])
                    continue
                clocks(row, "stall", lambda step=index: saver.save(step, model, optimizers, {}))
                row["beside"] = clock(work)
                row["rest"] = clock(saver.wait)
            row["written"] = row["stall"] + row["beside"] + row["rest"]
            rows.append(row)
        saver.close()
    rows = rows[1:]  # the first one warms up

    def ratio(above: str, below: str) -> dict[str, float]:
        middle, low, high = ratio_interval([row[above] / row[below] for row in rows])
        return {"ratio": middle, "low": low, "high": high, "pairs": len(rows)}

    result = {
        "bytes": size,
        "parameters": model.parameter_count(),
        "stall_over_copy": ratio("stall", "copy"),
        "stall_over_copy_cpu": ratio("stall_cpu", "copy_cpu"),
        "work_beside_a_save_over_alone": ratio("beside", "alone"),
        "stall_over_whole_save": ratio("stall", "written"),
        "median_ms": {key: 1e3 * sorted(row[key] for row in rows)[len(rows) // 2] for key in rows[0]},
        "environment": environment.collect(torch.device("cpu"), threads=1),
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
