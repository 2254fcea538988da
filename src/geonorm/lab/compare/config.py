"""Settings of a study: which runs it has, and where they are made. No torch here: the command line reads this file."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal

from ...errors import ConfigError, require
from ...settings import Count, Natural, NotNegative, Range, Settings, check_out
from ..config import TUNING_SEED, Recipe, Shared


@dataclass(frozen=True)
class Ray(Settings):
    """--launcher ray: every run is a task; --out and the caches lie on a file system that all nodes see."""

    prefix = "ray."

    address: str | None = None
    """Cluster (host:port, ray://host:port, auto), or local for one of its own here; when not given $RAY_ADDRESS, else
    the cluster that runs on this machine, else a new one."""
    gpus: NotNegative | None = None
    """GPUs of a run, also a share of one; when not given 1 with --runtime.device cuda or with a GPU here, else none."""


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


@dataclass(frozen=True)
class Grid(Shared):
    """Which runs a study of schemes has, and where they are made."""

    verb: ClassVar[str]
    """The command that goes on with it."""
    noun: ClassVar[str]
    """What its folder holds."""

    schemes: list[str] = field(default_factory=lambda: ["pre", "geonorm", "post", "peri"])
    """Residual schemes; differences are paired to the first, or to the baseline that a folder which is extended has."""
    seeds: Annotated[int, Range(1, TUNING_SEED)] = 3
    """Seeds of the final runs."""
    out: str = "runs/compare"
    """Directory of the comparison."""
    jobs: Count | None = None
    """Runs at a time; as many as the machine has cores for (CPU) or devices (GPU) when not given, 64 of a stack."""
    launcher: Literal["local", "stacked", "submitit", "ray"] = "local"
    """Where runs are started: as processes on this machine, as one stacked model for each scheme (small models on a
    GPU), as jobs of SLURM, as tasks of a Ray cluster."""
    ray: Ray = field(default_factory=Ray)
    slurm: Slurm = field(default_factory=Slurm)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_out(self.out)

    def unused(self) -> Iterator[tuple[str, str]]:
        """A folder keeps the settings of one launcher while another goes on with it."""
        yield from super().unused()
        for launcher, name, group in (("ray", "ray", Ray), ("submitit", "slurm", Slurm)):
            if self.launcher != launcher:
                yield from ((f"{name}.{f.name}", f"--launcher {launcher}") for f in fields(group))


@dataclass(frozen=True)
class CompareConfig(Grid, Recipe):
    """Trains schemes side by side: every scheme with every seed, at the best of its learning rates. What is finished is
    kept, so the same command goes on where it was stopped, and more schemes or seeds extend a comparison. A run that
    diverges is a result; a run that fails is reported, tried again by the same command, and makes the exit status 2."""

    common = ("schemes", "preset", "data", "steps", "batch_size", "lrs", "tune", "seeds", "jobs", "out")
    examples = (
        "geonorm compare --schemes pre geonorm --data my.txt --steps 300 --seeds 3 --out runs/mine",
        "geonorm compare --schemes pre peri geonorm --lrs 3e-3 6e-3 1.2e-2 --tune --out runs/tuned",
    )

    verb, noun = "compare", "comparison"

    lrs: list[Annotated[float, Range(1e-12)]] = field(default_factory=list)
    """Learning rates. Several are tried on a seed of their own, which does not count, and each scheme is trained at its
    best. When not given one, 0.64 / width, 5e-3 at most."""
    tune: bool = False
    """Add rates by factors of sqrt 2 until the best has them on both sides, out to a factor of 2. A multiplier
    of the embedding (--optim.rates embed=16) is tuned, too, by factors of 4. Fair with --optim.floor 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.schemes, "compare needs at least one scheme")
        if not self.lrs:
            object.__setattr__(self, "lrs", [self.usual_lr])
        if len({f"{lr:g}" for lr in self.lrs}) < len(self.lrs):  # as a folder's name has them
            raise ConfigError("--lrs names a learning rate twice")
