"""Jobs of SLURM through submitit, or where there is no SLURM processes that submitit starts on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ...errors import ConfigError, cause
from ..config import Grid, TrainConfig
from .executors import Job, Say, Team, done, steps_made
from .task import arguments, train_in_job

MANY = 1000
"""Most jobs at a time on a cluster, when not given."""
GRACE = 120
"""Seconds before the time limit at which a run is told to save and end."""


class OnSubmitit(Team):
    def __init__(self, out: Path, config: Grid, say: Say, live: bool) -> None:
        super().__init__(out, config, say, live)
        try:
            import submitit
        except ImportError:
            raise ConfigError("submitit is missing: pip install 'geonorm[cluster]', or --launcher local") from None
        self.known, self.executor = submitit.core.utils, submitit.AutoExecutor(out / "jobs")
        self.jobs = config.jobs or (1 if self.executor.cluster == "local" else MANY)
        slurm = config.slurm
        gpus = slurm.gpus if slurm.gpus is not None else int(config.runtime.device.startswith("cuda"))
        before = [shlex.join(["export", *(f"{name}={value}" for name, value in self.variables().items())])]
        before += [slurm.setup] if slurm.setup else []
        self.executor.update_parameters(
            name=f"geonorm-{out.absolute().name}".replace(" ", "_"),
            timeout_min=slurm.time,
            tasks_per_node=max(1, gpus),
            cpus_per_task=config.runtime.threads,
            gpus_per_node=gpus or None,
            slurm_signal_delay_s=GRACE,
            slurm_setup=before,
            local_setup=before,
            slurm_additional_parameters=dict(word.split("=", 1) for word in slurm.options),
        )

    def start(self, config: TrainConfig, place: int) -> Any:
        return self.executor.submit(train_in_job, *arguments(self, config))

    def ended(self, job: Job) -> bool:
        if not job.handle.done():
            return False
        error = job.handle.exception()
        if error is not None and not isinstance(error, self.known.FailedJobError):  # the job could not say it
            with open(self.log(job.config), "a") as file:
                file.write(f"{cause(error)}\n")
        return True

    def goes_on(self, job: Job) -> bool:
        """A run that was saved at its time limit, or lost its node, and has got further."""
        return not done(job.config) and steps_made(job.config) > job.step

    def cancel(self, job: Job, kill: bool) -> None:
        job.handle.cancel()
