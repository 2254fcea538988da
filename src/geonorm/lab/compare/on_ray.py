"""Tasks of a Ray cluster, or of one that is made on this machine for the comparison.

Every task is one run in a worker process of its own; nothing but texts travels through Ray.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ...errors import ConfigError, cause
from ..config import Grid, TrainConfig
from .executors import Job, Say, Team
from .task import RunFailed, arguments, train_one

RETRIES = 3
"""How often a run is started again after its worker died or it failed; it goes on from its newest checkpoint."""


class OnRay(Team):
    def __init__(self, out: Path, config: Grid, say: Say, live: bool) -> None:
        super().__init__(out, config, say, live)
        try:
            import ray
        except ImportError:
            raise ConfigError("Ray is missing: pip install 'geonorm[cluster]', or --launcher local") from None
        self.ray = ray
        self.joined = not ray.is_initialized()
        if self.joined:
            try:
                ray.init(address=config.ray.address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = config.ray.address or "the default address"
                raise ConfigError(f"no Ray cluster at {where}: {cause(error)}") from None
        some = config.runtime.device != "cpu" and ray.cluster_resources().get("GPU", 0)
        self.gpus = config.ray.gpus if config.ray.gpus is not None else float(bool(some))
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for what, wanted in (("CPU", float(config.runtime.threads)), ("GPU", self.gpus)):
            if not any(not wanted or node.get(what, 0) >= wanted for node in nodes):
                self.close()
                message = f"a run needs {wanted:g} {what} of one node, and no node of the Ray cluster has as many"
                raise ConfigError(message)
        self.jobs = config.jobs or int(max(1, ray.cluster_resources().get("CPU", 1) // config.runtime.threads))
        self.task = ray.remote(
            num_cpus=config.runtime.threads, num_gpus=self.gpus, max_retries=RETRIES, retry_exceptions=[RunFailed],
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
            with open(self.log(job.config), "a") as file:  # a worker that died could not say it
                file.write(f"{cause(getattr(error, 'cause', None) or error)}\n")
        return True

    def cancel(self, job: Job, kill: bool) -> None:
        self.ray.cancel(job.handle, force=kill)

    def close(self) -> None:
        if self.joined:
            self.ray.shutdown()
