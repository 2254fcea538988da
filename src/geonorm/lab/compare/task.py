"""A run in a worker process of another machine, where Ray or SLURM has started it."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from ...errors import GeonormError
from ...settings import from_dict
from ..config import TrainConfig
from ..train.loop import Interrupted, train
from .executors import Team, done, last_line

CARRIED = ("GEONORM_DATA", "GEONORM_CACHE", "GEONORM_BACKEND", "HOME", "XDG_CACHE_HOME")
"""Variables that a worker takes over: where text and caches are, and which kernels run."""


class RunFailed(Exception):
    """A run ended without a result; the message is its last line."""


def arguments(team: Team, config: TrainConfig) -> tuple[Any, ...]:
    """What `train_one` needs to know: nothing but texts."""
    path, log = team.settings(config).absolute(), team.log(config).absolute()
    environment = {name: os.environ[name] for name in CARRIED if name in os.environ} | team.variables()
    return os.getcwd(), str(path), str(log), environment


def train_one(folder: str, settings: str, log: str, environment: dict[str, str]) -> None:
    """What `geonorm train --config` does in `folder`, its output in `log`. RunFailed if it left no result."""
    import yaml

    os.environ.update(environment)
    os.chdir(folder)
    config: TrainConfig = from_dict(TrainConfig, yaml.safe_load(Path(settings).read_text(encoding="utf-8")))
    with open(log, "a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        print(f"worker {os.getpid()} on {socket.gethostname()}")
        try:
            train(config)
        except (GeonormError, Interrupted) as end:
            print(end)
        except Exception:
            traceback.print_exc()
    if not done(config):
        raise RunFailed(last_line(Path(log)))


def train_in_job(*known: Any) -> None:
    """As `train_one`, in a job of submitit: one rank for each of its tasks, saved before the time limit."""
    from submitit.helpers import TorchDistributedEnvironment

    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    if int(os.environ.get("SUBMITIT_LOCAL_NTASKS", os.environ.get("SLURM_NTASKS", 1))) > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    train_one(*known)
