"""Executors beyond one machine: tasks of a Ray cluster, and jobs of SLURM through submitit.

A worker gets only strings: the paths of a run's settings and of its log, and environment variables. Where there is no
SLURM, submitit starts processes on this machine.
"""

import logging
import os
import shlex
import signal
import socket
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from ...elsewhere import SETTINGS, allow_within, set_within
from ...errors import ConfigError, cause, import_extra
from ...parsing import from_yaml
from ...settings import from_dict
from ..config import Runtime, TrainConfig
from .config import Ray, Slurm
from .executors import Executor, Job, Say, done, last_line, steps_made, train_and_tell

CARRIED = ("GEONORM_DATA", "GEONORM_CACHE", "GEONORM_BACKEND", "HOME", "XDG_CACHE_HOME")
"""Environment variables that a worker gets from here: they say where text and caches are, and which kernels run."""
RETRIES = 3
"""Most times that Ray restarts a run that failed; it goes on from its newest checkpoint."""
MOST_JOBS = 1000
"""Most jobs of SLURM at a time, when not given."""
GRACE = 120
"""Seconds before SLURM's time limit at which a run is told to save and end."""


class RunFailed(Exception):
    """A run ended without a result; the message is its last line."""


class RayExecutor(Executor):
    """Every run is a task in a worker process of its own."""

    def __init__(
        self, out: Path, runtime: Runtime, jobs: int | None, say: Say, live: bool, settings: Ray, kind: str
    ) -> None:
        super().__init__(out, runtime, jobs, say, live)
        self.ray = ray = import_extra("ray", "--launcher ray", "cluster")
        self.joined = not ray.is_initialized()
        if self.joined:
            try:
                ray.init(address=settings.address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = settings.address or "the default address"
                raise ConfigError(f"no Ray cluster at {where}: {cause(error)}") from None
        gpus = settings.gpus if settings.gpus is not None else float(kind == "cuda")
        there = "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"
        if settings.gpus is None and runtime.device == "auto" and there != kind:
            self.close()
            raise ConfigError(
                f"dtype and compile are set for {kind}, as here, and the Ray cluster has {there}: say "
                f"--runtime.device {there}"
            )
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for what, wanted in (("CPU", float(runtime.threads)), ("GPU", gpus)):
            if not any(not wanted or node.get(what, 0) >= wanted for node in nodes):
                self.close()
                message = f"a run needs {wanted:g} {what} of one node, and no node of the Ray cluster has as many"
                raise ConfigError(message)
        self.jobs = jobs or int(max(1, ray.cluster_resources().get("CPU", 1) // runtime.threads))
        self.task = ray.remote(
            num_cpus=runtime.threads, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=[RunFailed],
            max_calls=1,  # a process of its own for every run: nothing of one stays in the memory of a GPU
        )(train_one)  # fmt: skip

    def start(self, config: TrainConfig, place: int) -> Any:
        return self.task.remote(*arguments(self, config))

    def ended(self, job: Job) -> bool:
        if not self.ray.wait([job.handle], timeout=0)[0]:
            return False
        try:
            self.ray.get(job.handle)
        except self.ray.exceptions.RayError as error:
            self.add_to_log(job.config, cause(getattr(error, "cause", None) or error))
        return True

    def cancel(self, job: Job, kill: bool) -> None:
        self.ray.cancel(job.handle, force=kill)

    def close(self) -> None:
        if self.joined:
            self.ray.shutdown()


class SubmititExecutor(Executor):
    """Every run is a job of SLURM."""

    def __init__(self, out: Path, runtime: Runtime, jobs: int | None, say: Say, live: bool, slurm: Slurm) -> None:
        super().__init__(out, runtime, jobs, say, live)
        submitit = import_extra("submitit", "--launcher submitit", "cluster")
        self.failed_job = submitit.core.utils.FailedJobError
        self.executor = submitit.AutoExecutor(out / "jobs" / os.urandom(8).hex())  # new: it unpickles what lies there
        self.jobs = jobs or (1 if self.executor.cluster == "local" else MOST_JOBS)
        gpus = slurm.gpus if slurm.gpus is not None else int(runtime.device.startswith("cuda"))
        before = [shlex.join(["export", *(f"{name}={value}" for name, value in self.variables().items())])]
        before += [slurm.setup] if slurm.setup else []
        self.executor.update_parameters(
            name=f"geonorm-{out.absolute().name}".replace(" ", "_"),
            timeout_min=slurm.time,
            tasks_per_node=max(1, gpus),
            cpus_per_task=runtime.threads,
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
        if error is not None and not isinstance(error, self.failed_job):
            self.add_to_log(job.config, cause(error))
        return True

    def goes_on(self, job: Job) -> bool:
        """True for a run that was saved at its time limit, or lost its node, if it has made steps since its start."""
        return not done(job.config) and steps_made(job.config) > job.step

    def cancel(self, job: Job, kill: bool) -> None:
        job.handle.cancel()


def arguments(executor: Executor, config: TrainConfig) -> tuple[Any, ...]:
    """The arguments of `train_one` for a run."""
    path, log = executor.save_settings(config).absolute(), executor.log_file(config).absolute()
    environment = {name: os.environ[name] for name in CARRIED if name in os.environ} | executor.variables()
    return os.getcwd(), str(path), str(log), environment


def train_one(folder: str, settings: str, log: str, environment: dict[str, str]) -> None:
    """Do what `geonorm train --config` does in `folder`, with output to `log`. RunFailed if it left no result."""
    os.environ.update(environment)
    os.chdir(folder)
    config: TrainConfig = from_dict(TrainConfig, from_yaml(Path(settings).read_text(encoding="utf-8")))
    typed_here = set_within(SETTINGS, (settings, ""))  # sources of schemes stand beside the settings
    with open(log, "a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file), allow_within(), typed_here:
        print(f"worker {os.getpid()} on {socket.gethostname()}")
        train_and_tell(config, print)
    if not done(config):
        raise RunFailed(last_line(Path(log)))


def train_in_job(*known: Any) -> None:
    """`train_one` in a job of submitit: one rank for each of its tasks, saved before the time limit."""
    from submitit.helpers import TorchDistributedEnvironment

    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    if int(os.environ.get("SUBMITIT_LOCAL_NTASKS", os.environ.get("SLURM_NTASKS", 1))) > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    train_one(*known)
