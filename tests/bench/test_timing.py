"""Programs take turns, and what is reported is the median of ratios within rounds."""

from __future__ import annotations

import math
import time
from itertools import count
from random import Random

import pytest
import torch

from geonorm.bench.timing import CpuClock, clock_of, host_seconds, ratio, take_turns


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


def test_the_interval_covers_the_median_of_a_skewed_distribution() -> None:
    """Distribution-free: exp(noise) has median 1, whatever its tail. 41 rounds give at least 95 %."""
    random = Random(0)
    inside = 0
    for _ in range(400):
        values = [math.exp(random.gauss(0, 1.5)) for _ in range(41)]
        _, low, high = ratio(values, [1.0] * 41)
        assert low is not None and high is not None
        inside += low <= 1.0 <= high
    assert 0.93 <= inside / 400 <= 0.995


def test_few_rounds_give_no_interval() -> None:
    assert ratio([2.0] * 5, [1.0] * 5) == (2.0, None, None)
    assert ratio([2.0] * 6, [1.0] * 6) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError):
        ratio([1.0, 2.0], [1.0])


def test_one_thread_is_timed_by_its_own_work() -> None:
    """Sleeping is what a crowded machine makes a program do."""
    call = lambda: time.sleep(0.02)  # noqa: E731
    assert CpuClock(1).elapsed(call, 3) < 0.01
    assert CpuClock(2).elapsed(call, 3) >= 0.02
    assert clock_of(torch.device("cpu"), 2).name == "wall time"


def test_short_calls_are_repeated_and_divided() -> None:
    counter = count()
    sample = CpuClock(1).sampler(lambda: lambda: next(counter), cached=False)
    before = next(counter)
    seconds = sample()
    assert next(counter) - before > 1000 and 0 < seconds < 1e-5
    builds = count()

    def build() -> object:
        next(builds)
        return lambda: sum(range(400_000))

    long = CpuClock(1).sampler(build, cached=False)  # type: ignore[arg-type]
    assert long() > 1e-4 and next(builds) == 1


def test_host_time_is_the_least_mean() -> None:
    durations = iter([1.0] * 5 + [5.0] * 2 + [3.0] * 2 + [4.0] * 2)

    class Fake(CpuClock):
        now = 0.0

        def __init__(self) -> None:
            self.read = lambda: self.now

    clock = Fake()

    def call() -> None:
        clock.now += next(durations)

    assert host_seconds(lambda: call, clock, calls=2, tries=3) == 3.0
