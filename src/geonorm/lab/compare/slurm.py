"""SLURM: each phase of a comparison is a job array, one run a task, and behind it a job that goes on.

    DIR/slurm/runs.sh     the array, with the settings files of its runs
    DIR/slurm/next.sh     the same comparison again, after the array: what is finished is kept, the next phase is
                          submitted, and when nothing is missing, results and report are written
    DIR/slurm/state.json  job numbers, and how often a run was submitted without getting further

Tuning goes by phases: its first grid, each extension, the final runs. The next learning rates are known only when the
runs before them have ended, so one array cannot hold them all.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ...errors import ConfigError
from ..config import Grid, TrainConfig
from ..runs.run import RunFolder, read_object, write_atomic, write_json
from .team import Say, Submitted, Team

GOES_ON = "GEONORM_SLURM_GOES_ON"
"""Set in the job behind an array: the comparison is not begun anew, so failed runs are counted."""
GRACE = 120
"""Seconds before the time limit at which a run is told to save and end."""
NO_SBATCH = "sbatch is not here: submit from a machine of the cluster, or leave out --slurm.submit"
TASKS = 1000
"""Most tasks of an array: SLURM's default MaxArraySize is 1001. What is left comes in the next one."""


class OnSlurm(Team):
    def __init__(self, out: Path, config: Grid, say: Say, live: bool) -> None:
        super().__init__(out, config, say, live)
        self.folder = out / "slurm"
        self.state = self.folder / "state.json"
        self.goes_on = GOES_ON in os.environ
        self.setup = [config.slurm.setup] if config.slurm.setup else []
        if config.slurm.submit and shutil.which("sbatch") is None:
            raise ConfigError(NO_SBATCH)
        if not self.goes_on and (jobs := self.waiting_jobs()):
            raise ConfigError(
                f"jobs {', '.join(jobs)} of {out} are queued or running; wait for them, or scancel them first"
            )

    def work(self, configs: list[TrainConfig]) -> None:
        """Writes the array of these runs and submits it if asked; returns only if all of them have failed too often."""
        tries = read_object(self.state).get("tries", {}) if self.goes_on else {}
        again: list[TrainConfig] = []
        for config in configs:
            name, step = Path(config.out).name, newest_step(config)
            before = tries.get(name, {"step": -1, "times": 0})
            times = before["times"] if step <= before["step"] else 0
            if times > self.config.slurm.retries:
                self.report(config)
            elif len(again) < TASKS:
                tries[name] = {"step": step, "times": times + 1}
                again.append(config)
        if not again:
            return
        self.folder.mkdir(exist_ok=True)
        listed = [self.settings(config).absolute() for config in again]
        write_atomic(self.folder / "runs.sh", self.array(listed))
        write_atomic(self.folder / "next.sh", self.following())
        array, following = self.folder / "runs.sh", self.folder / "next.sh"
        write_json(self.state, {"jobs": [], "tries": tries})
        if not self.config.slurm.submit:
            raise Submitted(
                f"{len(again)} runs: sbatch {array}; when they have ended, the same command goes on "
                "(--slurm.submit does both)"
            )
        first = sbatch(str(array))
        write_json(self.state, {"jobs": [first], "tries": tries})
        second = sbatch(f"--dependency=afterany:{first}", str(following))
        write_json(self.state, {"jobs": [first, second], "tries": tries})
        raise Submitted(f"{len(again)} runs submitted as job {first}; job {second} goes on behind them in {self.out}")

    def array(self, settings: list[Path]) -> str:
        """The script of the phase: task i trains with the i-th of these files."""
        config, options = self.config, self.config.slurm
        gpus = options.gpus if options.gpus is not None else int(config.runtime.device.startswith("cuda"))
        logs = shlex.quote(str((self.out / "configs").absolute()))
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)] if gpus > 1 else []
        command = shlex.join([sys.executable, *several, "-m", "geonorm", "train", "--config"])
        limit = f"%{config.jobs}" if config.jobs else ""
        head = [
            *self.head("runs"),
            f"#SBATCH --array=0-{len(settings) - 1}{limit}",
            f"#SBATCH --cpus-per-task={config.runtime.threads * max(1, gpus)}",
            *([f"#SBATCH --gpus-per-task={gpus}"] if gpus else []),
            *([f"#SBATCH --mem={options.memory}"] if options.memory else []),
            *([f"#SBATCH --time={options.time}"] if options.time else []),
            "#SBATCH --ntasks=1",
            "#SBATCH --requeue",
            f"#SBATCH --signal=B:TERM@{GRACE}",
        ]
        body = [
            "runs=(",
            *(f"  {shlex.quote(str(path))}" for path in settings),
            ")",
            "settings=${runs[$SLURM_ARRAY_TASK_ID]}",
            f'exec >>{logs}/"$(basename "$settings" .yaml).log" 2>&1',
            *self.setup,
            self.exported(),
            # torchrun gives its ranks 30 seconds to save, and then kills them
            *([f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={GRACE}"] if gpus > 1 else []),
            "# SIGTERM, before the time limit or a preemption, reaches the training itself, which saves and ends",
            f'exec {command} "$settings"',
        ]
        return "\n".join([*head, *body, ""])

    def following(self) -> str:
        """The job that goes on when the array has ended, however its tasks ended."""
        settings = (self.out / "config.yaml").absolute()
        typed = ["--slurm.submit"] if self.config.slurm.submit else []  # in a file it would not be believed
        command = shlex.join([sys.executable, "-m", "geonorm", self.config.verb, "--config", str(settings), *typed])
        log = shlex.quote(str((self.folder / "next.log").absolute()))
        head = [*self.head("next"), "#SBATCH --ntasks=1", "#SBATCH --cpus-per-task=1"]
        body = [f"exec >>{log} 2>&1", *self.setup, self.exported(), f"export {GOES_ON}=1", f"exec {command}", ""]
        return "\n".join([*head, *body])

    def exported(self) -> str:
        return shlex.join(["export", *(f"{name}={value}" for name, value in self.variables().items())])

    def head(self, what: str) -> list[str]:
        options = self.config.slurm
        lines = [f"--job-name=geonorm-{self.out.absolute().name}-{what}".replace(" ", "_"), f"--chdir={Path.cwd()}"]
        lines += [f"--{name}={getattr(options, name)}" for name in ("partition", "account") if getattr(options, name)]
        lines += [f"--{option.lstrip('-')}" for option in options.options]
        lines += ["--output=/dev/null"]  # the script itself writes beside the settings of the run
        return ["#!/bin/bash", *(f"#SBATCH {line}" for line in lines)]

    def waiting_jobs(self) -> list[str]:
        """The jobs of this comparison that SLURM still has; none where there is no squeue to ask."""
        found = []
        for job in read_object(self.state).get("jobs", []):
            try:
                asked = subprocess.run(["squeue", "-h", "-j", job], capture_output=True, text=True, timeout=60)
            except (OSError, subprocess.TimeoutExpired):
                return []
            if asked.returncode == 0 and asked.stdout.strip():
                found.append(job)
        return found


def newest_step(config: TrainConfig) -> int:
    """Step of the newest checkpoint of a run, 0 if it has none."""
    steps = [path.name.removeprefix("step-") for path in RunFolder(Path(config.out)).checkpoints.glob("step-*")]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def sbatch(*words: str) -> str:
    """Submits a script and returns the number of its job. ConfigError with sbatch's own words if it refuses."""
    try:
        asked = subprocess.run(["sbatch", "--parsable", *words], capture_output=True, text=True)
    except OSError:
        raise ConfigError(NO_SBATCH) from None
    if asked.returncode:
        raise ConfigError(f"sbatch: {' '.join(asked.stderr.split()) or f'exit status {asked.returncode}'}")
    return asked.stdout.strip().split(";")[0]
