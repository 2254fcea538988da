"""Programs take turns, and what is reported is the median of ratios within rounds."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain, repeat
from random import Random
from types import SimpleNamespace

import pytest
import torch

from geonorm.bench.config import OpsBench
from geonorm.bench.ops import bench_ops
from geonorm.bench.timing import Call, Clock, GraphClock, ratio, take_turns

from ..rows import each

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


def test_few_rounds_give_no_interval() -> None:
    assert ratio([2.0] * 5, [1.0] * 5) == (2.0, None, None)
    assert ratio([2.0] * 6, [1.0] * 6) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError):
        ratio([1.0, 2.0], [1.0])


class FakeClock(Clock):
    """Time passes only where a call says so: what is tested rests on no machine."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__(CPU)
        self.read = lambda: self.now

    def calls(self, *durations: float) -> Call:
        """A call that takes these seconds one after another, the last of them for good."""
        left = chain(durations, repeat(durations[-1]))

        def call() -> None:
            self.now += next(left)

        return call


def test_one_thread_is_timed_by_its_own_work() -> None:
    """Waiting for a core is what a crowded machine makes a program do; several threads have no one clock."""
    assert (Clock(CPU, 1).read, Clock(CPU, 1).name) == (time.process_time, "CPU time of the process")
    assert (Clock(CPU, 2).read, Clock(CPU, 2).name) == (time.perf_counter, "wall time")
    clock = FakeClock()
    assert clock.seconds(clock.calls(1.0, 2.0, 6.0), 3) == 3.0


@each("duration, repeated", [(1e-6, 2000), (1e-3, 2), (0.5, 1), (0.0, 2_000_000)])
def test_short_calls_are_repeated_and_divided(duration: float, repeated: int) -> None:
    """The first call is a warm-up and the shorter of the next two says how often a sample repeats it."""
    clock, count = FakeClock(), 0
    call = clock.calls(9.0, 1.0, duration)

    def counted() -> None:
        nonlocal count
        count += 1
        call()

    sample = clock.sampler(lambda: counted, cached=False)
    assert count == 3
    assert sample() == pytest.approx(duration)
    assert count == 3 + repeated


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None: ...
    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, other: object) -> float:
        return 1.0


def test_what_a_captured_graph_points_to_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph knows addresses, and capturing the next one gives free memory back to the driver."""
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    for name, fake in {
        "stream": lambda stream: nullcontext(), "current_stream": lambda device: stream, "Event": FakeEvent,
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "graph": lambda graph, stream: nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    clock = GraphClock.__new__(GraphClock)
    clock.device, clock.stream, clock.flush = torch.device("cpu"), stream, torch.zeros(1)  # type: ignore[assignment]
    alive: list[Callable[[], torch.Tensor | None]] = []

    def build() -> Call:
        source = torch.ones(4)
        alive.append(weakref.ref(source))
        return lambda: source + 1

    sample = clock.sampler(build, cached=False)
    assert sample() == 1e-3 and alive[0]() is not None
    del sample
    assert alive[0]() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_benchmark_of_a_gpu_runs() -> None:
    summary = bench_ops(OpsBench(shapes=["256x768"], pairs=7, dtypes=["bf16"], device="cuda"))
    assert {row["name"] for row in summary["rows"]} >= {"geonorm", "geonorm, read through a norm"}
