"""Executors: they run the configs of a comparison and return the summaries.

All leave the same files, and none repeats a finished run. They differ in how they start a run, see that it has ended,
and stop it:

    DIR/configs/NAME.yaml  DIR/configs/NAME.log  DIR/runs/NAME/
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import torch

from ...errors import GeonormError, Interrupted
from ...output import columns
from ...progress import NAME, Pace, Unwatched, shorten, show_progress, span
from ...schemes import parse, sources_of
from ...settings import to_dict
from ..config import Runtime, TrainConfig, phase_of
from ..runs.folder import LOCK, RunFolder, lock_folder, read_summary, rows_of, write_settings
from ..runs.records import Summary
from ..train.loop import train
from ..train.signals import PARENT, handle_signals, stop_unheard
from ..train.stack import StackedModels, split_scheme

Say = Callable[[str], None]
LINE_LENGTH = 1000
"""Characters of a line in a file or pipe: long enough for whole names of runs."""
STACKED_JOBS = 64
"""Runs that are trained at a time as stacked models, unless --jobs says otherwise."""
QUIET = 60.0
"""Seconds after which a line says how far the runs are, where nobody watches bars."""


@dataclass
class Job:
    """A run in progress: the executor's handle of it, its slot among the jobs at a time, its steps when it was
    started."""

    config: TrainConfig
    handle: Any
    place: int
    step: int


class Phase:
    """The tuning runs or the final runs of a study, and how far they are."""

    def __init__(self, configs: list[TrainConfig]) -> None:
        self.configs, self.waiting = configs, list(configs)
        self.jobs: list[Job] = []
        self.total = sum(config.steps for config in configs)
        self.pace = Pace(self.steps(), clock=time.monotonic)
        self.name = "tuning runs" if phase_of(configs[0].seed) == "tune" else "final runs"

    @property
    def header(self) -> str:
        steps = sorted({config.steps for config in self.configs})
        return f"{self.name}: {len(self.configs)} of {' to '.join(map(str, steps[:: max(1, len(steps) - 1)]))} steps"

    def steps(self) -> int:
        """Steps made by all of them; a run that has ended counts in full."""
        return self.total - sum(config.steps - steps_made(config) for config in self.unfinished())

    def unfinished(self) -> list[TrainConfig]:
        return [job.config for job in self.jobs] + self.waiting

    def progress(self) -> str:
        """How far all are, as the end of a line about one."""
        return f" ({len(self.configs) - len(self.unfinished())} of {len(self.configs)}{self.left(self.steps())})"

    def left(self, steps: int) -> str:
        left = self.pace.left(steps, self.total)
        return f", {span(left)} left" if left else ""

    def line(self) -> str:
        """How far all are, in a line."""
        steps = self.steps()
        return f"{self.name}: step {steps:,} of {self.total:,} in all{self.left(steps)}"

    def show(self, bars: Unwatched) -> None:
        """A bar for all of them, and one for each in progress."""
        steps = self.steps()
        bars.show(self.name, steps / self.total, f"{len(self.waiting)} runs waiting", self.pace.left(steps, self.total))
        for config in (job.config for job in self.jobs):
            step = steps_made(config)
            bars.show(Path(config.out).name, step / config.steps, f"{step}/{config.steps}")


class Executor(ABC):
    """Runs training processes, `jobs` at a time. A subclass says how one is started, has ended, and is stopped."""

    jobs: int
    wait = 1.0
    """Seconds between two looks at the jobs."""

    def __init__(self, out: Path, runtime: Runtime, jobs: int | None, say: Say, live: bool) -> None:
        self.out, self.runtime, self.live = out, runtime, live
        self.unheard: list[float] = []  # times at which a line could not be written: its pipe is closed
        self.say = stop_unheard(say, self.unheard)
        self.requested: list[TrainConfig] = []
        self.stopped = False

    @abstractmethod
    def start(self, config: TrainConfig, place: int) -> Any:
        """Start a run and return its handle. `place`: its slot, a number below `jobs` that no other run in progress
        has."""

    @abstractmethod
    def ended(self, job: Job) -> bool:
        """True if the process of a run has ended. Then its log has its last words, even if it could not write them."""

    def goes_on(self, job: Job) -> bool:
        """True if a run that has ended is started again."""
        return False

    @abstractmethod
    def cancel(self, job: Job, kill: bool) -> None:
        """Make a run save and end, or end at once."""

    def close(self) -> None:  # noqa: B027
        """Release what the executor holds."""

    def run(self, configs: list[TrainConfig]) -> list[Summary]:
        """Run what is not finished yet and return the summaries in order. A run that died has status failed."""
        self.requested += configs
        waiting = [c for c in configs if not done(c)]
        if skipped := len(configs) - len(waiting):
            self.say(f"{skipped} of {len(configs)} runs are finished already")
        if waiting:
            self.work(waiting)
        return [outcome(c) for c in configs]

    def work(self, configs: list[TrainConfig]) -> None:
        """Return when every one of these runs has ended."""
        for config in configs:
            if (Path(config.out) / LOCK).exists():
                with lock_folder(
                    Path(config.out), "a run whose comparison was killed saves and ends: then try the same command"
                ):
                    pass
        phase = Phase(configs)
        self.say(f"{phase.header}, {self.jobs} at a time")
        last_line_at = time.monotonic()
        with show_progress(self.live, tell=False) as bars, handle_signals(lambda number, frame: self.stop(phase.jobs)):
            try:
                while phase.jobs or (phase.waiting and not self.stopped):
                    while phase.waiting and len(phase.jobs) < self.jobs and not self.stopped:
                        self.start_next(phase)
                    time.sleep(self.wait)
                    for job in [job for job in phase.jobs if self.ended(job)]:
                        phase.jobs.remove(job)
                        bars.drop(Path(job.config.out).name)
                        if not self.stopped and self.goes_on(job):
                            phase.waiting.insert(0, job.config)
                        elif not self.stopped or done(job.config):
                            self.report(job.config, phase.progress())
                            last_line_at = time.monotonic()
                    if self.unheard and not self.stopped:
                        self.stop(phase.jobs)
                    if bars.watched:
                        phase.show(bars)
                    elif time.monotonic() - last_line_at > QUIET:
                        self.say(phase.line())
                        last_line_at = time.monotonic()
            finally:  # whatever happens here, no run goes on alone
                for job in phase.jobs:
                    self.cancel(job, kill=False)
        if self.stopped:
            raise Interrupted(f"stopped; every run is saved in {self.out}; the same command goes on from there")

    def start_next(self, phase: Phase) -> None:
        places = {job.place for job in phase.jobs}
        place = next(i for i in range(self.jobs) if i not in places)
        config = phase.waiting.pop(0)
        phase.jobs.append(Job(config, self.start(config, place), place, steps_made(config)))
        if self.stopped:  # the signal came while the run was being started
            self.cancel(phase.jobs[-1], kill=False)

    def stop(self, jobs: list[Job]) -> None:
        """Tell the runs to save and end; the second time kill them."""
        for job in jobs:
            self.cancel(job, kill=self.stopped)
        self.stopped = True

    def variables(self) -> dict[str, str]:
        """Environment of the process of a run: its threads, and no file of the working directory, which `python -m`
        would look in first, in the place of an installed module."""
        threads = str(self.runtime.threads)
        return {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}

    def save_settings(self, config: TrainConfig) -> Path:
        """Write the settings of a run where its process reads them."""
        path = self.out / "configs" / f"{Path(config.out).name}.yaml"
        path.parent.mkdir(exist_ok=True)
        if (log := self.log_file(config)).is_symlink():  # a folder of somebody else's could lead anywhere
            log.unlink()
        write_settings(path, to_dict(config))
        return path

    def log_file(self, config: TrainConfig) -> Path:
        return self.out / "configs" / f"{Path(config.out).name}.log"

    def add_to_log(self, config: TrainConfig, line: str) -> None:
        """Add a line to the log of a run whose worker died before it could."""
        with open(self.log_file(config), "a") as file:
            file.write(f"{line}\n")

    def report(self, config: TrainConfig, place: str) -> None:
        """One line on a run that has ended, and on how far the others are."""
        summary, name = outcome(config), Path(config.out).name
        if summary.status == "finished":
            text = f": val_loss {summary.val_loss:.4f}, {summary.wall_seconds:.0f} s{place}"
            self.say(shorten(name, max(NAME, columns(LINE_LENGTH) - len(text))) + text)
        else:
            self.say(f"{name}: {summary.status}: {last_line(self.log_file(config))}")


class LocalExecutor(Executor):
    """Processes on this machine, as many at a time as it has cores or GPUs."""

    wait = 0.2

    def __init__(self, out: Path, runtime: Runtime, jobs: int | None, say: Say, live: bool) -> None:
        super().__init__(out, runtime, jobs, say, live)
        self.gpus = torch.cuda.device_count() if runtime.device in ("auto", "cuda") else 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        named = runtime.device.startswith("cuda")  # cuda:1 is one GPU
        self.jobs = jobs or self.gpus or (1 if named else max(1, cores // runtime.threads))

    def start(self, config: TrainConfig, place: int) -> subprocess.Popen[bytes]:
        path, log = self.save_settings(config), self.log_file(config)
        environment = {**os.environ, **self.variables(), PARENT: str(os.getpid())}
        if self.gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            device = place % self.gpus
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[device] if visible else str(device)
        command = [sys.executable, "-m", "geonorm", "train", "--config", str(path)]
        if sources_of(parse(config.scheme)):  # it was typed here, and there it stands in a file
            command.append("--trust-code")
        with open(log, "ab") as file:  # in a session of its own: Ctrl-C reaches us first; we pass it on
            return subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def ended(self, job: Job) -> bool:
        return job.handle.poll() is not None

    def cancel(self, job: Job, kill: bool) -> None:
        job.handle.send_signal(signal.SIGKILL if kill else signal.SIGINT)


class StackedExecutor(Executor):
    """Threads of this process: runs that differ in seed, rates and numbers of their scheme alone are trained as one
    stacked model."""

    wait = 0.2

    def __init__(self, out: Path, runtime: Runtime, jobs: int | None, say: Say, live: bool) -> None:
        super().__init__(out, runtime, jobs, say, live)
        self.jobs = jobs or STACKED_JOBS
        self.turn = Condition()
        self.stacks: dict[str, StackedModels] = {}

    def start(self, config: TrainConfig, place: int) -> Thread:
        self.save_settings(config)
        kind, numbers = split_scheme(parse(config.scheme))
        shape = repr((kind, to_dict(config) | dict.fromkeys(("scheme", "seed", "lr", "optim", "out"))))
        stack = self.stacks.get(shape)
        if stack is None or not stack.members:  # one for each phase
            others = [split_scheme(parse(run.scheme)) for run in self.requested]
            fields = [name for name in numbers if len({each[name] for same, each in others if same == kind}) > 1]
            stack = self.stacks[shape] = StackedModels(self.turn, bool(config.runtime.compile), fields)
        thread = Thread(target=copy_context().run, args=(self.train, config, stack))
        stack.members.add(thread)
        thread.start()
        return thread

    def train(self, config: TrainConfig, stack: StackedModels) -> None:
        with stack.take_part(), open(self.log_file(config), "a", buffering=1) as log:
            train_and_tell(config, partial(print, file=log), stack)

    def ended(self, job: Job) -> bool:
        return not job.handle.is_alive()

    def cancel(self, job: Job, kill: bool) -> None:
        if kill:
            os._exit(130)
        for stack in self.stacks.values():
            stack.stopped.append(time.monotonic())


def train_and_tell(config: TrainConfig, say: Say, stack: StackedModels | None = None) -> None:
    """Train, and say how it ended, so that this is the last line of the run's log."""
    try:
        train(config, say, stack=stack)
    except (GeonormError, Interrupted) as end:
        say(str(end))
    except Exception:
        say(traceback.format_exc())


def done(config: TrainConfig) -> bool:
    """True if a run needs no more work (a divergence is a result). CheckpointError if its folder holds another."""
    run = RunFolder(Path(config.out))
    if (run.path / "config.yaml").exists():
        run.check_same(to_dict(config))
    summary = read_summary(run.path)
    return summary is not None and summary.status in ("finished", "diverged")


def outcome(config: TrainConfig) -> Summary:
    """The run's summary, or that of a failed run where it left none."""
    counts = {"steps": 0, "tokens": 0, "parameters": 0, "matmul_parameters": 0, "spikes": 0, "grad_spikes": 0}
    known = {"status": "failed", "scheme": config.scheme, "seed": config.seed, "lr": config.lr}
    return read_summary(Path(config.out)) or Summary.read(
        {**known, "phase": phase_of(config.seed), **counts, "wall_seconds": 0.0}
    )


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "no output")


def steps_made(config: TrainConfig) -> int:
    """Steps that a run has made so far, by the last row of its metrics."""
    path = RunFolder(Path(config.out)).metrics
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        steps = [row.get("step", 0) for row in rows_of(file.read().decode(errors="replace").splitlines())]
    return int(steps[-1]) if steps else 0
