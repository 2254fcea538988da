"""Every setting of a run, as plain typed dataclasses. No torch here: the command line reads this file.

What people set most is a field of the config itself (`--steps`), the rest is grouped (`--optim.weight_decay`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass
from typing import Any, Literal, get_args, get_type_hints

from ..errors import ConfigError, unknown
from ..nn.config import DecoderConfig, preset
from .compare.clusters import Machine, Ray, Slurm, within
from .options import Checkpoint, Evaluation, Optim

MAX_SEED = 2**63 - 1
MOST_THREADS = 1024
TUNING_SEED = 1_000_000
"""Seed of the short runs that choose a learning rate: none that a final run uses, however many seeds are added."""


def overrides() -> type:
    """Every field of the model but the scheme, optional: what is not given comes from the preset."""
    hints = get_type_hints(DecoderConfig)
    optional = [
        (f.name, hints[f.name] | None, field(default=None)) for f in fields(DecoderConfig) if f.name != "scheme"
    ]
    model = make_dataclass("Model", optional, frozen=True)
    model.__module__ = __name__
    model.__doc__ = "Shape of the model; what is not given comes from the preset."
    model.documented_by = DecoderConfig  # type: ignore[attr-defined]
    return model


Model = overrides()


@dataclass(frozen=True)
class Tokens:
    """How text becomes tokens."""

    tokenizer: str = "bpe"
    """byte, bpe (trained on the training text, as many tokens as model.vocab_size), or a tokenizer.json."""
    cache: str | None = None
    """Folder of prepared tokens; $GEONORM_CACHE or ~/.cache/geonorm when not given."""


@dataclass(frozen=True)
class Guard:
    """What is done when a step goes wrong."""

    nan: Literal["stop", "skip", "rewind"] = "stop"
    """A loss or gradient that is not finite. skip: the batch is dropped; rewind: back to the last checkpoint, and on
    with the data behind the bad batch; stop: the run ends with a diagnosis."""
    spike: Literal["ignore", "stop", "skip", "rewind"] = "ignore"
    """A loss above the mean of the last losses by many standard deviations."""
    sigmas: float = 6.0
    """How many."""
    window: int = 100
    """How many last losses; judgement starts at 20."""
    limit: int = 10
    """Most skips and rewinds of a run; then it stops."""
    stuck: float = 1800.0
    """Seconds without progress after which a run of several ranks is ended, with the rank that holds it up named; 0
    waits for ever."""

    def __post_init__(self) -> None:
        within("guard.sigmas", self.sigmas, 1)
        within("guard.window", self.window, 20)
        within("guard.limit", self.limit, 1)
        within("guard.stuck", self.stuck, 0)


@dataclass(frozen=True)
class Runtime:
    """Where and how fast."""

    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16 under autocast; weights, norms and the residual stream stay fp32."""
    threads: int = 1
    """CPU threads of one run."""
    compile: bool = False
    """torch.compile, block by block, and of the loss."""
    recompute: bool = False
    """Activation checkpointing, block by block."""
    accumulate: int = 1
    """Micro-batches per step and rank."""
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    """Under torchrun: ddp, the model whole on every rank (auto), or fsdp, each block sharded over the ranks."""
    reshard: bool = True
    """fsdp: give up a block's whole weights after its forward pass, and gather them again for the backward pass."""
    shard_size: int | None = None
    """fsdp: ranks that share one copy of the model, beside other copies; all ranks when not given."""
    tensor_size: int = 1
    """Ranks that share every matrix of a block (tensor parallelism) and see the same rows of the batch."""
    tensorboard: bool = True
    """Whether to write event files."""


@dataclass(frozen=True)
class Recipe:
    """What every run of a comparison shares."""

    preset: str = "nano"
    """Size of the model: nano, nano-gpt2, mini, 125m, paper-125m, 350m, 1.3b, 7b, 70b."""
    data: str = "stdlib"
    """Text: a file, a folder, JSONL, Parquet, a corpus in $GEONORM_DATA, a Hugging Face dataset, stdlib (built in)."""
    steps: int = 300
    """Optimizer steps."""
    batch_size: int = 4
    """Sequences per step."""
    objective: Literal["causal"] = "causal"
    """What is trained: the next token."""
    recipe: Literal["shared", "own"] = "shared"
    """own: each scheme departs from the shared recipe as its paper asks (`geonorm schemes NAME`)."""
    model: Model = field(default_factory=Model)  # type: ignore[valid-type]
    optim: Optim = field(default_factory=Optim)
    tokens: Tokens = field(default_factory=Tokens)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    guard: Guard = field(default_factory=Guard)
    runtime: Runtime = field(default_factory=Runtime)

    def __post_init__(self) -> None:
        within("steps", self.steps, 1)
        within("steps", self.steps, 1, 2**53)
        within("batch_size", self.batch_size, 1)
        within("batch_size", self.batch_size, 1, 2**53)
        within("runtime.threads", self.runtime.threads, 1)
        within("runtime.threads", self.runtime.threads, 1, MOST_THREADS)
        within("runtime.accumulate", self.runtime.accumulate, 1)
        within("runtime.tensor_size", self.runtime.tensor_size, 1)
        if self.runtime.shard_size is not None:
            within("runtime.shard_size", self.runtime.shard_size, 1)
        if self.batch_size % self.runtime.accumulate:
            raise ConfigError(
                f"batch_size {self.batch_size} must be a multiple of runtime.accumulate {self.runtime.accumulate}"
            )

    def decoder(self, scheme: str) -> DecoderConfig:
        """The model under a scheme: the preset with the given fields replaced."""
        changes = {key: value for key, value in asdict(self.model).items() if value is not None}
        return preset(self.preset, scheme=scheme, **changes)


@dataclass(frozen=True)
class TrainConfig(Recipe):
    """One run."""

    scheme: str = "geonorm"
    """Residual scheme, as in `geonorm schemes`."""
    lr: float = 5e-3
    """Highest learning rate."""
    seed: int = 0
    """Seed of weights and of the data order."""
    out: str = "runs/train"
    """Run directory. One that holds this run is resumed from its newest checkpoint."""
    resume: Literal["auto", "never"] = "auto"
    """auto: go on from the newest checkpoint in --out; never: refuse a directory that holds a run."""
    phase: Literal["final", "tune"] = "final"
    """What a comparison uses the run for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        directory(self.out)
        within("lr", self.lr, 0)
        within("seed", self.seed, 0, MAX_SEED)


@dataclass(frozen=True)
class TrainCommand(TrainConfig):
    """Trains one model, or goes on with a run that was stopped: the settings of a run are stored in its directory, and
    the same command, or --config RUN/config.yaml, repeats or resumes it."""

    dry_run: bool = False
    """Print the resolved settings and a plan of the run (size, memory, time); train nothing, write nothing."""
    world_size: int | None = None
    """With --dry-run: ranks to plan for; 1 when not given. A real run has as many as torchrun starts."""
    json: bool = False
    """With --dry-run: one JSON object instead of a table."""
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.world_size is not None:
            within("world_size", self.world_size, 1)
        for name, given, instead in (
            ("--world-size", self.world_size is not None, "; torchrun --nproc-per-node N starts N ranks"),
            ("--json", self.json, ""),
            ("--machine.*", self.machine != Machine(), ""),
        ):
            if given and not self.dry_run:
                raise ConfigError(f"{name} belongs to --dry-run{instead}")

    def run(self) -> TrainConfig:
        """The settings of the run itself."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})


@dataclass(frozen=True)
class CompareConfig(Recipe):
    """Trains schemes side by side: every scheme with every seed, at the best of its learning rates. What is finished is
    kept, so the same command goes on where it was stopped, and more schemes or seeds extend a comparison. A run that
    diverges is a result; a run that fails is reported, tried again by the same command, and makes the exit status 2."""

    schemes: list[str] = field(default_factory=lambda: ["pre", "geonorm", "post", "peri"])
    """Residual schemes; differences are paired to the first."""
    lrs: list[float] = field(default_factory=lambda: [5e-3])
    """Learning rates. Several are tried with one seed on a shorter run and the best is kept for each scheme."""
    seeds: int = 3
    """Seeds of the final runs."""
    tune: bool = False
    """Extend the learning rates of a scheme by the grid's own ratio until its best is not at an end."""
    tune_steps: int | None = None
    """Steps of a tuning run; half of --steps when not given. Short runs like higher rates than long ones."""
    out: str = "runs/compare"
    """Directory of the comparison."""
    jobs: int | None = None
    """Runs at a time; as many as the machine has cores for (CPU) or devices (GPU) when not given."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Where runs are started: as processes on this machine, as tasks of a Ray cluster, as a SLURM array."""
    ray: Ray = field(default_factory=Ray)
    slurm: Slurm = field(default_factory=Slurm)

    def __post_init__(self) -> None:
        super().__post_init__()
        directory(self.out)
        within("seeds", self.seeds, 1, TUNING_SEED)
        if not self.schemes or not self.lrs:
            raise ConfigError("compare needs at least one scheme and one learning rate")
        if len(set(self.lrs)) < len(self.lrs):
            raise ConfigError("--lrs names a learning rate twice")
        for lr in self.lrs:
            within("lrs", lr, 1e-12)
        if self.tune and len(self.lrs) < 2:
            raise ConfigError("--tune needs at least two learning rates in --lrs, to know the ratio of the grid")
        if self.tune_steps is not None:
            within("tune_steps", self.tune_steps, 1)
        if self.jobs is not None:
            within("jobs", self.jobs, 1)


@dataclass(frozen=True)
class EvalConfig:
    """Loss on any text, and tasks through lm_eval, of a run, an exported folder or any Hugging Face model."""

    model: str
    """Run directory, folder of a comparison (with --scheme), model folder, or a name on the Hugging Face hub."""
    data: str | None = None
    """Text as for train: its held-out part if it has one or if the run was trained on it, else all of it."""
    tasks: list[str] = field(default_factory=list)
    """Sets of questions in $GEONORM_DATA/eval, JSONL files of questions, or tasks that lm_eval knows."""
    tokens: int | None = None
    """Most tokens of the text."""
    limit: int | None = None
    """Most questions of each task."""
    context: int | None = None
    """Tokens of a window of text, for Hugging Face models; their own context, but at most 2048, when not given."""
    batch_size: int = 8
    """Questions at a time."""
    out: str | None = None
    """Directory for summary.json, and for the definitions of local tasks."""
    device: str = "auto"
    """auto, cpu or cuda."""
    scheme: str | None = None
    """With the folder of a comparison: its best finished run of this scheme."""

    def __post_init__(self) -> None:
        if self.data is None and not self.tasks:
            raise ConfigError("--data is missing: give a text, or questions with --tasks")
        for name in ("tokens", "limit", "context", "batch_size"):
            if getattr(self, name) is not None:
                within(name, getattr(self, name), 1)


def directory(out: str) -> None:
    if not out:
        raise ConfigError("out is empty; give a directory")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain nested dict for YAML."""
    return {
        f.name: to_dict(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value
        for f in fields(config)
        for value in [getattr(config, f.name)]
    }


def from_dict(kind: type, values: dict[str, Any], prefix: str = "") -> Any:
    """The dataclass of a nested dict; ConfigError names unknown keys and the nearest valid one."""
    known, hints = {f.name: f for f in fields(kind)}, get_type_hints(kind)
    result: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(unknown("setting", prefix + str(key), [prefix + name for name in known]))
        group = GROUPS.get(key)
        if group is not None and isinstance(value, dict):
            value = from_dict(group, value, f"{prefix}{key}.")
        elif group is not None and hints[key] is group and not isinstance(value, group):
            raise ConfigError(f"{prefix}{key} must be a mapping of settings, got {value!r}")
        elif isinstance(value, list) and key == "betas":
            value = tuple(value)
        if group is None and isinstance(value, str) and {int, float} & {hints[key], *get_args(hints[key])}:
            raise ConfigError(f"{prefix}{key} must be a number, got {value!r}")
        result[key] = value
    return kind(**result)


GROUPS: dict[str, type] = {
    "model": Model,
    "optim": Optim,
    "tokens": Tokens,
    "evaluation": Evaluation,
    "checkpoint": Checkpoint,
    "guard": Guard,
    "runtime": Runtime,
    "machine": Machine,
    "ray": Ray,
    "slurm": Slurm,
}
