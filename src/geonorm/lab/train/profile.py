"""A profile of some steps of a run, by torch.profiler."""

from collections.abc import Callable
from pathlib import Path

from torch import profiler

from .hooks import Hook, Row
from .state import TrainState

BEFORE = 3
"""Steps that are left out: the first ones compile and fill caches."""


class ProfileHook(Hook):
    """Writes profile/ in the folder of a run: trace.json.gz for Perfetto or chrome://tracing, and table.txt, operators
    by their time on the device. A run that ends before the last of these steps leaves a profile of those it made."""

    def __init__(self, run: Path, steps: int, at_end: Callable[[Callable[[], None]], object]) -> None:
        """at_end: registers a function to call when the run ends."""
        self.folder = run / "profile"
        times = profiler.schedule(skip_first=BEFORE - 1, wait=0, warmup=1, active=steps, repeat=1)
        # of one cycle: torch 2.11 warns that others would go
        self.profiler = profiler.profile(schedule=times, on_trace_ready=self.write, acc_events=True)
        self.profiler.start()
        at_end(self.profiler.stop)

    def after_step(self, state: TrainState, row: Row) -> None:
        self.profiler.step()

    def write(self, recorded: profiler.profile) -> None:
        self.folder.mkdir(exist_ok=True)
        recorded.export_chrome_trace(str(self.folder / "trace.json.gz"))
        device = "cuda" if profiler.ProfilerActivity.CUDA in recorded.activities else "cpu"
        table = recorded.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=50)
        (self.folder / "table.txt").write_text(table, encoding="utf-8")
