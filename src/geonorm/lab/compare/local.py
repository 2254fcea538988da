"""Processes on this machine, as many at a time as it has cores or GPUs. They outlive this one only if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import Grid, TrainConfig
from ..runs.run import RunFolder, check_free, rows_of
from ..train.signals import PARENT, handle_signals, stop_unheard
from .team import Say, Team, done


@dataclass
class Worker:
    config: TrainConfig
    process: subprocess.Popen[bytes]
    device: int


class Local(Team):
    """Runs training processes, as many at a time as the machine has room for."""

    def __init__(self, out: Path, config: Grid, say: Say, live: bool) -> None:
        super().__init__(out, config, say, live)
        self.gpus = torch.cuda.device_count() if config.runtime.device in ("auto", "cuda") else 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.jobs = config.jobs or self.gpus or max(1, cores // config.runtime.threads)
        self.stopped = False

    def work(self, configs: list[TrainConfig]) -> None:
        for config in configs:
            check_free(Path(config.out), "a run whose comparison was killed saves and ends: then try the same command")
        waiting = list(configs)
        workers: list[Worker] = []
        with self.watch(workers) as refresh, self.interruptible(workers):
            while waiting or workers:
                while waiting and len(workers) < self.jobs and not self.stopped:
                    taken = {worker.device for worker in workers}
                    device = next(i for i in range(self.jobs) if i not in taken)
                    workers.append(self.start(waiting.pop(0), device))
                    if self.stopped:  # the signal came while the process was being made
                        workers[-1].process.send_signal(signal.SIGINT)
                if self.stopped and not workers:
                    break
                time.sleep(0.2)
                for worker in [w for w in workers if w.process.poll() is not None]:
                    workers.remove(worker)
                    if not self.stopped or done(worker.config):
                        self.report(worker.config)
                if self.unheard and not self.stopped:
                    self.stop(workers)
                refresh(len(waiting))
        if self.stopped:
            raise self.interrupted()

    def start(self, config: TrainConfig, device: int) -> Worker:
        path, log = self.settings(config), self.log(config)
        environment = {**os.environ, "OMP_NUM_THREADS": str(config.runtime.threads), "TOKENIZERS_PARALLELISM": "false"}
        environment[PARENT] = str(os.getpid())
        if self.gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            place = device % self.gpus
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[place] if visible else str(place)
        command = [sys.executable, "-m", "geonorm", "train", "--config", str(path)]
        with open(log, "ab") as file:  # in a session of its own: Ctrl-C reaches us first; we pass it on
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        return Worker(config, process, device)

    def stop(self, workers: list[Worker]) -> None:
        """Tells the runs to save and end; at the second time it kills them."""
        for worker in workers:
            worker.process.send_signal(signal.SIGKILL if self.stopped else signal.SIGINT)
        self.stopped = True

    @contextmanager
    def interruptible(self, workers: list[Worker]) -> Iterator[None]:
        """Passes signals to stop on to the runs; whatever else happens here, none of them goes on alone."""
        with handle_signals(lambda number, frame: self.stop(workers)):
            try:
                yield
            finally:
                for worker in workers:
                    worker.process.terminate()

    @contextmanager
    def watch(self, workers: list[Worker]) -> Iterator[Callable[[int], None]]:
        """A live table of the runs in progress, on a terminal; otherwise lines from `report` only."""
        if not self.live:
            yield lambda waiting: None
            return
        from rich.live import Live

        with Live(refresh_per_second=2, transient=True) as live:
            say, self.say = self.say, stop_unheard(live.console.print, self.unheard)
            update = stop_unheard(live.update, self.unheard)
            shown = 0.0

            def refresh(waiting: int) -> None:
                nonlocal shown
                if time.monotonic() - shown > 1:
                    update(progress_table(workers, waiting))
                    shown = time.monotonic()

            try:
                yield refresh
            finally:
                self.say = say


def progress_table(workers: list[Worker], waiting: int) -> Any:
    from rich.table import Table

    table = Table(title=f"{waiting} runs waiting", title_justify="left")
    for name in ("run", "step", "loss", "val loss", "tokens/s"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for worker in workers:
        rows = last_rows(RunFolder(Path(worker.config.out)).metrics)
        last = rows[-1] if rows else {"step": 0}
        val = next((row["val_loss"] for row in reversed(rows) if "val_loss" in row), None)
        numbers = ((last.get("loss"), ".4f"), (val, ".4f"), (last.get("tokens_per_second"), ",.0f"))
        cells = ["-" if value is None else format(value, form) for value, form in numbers]
        table.add_row(Path(worker.config.out).name, f"{last['step']}/{worker.config.steps}", *cells)
    return table


def last_rows(path: Path, size: int = 1 << 16) -> list[dict[str, Any]]:
    """The rows in the last `size` bytes of a file of metrics."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return list(rows_of(file.read().decode(errors="replace").splitlines()))
    except OSError:
        return []
