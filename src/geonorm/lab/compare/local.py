"""Processes on this machine, as many at a time as it has cores or GPUs. They outlive this one only if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from ...schemes import parse, sources_of
from ..config import Grid, TrainConfig
from ..train.signals import PARENT
from .executors import Job, Say, Team


class Local(Team):
    wait = 0.2

    def __init__(self, out: Path, config: Grid, say: Say, live: bool) -> None:
        super().__init__(out, config, say, live)
        self.gpus = torch.cuda.device_count() if config.runtime.device in ("auto", "cuda") else 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.jobs = config.jobs or self.gpus or max(1, cores // config.runtime.threads)

    def start(self, config: TrainConfig, place: int) -> subprocess.Popen[bytes]:
        path, log = self.settings(config), self.log(config)
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
