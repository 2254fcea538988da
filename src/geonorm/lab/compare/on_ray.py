"""Tasks of a Ray cluster, or of one that is made on this machine for the comparison.

Every task is one run in a worker process of its own, told by the files that any run is told by; nothing but paths and a
number travels through Ray. A run whose worker dies is started again by Ray and goes on from its newest checkpoint.
"""

from __future__ import annotations

import logging
import os
import socket
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from ... import elsewhere
from ...errors import ConfigError, GeonormError, cause
from ...schemes import parse, sources_of, stored
from ...settings import from_dict
from ..config import Grid, TrainConfig
from ..train.loop import Interrupted, train
from .team import Say, Team, done, last_line

CARRIED = ("GEONORM_DATA", "GEONORM_CACHE", "GEONORM_BACKEND", "HOME", "XDG_CACHE_HOME")
"""Variables that a worker takes over: where text and caches are, and which kernels run."""


class RunFailed(Exception):
    """A run ended without a result; the message is its last line."""


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

    def work(self, configs: list[TrainConfig]) -> None:
        ray, threads = self.ray, self.config.runtime.threads
        task = ray.remote(
            num_cpus=threads, num_gpus=self.gpus, max_retries=self.config.ray.retries, retry_exceptions=[RunFailed],
            max_calls=1,  # a process of its own for every run: nothing of one stays in the memory of a GPU
        )(train_one)  # fmt: skip
        carried = {name: os.environ[name] for name in CARRIED if name in os.environ} | self.variables()
        waiting = list(configs)
        running: dict[Any, TrainConfig] = {}
        try:
            while waiting or running:
                while waiting and len(running) < (self.config.jobs or len(configs)):
                    config = waiting.pop(0)
                    path, log = self.settings(config).absolute(), self.log(config).absolute()
                    sources = sources_of(parse(config.scheme)).values()
                    typed = [about["sha256"] for about in sources if about["sha256"]]  # what no other machine can know
                    running[task.remote(os.getcwd(), str(path), str(log), carried, typed)] = config
                ended, _ = ray.wait(list(running), timeout=1.0)
                for reference in ended:
                    config = running.pop(reference)
                    try:
                        ray.get(reference)
                    except ray.exceptions.RayError as error:
                        with open(self.log(config), "a") as file:  # a worker that died could not say it
                            file.write(f"{cause(getattr(error, 'cause', None) or error)}\n")
                    self.report(config)
                if self.unheard:
                    raise KeyboardInterrupt
        except (KeyboardInterrupt, SystemExit):  # Ray turns SIGTERM into the latter; a closed pipe is the former
            for reference in running:
                ray.cancel(reference, force=False)
            ray.wait(list(running), num_returns=len(running), timeout=60)
            raise self.interrupted() from None

    def close(self) -> None:
        if self.joined:
            self.ray.shutdown()


def train_one(folder: str, settings: str, log: str, environment: dict[str, str], typed: list[str]) -> None:
    """The task: what `geonorm train --config` does in `folder`, its output in `log`. RunFailed if it left no result."""
    import yaml

    os.environ.update(environment)
    os.chdir(folder)
    config: TrainConfig = from_dict(TrainConfig, yaml.safe_load(Path(settings).read_text(encoding="utf-8")))
    with open(log, "a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        print(f"worker {os.getpid()} on {socket.gethostname()}")
        try:
            for sha256 in typed:
                elsewhere.remember(sha256)
            parse(stored(config.scheme, None, settings))
            train(config)
        except (GeonormError, Interrupted) as end:
            print(end)
        except Exception:
            traceback.print_exc()
    if not done(config):
        raise RunFailed(last_line(Path(log)))
