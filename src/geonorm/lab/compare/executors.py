"""Where the runs of a comparison are executed: processes of this machine, tasks of a Ray cluster, jobs of SLURM.

A team runs configs and hands back their summaries; all teams leave the same directory, and none repeats what is
finished. What differs is how a run is started, seen to have ended, and stopped:

    DIR/configs/NAME.yaml  DIR/configs/NAME.log  DIR/runs/NAME/
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...output import columns
from ...progress import NAME, Pace, Unwatched, shorten, show_progress, span
from ...settings import to_dict
from ..config import Grid, TrainConfig
from ..runs.folder import RunFolder, check_free, rows_of, write_settings
from ..runs.summary import loss_text
from ..train.loop import Interrupted
from ..train.signals import handle_signals, stop_unheard

Say = Callable[[str], None]
LONGEST = 1000
"""Characters of a line where nobody watches: names of runs are whole."""


QUIET = 60.0
"""Seconds after which a line says how far the runs are, where nobody watches bars."""
KINDS = {"local": ("local", "Local"), "ray": ("on_ray", "OnRay"), "submitit": ("on_submitit", "OnSubmitit")}


@dataclass
class Job:
    """A run in progress: what the launcher knows it by, its place among the jobs at a time, its steps at the start."""

    config: TrainConfig
    handle: Any
    place: int
    step: int


class Phase:
    """Runs that are made together, and how far they are. The lists of those in progress and of those that wait are
    the team's own."""

    def __init__(self, configs: list[TrainConfig], jobs: list[Job], waiting: list[TrainConfig]) -> None:
        self.configs, self.jobs, self.waiting = configs, jobs, waiting
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
        return [job.config for job in self.jobs] + self.waiting

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
        for config in (job.config for job in self.jobs):
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


class Team:
    """Runs training processes, `jobs` at a time. A subclass says how one is started, has ended, and is stopped."""

    jobs: int
    wait = 1.0
    """Seconds between two looks at the jobs."""

    def __init__(self, out: Path, config: Grid, say: Say, live: bool) -> None:
        self.out, self.config, self.live = out, config, live
        self.unheard: list[float] = []  # times at which nobody could hear what was said
        self.say = stop_unheard(say, self.unheard)
        self.asked: list[TrainConfig] = []
        self.schemes: list[str] = []  # of this command, as they write themselves
        self.order: list[str] = []  # of all in the folder, the baseline first
        self.stopped = False

    def run(self, configs: list[TrainConfig]) -> list[dict[str, Any]]:
        """Runs what is not finished yet and returns the summaries in order. A run that died has status failed."""
        self.asked += configs
        waiting = [c for c in configs if not done(c)]
        if skipped := len(configs) - len(waiting):
            self.say(f"{skipped} of {len(configs)} runs are finished already")
        if waiting:
            self.work(waiting)
        return [outcome(c) for c in configs]

    def start(self, config: TrainConfig, place: int) -> Any:
        """Starts a run; `place` is a number below `jobs` that no other run in progress has."""
        raise NotImplementedError

    def ended(self, job: Job) -> bool:
        """Whether the process of a run has ended. What it could not say itself is now in its log."""
        raise NotImplementedError

    def goes_on(self, job: Job) -> bool:
        """Whether a run that has ended is started again."""
        return False

    def cancel(self, job: Job, kill: bool) -> None:
        """Makes a run save and end, or end at once."""
        raise NotImplementedError

    def work(self, configs: list[TrainConfig]) -> None:
        """Returns when every one of these runs has ended."""
        for config in configs:
            check_free(Path(config.out), "a run whose comparison was killed saves and ends: then try the same command")
        waiting = list(configs)
        jobs: list[Job] = []
        phase = Phase(configs, jobs, waiting)
        self.say(f"{phase.header}, {self.jobs} at a time")
        told = time.monotonic()
        with show_progress(self.live, tell=False) as shown, handle_signals(lambda number, frame: self.stop(jobs)):
            try:
                while waiting or jobs:
                    while waiting and len(jobs) < self.jobs and not self.stopped:
                        taken = {job.place for job in jobs}
                        place = next(i for i in range(self.jobs) if i not in taken)
                        config = waiting.pop(0)
                        jobs.append(Job(config, self.start(config, place), place, steps_made(config)))
                        if self.stopped:  # the signal came while the run was being started
                            self.cancel(jobs[-1], kill=False)
                    if self.stopped and not jobs:
                        break
                    time.sleep(self.wait)
                    for job in [job for job in jobs if self.ended(job)]:
                        jobs.remove(job)
                        shown.drop(Path(job.config.out).name)
                        if not self.stopped and self.goes_on(job):
                            waiting.insert(0, job.config)
                        elif not self.stopped or done(job.config):
                            self.report(job.config, phase.place())
                            told = time.monotonic()
                    if self.unheard and not self.stopped:
                        self.stop(jobs)
                    if shown.watched:
                        phase.show(shown)
                    elif time.monotonic() - told > QUIET:
                        self.say(phase.line())
                        told = time.monotonic()
            finally:  # whatever happens here, no run goes on alone
                for job in jobs:
                    self.cancel(job, kill=False)
        if self.stopped:
            raise self.interrupted()

    def stop(self, jobs: list[Job]) -> None:
        """Tells the runs to save and end; at the second time it kills them."""
        for job in jobs:
            self.cancel(job, kill=self.stopped)
        self.stopped = True

    def interrupted(self) -> Interrupted:
        return Interrupted(f"stopped; every run is saved in {self.out}; the same command goes on from there")

    def close(self) -> None:
        """Gives back what the team holds."""

    def variables(self) -> dict[str, str]:
        """Environment of the process of a run: its threads, and no file of the working directory, which `python -m`
        would look in first, in the place of an installed module."""
        threads = str(self.config.runtime.threads)
        return {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}

    def settings(self, config: TrainConfig) -> Path:
        """Writes the settings of a run where its process reads them; its output goes beside them, as `log` says."""
        path = self.out / "configs" / f"{Path(config.out).name}.yaml"
        path.parent.mkdir(exist_ok=True)
        write_settings(path, to_dict(config))
        return path

    def log(self, config: TrainConfig) -> Path:
        return self.out / "configs" / f"{Path(config.out).name}.log"

    def report(self, config: TrainConfig, place: str = "") -> None:
        """One line on a run that has ended, and on how far the others are."""
        summary, name = outcome(config), Path(config.out).name
        if summary["status"] == "finished":
            said = f": val_loss {summary['val_loss']:.4f}, {summary['wall_seconds']:.0f} s{place}"
            self.say(shorten(name, max(NAME, columns(LONGEST) - len(said))) + said)
        else:
            self.say(f"{name}: {summary['status']}: {last_line(self.log(config))}")


def make_team(out: Path, config: Grid, say: Say, live: bool) -> Team:
    """The team of `config.launcher`. ConfigError if what it needs is not here; nothing is written yet."""
    module, name = KINDS[config.launcher]
    made: Team = getattr(import_module(f".{module}", __package__), name)(out, config, say, live)
    return made


def done(config: TrainConfig) -> bool:
    """Whether a run needs no more work (a divergence is a result). CheckpointError if its directory holds another."""
    run = RunFolder(Path(config.out))
    if (run.path / "config.yaml").exists():
        run.check_same(config)
    summary = run.summary()
    return summary is not None and summary["status"] in ("finished", "diverged")


def outcome(config: TrainConfig) -> dict[str, Any]:
    """The run's summary, or that of a failed run where it left none."""
    summary = RunFolder(Path(config.out)).summary()
    if summary is not None:
        return summary
    empty = dict.fromkeys(("val_loss", "val_bpb", "train_loss", "tokens_per_second", "peak_memory_bytes"))
    known = {"status": "failed", "scheme": config.scheme, "seed": config.seed, "lr": config.lr, "phase": config.phase}
    counts = {"steps": 0, "tokens": 0, "parameters": 0, "matmul_parameters": 0, "spikes": 0, "grad_spikes": 0}
    return {**known, **empty, **counts, "wall_seconds": 0.0}


def last_line(path: Path) -> str:
    try:
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no output"
    return lines[-1] if lines else "no output"


def last_rows(path: Path) -> list[dict[str, Any]]:
    """The rows in the last 64 KiB of a file of metrics."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 2**16))
            return list(rows_of(file.read().decode(errors="replace").splitlines()))
    except OSError:
        return []
