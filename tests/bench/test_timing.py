"""Programs take turns, and what is reported is the median of ratios within rounds."""

from __future__ import annotations

import time
from random import Random

import pytest
import torch

from geonorm.bench.config import OpsBench
from geonorm.bench.ops import bench_ops
from geonorm.bench.timing import Clock, ratio, take_turns

CPU = torch.device("cpu")


def test_everyone_is_timed_once_a_round_in_changing_order() -> None:
    calls: list[str] = []

    def sampler(name: str) -> float:
        calls.append(name)
        return len(calls)

    times = take_turns({name: (lambda name=name: sampler(name)) for name in "abc"}, 20)
    rounds = ["".join(calls[start : start + 3]) for start in range(0, 60, 3)]
    assert all(sorted(one) == list("abc") for one in rounds)
    assert len(set(rounds)) > 3  # of 6 orders
    for name in "abc":
        assert times[name] == [float(at + 1) for at, called in enumerate(calls) if called == name]


def test_ratios_are_paired() -> None:
    """A machine that slows down tenfold in the middle of a measurement changes no ratio."""
    random = Random(3)
    load = [1.0] * 20 + [10.0] * 21
    slow = [3.0 * each * random.uniform(0.99, 1.01) for each in load]
    fast = [2.0 * each for each in load]
    middle, low, high = ratio(slow, fast)
    assert low is not None and high is not None
    assert low <= middle <= high and abs(middle - 1.5) < 0.01 and high - low < 0.02


def test_one_thread_is_timed_by_its_own_work() -> None:
    """Waiting for a core is what a crowded machine makes a program do; several threads have no one clock."""
    assert (Clock(CPU, 1).read, Clock(CPU, 1).name) == (time.process_time, "CPU time of the process")
    assert (Clock(CPU, 2).read, Clock(CPU, 2).name) == (time.perf_counter, "wall time")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_benchmark_of_a_gpu_runs() -> None:
    summary = bench_ops(OpsBench(shapes=["256x768"], pairs=7, dtypes=["bf16"], device="cuda"))
    assert {row["name"] for row in summary["rows"]} >= {"geonorm", "geonorm, read through a norm"}
