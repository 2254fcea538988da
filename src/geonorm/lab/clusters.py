"""Settings of where a run goes: the machine that a plan assumes, and the clusters that a comparison is started on. No
torch here: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ..errors import ConfigError
from ..settings import Count, Natural, NotNegative, Range, Settings

Amount = Annotated[float, Range(1e-6, 1e9)]


@dataclass(frozen=True)
class Machine(Settings):
    """What a plan (--dry-run) assumes of one device. The defaults are an H100 SXM."""

    prefix = "machine."

    tflops: Amount | None = None
    """Peak of dense matrix products, 10^12 operations per second; when not given 989 in bf16, and 67 in fp32: TF32 is
    not switched on."""
    memory: Amount = 72.0
    """GiB that tensors may take: 80 less a tenth for CUDA, NCCL and fragmentation."""


@dataclass(frozen=True)
class Ray(Settings):
    """--launcher ray: every run is a task; --out and the caches lie on a file system that all nodes see."""

    prefix = "ray."

    address: str | None = None
    """Cluster (host:port, ray://host:port, auto), or local for one of its own here; when not given $RAY_ADDRESS, else
    the cluster that runs on this machine, else a new one."""
    gpus: NotNegative | None = None
    """GPUs of a run, also a share of one; 1 when not given, if the cluster has any and the device is not cpu."""


@dataclass(frozen=True)
class Slurm(Settings):
    """--launcher submitit: every run is a job of SLURM; where there is no SLURM, processes of this machine."""

    prefix = "slurm."

    time: Count = 1440
    """Time limit of a job in minutes; a run that reaches it is saved and submitted again."""
    gpus: Natural | None = None
    """GPUs of a run, one rank on each; when not given 1 with --runtime.device cuda, else none."""
    options: list[str] = field(default_factory=list)
    """Options of sbatch (partition=gpu account=lab mem=16G qos=high)."""
    setup: str | None = None
    """Line of shell before a run, such as `module load cuda`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bad := [word for word in self.options if not all(word.partition("=")[::2])]:
            raise ConfigError(f"slurm.options are name=value, got {bad[0]!r}")
