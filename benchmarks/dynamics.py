"""Speed and memory of the particle system.

    python benchmarks/dynamics.py [--rounds 41] [--large 60000] [--out benchmarks/results/dynamics.json]

products our velocity against its two matrix products alone, y y^T and s y: n = 1024 and up
large    one velocity of many particles (d = 64, fp32) in a process of its own: seconds, and peak memory of the process
Products take turns on one thread, by CPU time; a ratio is the median of those within rounds, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from geonorm import dynamics
from geonorm.bench.timing import Clock, ratio, take_turns
from geonorm.lab.runs import environment

WORDS = {torch.float32: "fp32", torch.float64: "fp64"}


def compare(a: Callable[[], Any], b: Callable[[], Any], rounds: int) -> dict[str, float | None]:
    """time(a) / time(b) within rounds, after one to warm up: median, its 95 % interval, and the median times."""
    clock = Clock(torch.device("cpu"))
    samplers = {"a": partial(clock.seconds, a), "b": partial(clock.seconds, b)}
    take_turns(samplers, 1)
    times = take_turns(samplers, rounds)
    middle, low, high = ratio(times["a"], times["b"])
    a_ms, b_ms = (1e3 * median(times[name]) for name in "ab")
    return {"ratio": middle, "low": low, "high": high, "pairs": rounds, "a_ms": a_ms, "b_ms": b_ms}


def against_products(n: int, dim: int, scheme: str, dtype: torch.dtype, rounds: int) -> dict[str, float | None]:
    flow = dynamics.Flow(scheme, dynamics.Attention(beta=1.0))
    x = flow.start(dynamics.uniform(n, dim, dtype=dtype))[0]
    return compare(partial(flow.velocity, x, 0.0), lambda: (x @ x.mT) @ x, rounds)


def peak() -> int:
    """Peak bytes of this process alone; what the system calls the peak of a child includes its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def large(n: int) -> dict[str, float]:
    """In this process: the peak includes Python and torch, whose share is reported."""
    before = peak()
    flow = dynamics.Flow("post", dynamics.Attention(beta=1.0))
    x = flow.start(dynamics.uniform(n, 64, dtype=torch.float32))
    begun, cpu = time.perf_counter(), time.process_time()
    moved = flow.velocity(x, 0.0)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
    assert torch.isfinite(moved).all()
    times = {"seconds": seconds, "cpu_seconds": cpu_seconds}
    return {"n": n, "dim": 64, **times, "peak_bytes": peak(), "torch_bytes": before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--large", type=int, default=60_000)
    parser.add_argument("--only-large", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if args.only_large:
        print(json.dumps(large(args.only_large)))
        return
    rows: dict[str, Any] = {}
    for n, dim in ((1024, 64), (1024, 512), (4096, 64)):
        for scheme, dtype in (("post", torch.float32), ("geonorm", torch.float32), ("pre", torch.float64)):
            name = f"{scheme} / products, n {n} d {dim} {WORDS[dtype]}"
            rows[name] = row = against_products(n, dim, scheme, dtype, args.rounds)
            within = f"({row['low']:.2f} to {row['high']:.2f})"
            print(f"{name:48} {row['ratio']:6.2f}  {within:18} {row['a_ms']:.1f} / {row['b_ms']:.1f} ms", flush=True)
    command = [sys.executable, __file__, "--only-large", str(args.large)]
    rows["large"] = big = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(
        f"{args.large} particles, d 64, fp32: {big['seconds']:.1f} s a velocity ({big['cpu_seconds']:.1f} s CPU), "
        f"peak {big['peak_bytes'] / 2**30:.2f} GiB of which torch {big['torch_bytes'] / 2**30:.2f}"
    )
    if args.out:
        about = environment.collect(torch.device("cpu"), 1, "")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
