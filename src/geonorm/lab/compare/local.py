"""Processes on this machine, as many at a time as it has cores or GPUs. They outlive this one only if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...progress import Pace, Unwatched, show_progress, span
from ..config import Grid, TrainConfig
from ..runs.run import RunFolder, check_free, rows_of
from ..runs.summary import loss_text
from ..train.signals import PARENT, handle_signals
from .team import Say, Team, done

QUIET = 60.0
"""Seconds after which a line says how far the runs are, where nobody watches bars."""


@dataclass
class Worker:
    config: TrainConfig
    process: subprocess.Popen[bytes]
    device: int


class Phase:
    """Runs that are made together, and how far they are. The lists of those in progress and of those that wait are
    the team's own."""

    def __init__(self, configs: list[TrainConfig], workers: list[Worker], waiting: list[TrainConfig]) -> None:
        self.configs, self.workers, self.waiting = configs, workers, waiting
        self.total = sum(config.steps for config in configs)
        self.pace = Pace(self.made(), clock=time.monotonic)

    @property
    def name(self) -> str:
        return "tuning runs" if self.configs[0].phase == "tune" else "final runs"

    @property
    def header(self) -> str:
        steps = sorted({config.steps for config in self.configs})
        return f"{self.name}: {len(self.configs)} of {' to '.join(map(str, steps[:: max(1, len(steps) - 1)]))} steps"

    def made(self) -> int:
        """Steps of all of them that are made; of a run that has ended all."""
        return self.total - sum(config.steps - steps_made(config) for config in self.going())

    def going(self) -> list[TrainConfig]:
        return [worker.config for worker in self.workers] + self.waiting

    def place(self) -> str:
        """How far all are, behind a line on one."""
        return f" ({len(self.configs) - len(self.going())} of {len(self.configs)}{self.left(self.made())})"

    def left(self, made: int) -> str:
        left = self.pace.left(made, self.total)
        return f", {span(left)} left" if left else ""

    def line(self) -> str:
        """How far all are, in a line of its own."""
        made = self.made()
        return f"{self.name}: step {made:,} of {self.total:,} in all{self.left(made)}"

    def show(self, shown: Unwatched) -> None:
        """A bar for all of them, and one for each in progress."""
        made, waiting = self.made(), f"{len(self.waiting)} runs waiting"
        shown.show(self.name, made / self.total, waiting, self.pace.left(made, self.total))
        for config in (worker.config for worker in self.workers):
            rows = last_rows(RunFolder(Path(config.out)).metrics)
            last = rows[-1] if rows else {"step": 0}
            val = next((row["val_loss"] for row in reversed(rows) if row.get("val_loss") is not None), None)
            said = f"{last['step']}/{config.steps}" + (f" {loss_text(last)}" if rows else "")
            said += "" if val is None else f" val {val:.4f}"
            shown.show(Path(config.out).name, last["step"] / config.steps, said)


def steps_made(config: TrainConfig) -> int:
    """Steps that a run has made so far."""
    rows = last_rows(RunFolder(Path(config.out)).metrics)
    return int(rows[-1]["step"]) if rows else 0


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
        phase = Phase(configs, workers, waiting)
        self.say(f"{phase.header}, {self.jobs} at a time")
        told = time.monotonic()
        with show_progress(self.live, tell=False) as shown, self.interruptible(workers):
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
                    shown.drop(Path(worker.config.out).name)
                    if not self.stopped or done(worker.config):
                        self.report(worker.config, phase.place())
                        told = time.monotonic()
                if self.unheard and not self.stopped:
                    self.stop(workers)
                if shown.watched:
                    phase.show(shown)
                elif time.monotonic() - told > QUIET:
                    self.say(phase.line())
                    told = time.monotonic()
        if self.stopped:
            raise self.interrupted()

    def start(self, config: TrainConfig, device: int) -> Worker:
        path, log = self.settings(config), self.log(config)
        environment = {**os.environ, **self.variables(), PARENT: str(os.getpid())}
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


def last_rows(path: Path) -> list[dict[str, Any]]:
    """The rows in the last 64 KiB of a file of metrics."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 2**16))
            return list(rows_of(file.read().decode(errors="replace").splitlines()))
    except OSError:
        return []
