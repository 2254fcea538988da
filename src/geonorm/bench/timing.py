"""Clocks, and programs that take turns.

A machine shared with others slows down and speeds up by tens of percent within seconds. Programs measured in turns
meet the same conditions, so what is reported is the median of the ratios within each round, with the interval that
order statistics give it. Absolute times are printed beside it for orientation. A program of one CPU thread is timed by
the CPU time that the process uses, which leaves out the time in which others have the core; several threads and GPUs
by the wall.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from random import Random

import torch

from ..lab.statistics.comparison import ratio_interval

Call = Callable[[], object]
Build = Callable[[], Call]
"""Makes the call that is timed; runs where the call will run, so that a backward pass meets its own forward pass."""
Sampler = Callable[[], float]
"""Runs the call once, or a few times, and returns the seconds of one call."""
Ratio = tuple[float, float | None, float | None]
"""A median of ratios within rounds and its 95 % interval; no interval from fewer than 6 rounds."""

SAMPLE_SECONDS = 2e-3
"""A call shorter than this is repeated within a sample."""
REPLAYS = 20
"""Calls in one captured graph, where the data stays in the GPU's cache anyway."""


def ratio(times: Sequence[float], to: Sequence[float]) -> Ratio:
    """Of two programs that were timed in the same rounds."""
    return ratio_interval([a / b for a, b in zip(times, to, strict=True)])


def take_turns(samplers: Mapping[str, Sampler], rounds: int) -> dict[str, list[float]]:
    """Seconds of every program in every round: each runs once a round, in an order drawn anew each round."""
    order = list(samplers)
    random = Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(samplers[name]())
    return times


class Clock:
    """Time around calls. Data is where the previous programs left it."""

    l2 = 0
    """Bytes of cache that a sampler empties."""

    def __init__(self, device: torch.device, threads: int = 1) -> None:
        self.device = device
        alone = device.type == "cpu" and threads == 1
        self.read = time.process_time if alone else time.perf_counter
        self.name = "CPU time of the process" if alone else "wall time"

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Call, count: int = 1) -> float:
        """Seconds per call, from an idle device to an idle device."""
        self.wait()
        begun = self.read()
        for _ in range(count):
            call()
        self.wait()
        return (self.read() - begun) / count

    def sampler(self, build: Build, cached: bool) -> Sampler:
        call = build()
        call()
        once = min(self.seconds(call) for _ in range(2))
        count = max(1, round(SAMPLE_SECONDS / max(once, 1e-9)))
        return lambda: self.seconds(call, count)


class GraphClock(Clock):
    """Device time between two events around the replay of a captured graph, so that launch overhead does not hide in
    it. Before each replay a buffer of several times the L2 cache is written,
    unless the data fits into the cache: then one graph holds many calls and stays warm."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.name = "device time of a captured graph"
        self.l2: int = torch.cuda.get_device_properties(device).L2_cache_size
        self.flush = torch.empty(max(4 * self.l2, 256 << 20), dtype=torch.uint8, device=device)
        self.stream = torch.cuda.Stream(device)

    def sampler(self, build: Build, cached: bool) -> Sampler:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            call = build()
            for _ in range(3):
                call()
        self.stream.synchronize()
        count = REPLAYS if cached else 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(count):
                call()

        def sample(alive: Call = call) -> float:
            """`alive`: a graph knows addresses only, so what is there must live as long as it."""
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            with torch.cuda.stream(self.stream):
                if not cached:
                    self.flush.zero_()
                start.record()
                graph.replay()
                end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3 / count

        sample()
        return sample
