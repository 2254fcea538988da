"""Every setting of a run, as plain typed dataclasses. No torch here: the command line reads this file.

What people set most is a field of the config itself (`--steps`), the rest is grouped (`--optim.weight_decay`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, ClassVar, Literal

from ..errors import ConfigError
from ..models.config import DecoderConfig, preset
from ..settings import Count, Needs, NotNegative, Range, Settings
from .clusters import Machine, Ray, Slurm
from .needs import LAUNCHED, NEEDS
from .options import Checkpoint, Evaluation, Log, Optim, Tokens
from .shapes import Goal, Model, shape_of

MAX_SEED = 2**63 - 1
TRAINED_WITH: dict[str, Literal["adamw", "muon"]] = {"modern": "muon", "modern-d12": "muon"}
"""The optimizer that belongs to a preset, where it is not AdamW."""
Many = Annotated[int, Range(1), Range(1, 2**53)]
TUNING_SEED = 1_000_000
"""Seed of the short runs that choose a learning rate: none that a final run uses, however many seeds are added."""


@dataclass(frozen=True)
class Guard(Settings):
    """What is done when a step goes wrong."""

    prefix = "guard."

    nan: Literal["stop", "skip", "rewind"] = "stop"
    """A loss or gradient that is not finite. skip: the batch is dropped; rewind: back to the last checkpoint, and on
    with the data behind the bad batch; stop: the run ends with a diagnosis, as after ten of the others."""
    spike: Literal["ignore", "stop", "skip", "rewind"] = "ignore"
    """A loss more than six standard deviations above the mean of the last 100."""


@dataclass(frozen=True)
class Runtime(Settings):
    """Where and how fast."""

    prefix = "runtime."

    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16 under autocast; weights, norms and the residual stream stay fp32
    (under fsdp gains and learned numbers of blocks are rounded to it on their way)."""
    threads: Annotated[int, Range(1, 1024)] = 1
    """CPU threads of one run."""
    compile: bool = False
    """torch.compile, block by block, and of the loss; in runs of 10,000 steps or more, on one CPU thread, a model of up
    to 6 blocks as one graph."""
    recompute: bool = False
    """Activation checkpointing, block by block."""
    accumulate: Count = 1
    """Micro-batches per step and rank."""
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    """Under torchrun: ddp, the model whole on every rank (auto), or fsdp, each block sharded over the ranks."""
    shard_size: Count | None = None
    """fsdp: ranks that share one copy of the model, beside other copies; all ranks when not given."""
    tensorboard: bool = True
    """Whether to write event files."""


@dataclass(frozen=True)
class Shared(Settings):
    """What every run of a study shares, whatever its length."""

    needs: ClassVar[Needs] = NEEDS

    preset: str = "nano"
    """Size of the model: nano, nano-gpt2, nano-bert, modern, mini, 125m, paper-125m, bert-base, modern-d12,
    350m, 1.3b, 7b, 70b."""
    data: str = "stdlib"
    """Text: a file, a folder, JSONL, Parquet, a corpus in $GEONORM_DATA, a Hugging Face dataset, stdlib (built in)."""
    objective: Goal = "causal"
    """What is trained: causal, the next token; mlm, 15 % of the tokens, masked, by a model that sees both sides."""
    recipe: Literal["shared", "own"] = "shared"
    """own: each scheme departs from the shared recipe as its paper asks (`geonorm schemes NAME`)."""
    model: Model = field(default_factory=Model)  # type: ignore[valid-type]
    optim: Optim = field(default_factory=Optim)
    tokens: Tokens = field(default_factory=Tokens)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    guard: Guard = field(default_factory=Guard)
    runtime: Runtime = field(default_factory=Runtime)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optim.name is None:
            object.__setattr__(self, "optim", replace(self.optim, name=TRAINED_WITH.get(self.preset, "adamw")))

    def shape(self, scheme: str) -> DecoderConfig:
        """The model under a scheme: the preset with the given fields replaced."""
        return shape_of(self.preset, self.objective, scheme, self.model)


@dataclass(frozen=True)
class Recipe(Shared):
    """What every run of a comparison shares."""

    steps: Many = 300
    """Optimizer steps."""
    batch_size: Many = 4
    """Sequences per step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.runtime.accumulate:
            raise ConfigError(
                f"batch_size {self.batch_size} must be a multiple of runtime.accumulate {self.runtime.accumulate}"
            )
        self.optim.check_steps(self.steps)


@dataclass(frozen=True)
class TrainConfig(Recipe):
    """One run."""

    scheme: str = "preset"
    """Residual scheme, as in `geonorm schemes`; preset: that of the preset, modern's lambdas, all others' geonorm."""
    lr: NotNegative = 5e-3
    """Highest learning rate."""
    seed: Annotated[int, Range(0, MAX_SEED)] = 0
    """Seed of weights and of the data order."""
    out: str = "runs/train"
    """Run directory. One that holds this run is resumed from its newest checkpoint."""
    resume: Literal["auto", "never"] = "auto"
    """auto: go on from the newest checkpoint in --out; never: refuse a directory that holds a run."""
    init_from: str | None = None
    """Run, of any scheme, whose newest weights this one begins with where names match; steps and optimizer begin
    anew."""
    branch: str | None = None
    """Run of the same settings but steps, in whose newest checkpoint before either of the two cools down (wsd) this one
    begins: the same as without, but for the time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme == "preset":
            object.__setattr__(self, "scheme", preset(self.preset).scheme)
        directory(self.out)

    @property
    def phase(self) -> str:
        """What a comparison uses the run for."""
        return "tune" if self.seed == TUNING_SEED else "final"


@dataclass(frozen=True)
class TrainCommand(TrainConfig):
    """Trains one model, or goes on with a run that was stopped: the settings of a run are stored in its directory, and
    the same command, or --config RUN/config.yaml, repeats or resumes it."""

    common = ("scheme", "preset", "data", "steps", "batch_size", "lr", "seed", "out", "resume", "dry_run")
    examples = (
        "geonorm train --scheme geonorm --data my.txt --steps 2000 --lr 6e-3 --out runs/geonorm",
        "geonorm train --preset 125m --data my.jsonl.zst --runtime.dtype bf16 --dry-run",
    )

    dry_run: bool = False
    """Print the resolved settings and a plan of the run (size, memory, time); train nothing, write nothing."""
    world_size: Count | None = None
    """With --dry-run: ranks to plan for; 1 when not given. A real run has as many as torchrun starts."""
    json: bool = False
    """With --dry-run: one JSON object instead of a table."""
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        super().__post_init__()
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
class Grid(Shared):
    """Which runs a study of schemes has, and where they are made."""

    needs: ClassVar[Needs] = {**NEEDS, **LAUNCHED}

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
    """Runs at a time; as many as the machine has cores for (CPU) or devices (GPU) when not given."""
    launcher: Literal["local", "submitit", "ray"] = "local"
    """Where runs are started: as processes on this machine, as jobs of SLURM, as tasks of a Ray cluster."""
    ray: Ray = field(default_factory=Ray)
    slurm: Slurm = field(default_factory=Slurm)

    def __post_init__(self) -> None:
        super().__post_init__()
        directory(self.out)


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

    lrs: list[Annotated[float, Range(1e-12)]] = field(default_factory=lambda: [5e-3])
    """Learning rates. Several are tried with one seed on a shorter run and the best is kept for each scheme."""
    tune: bool = False
    """Extend the learning rates of a scheme by the grid's own ratio until its best is not at an end."""
    tune_steps: Count | None = None
    """Steps of a tuning run; half of --steps when not given. Short runs like higher rates than long ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.schemes or not self.lrs:
            raise ConfigError("compare needs at least one scheme and one learning rate")
        if len(set(self.lrs)) < len(self.lrs):
            raise ConfigError("--lrs names a learning rate twice")
        if self.tune and len(self.lrs) < 2:
            raise ConfigError("--tune needs at least two learning rates in --lrs, to know the ratio of the grid")
        if len(self.lrs) > 1:
            self.optim.check_steps(self.steps_of_tuning)
        elif self.tune_steps is not None:
            raise ConfigError("--tune-steps is of tuning runs, and one learning rate makes none: give more in --lrs")

    @property
    def steps_of_tuning(self) -> int:
        return self.tune_steps or max(1, self.steps // 2)


@dataclass(frozen=True)
class ExportConfig(Settings):
    """A finished run as a model folder for transformers: weights, configuration, tokenizer, model card."""

    words = ("run",)
    examples = (
        "geonorm export runs/geonorm --to my-model",
        "geonorm export runs/mine --scheme pre --to my-llama --layout stock",
    )

    run: str
    """Run directory, or folder of a comparison (with --scheme)."""
    to: str
    """Folder to write; it must not exist or be empty."""
    layout: str = "geonorm"
    """geonorm: any scheme, loads with `import geonorm.hf`; stock, or by name (llama, gpt2, ...): the architecture of
    transformers that it equals."""
    remote_code: bool = False
    """Add a modeling file: the folder then loads with trust_remote_code=True where geonorm is not installed."""
    scheme: str | None = None
    """With the folder of a comparison: its best finished run of this scheme."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """What a text source holds (inspect), or its tokens written to the cache (prepare)."""

    words = ("action", "source")
    examples = (
        "geonorm data inspect my.txt",
        "geonorm data prepare my.jsonl.zst --vocab-size 4096",
    )
    needs: ClassVar[Needs] = {
        "vocab_size": ("--tokenizer bpe", lambda c: c.tokenizer in ("bpe", *[None] * (c.action == "prepare"))),
    }

    action: Literal["inspect", "prepare"]
    """inspect: print a description; prepare: tokenize into the cache, $GEONORM_CACHE or
    ~/.cache/geonorm."""
    source: str
    """Text, as for --data of train."""
    tokenizer: str | None = None
    """byte, bpe or a tokenizer.json; bpe for prepare when not given."""
    vocab_size: int = 1024
    """Tokens of an own BPE."""


def directory(out: str) -> None:
    if not out:
        raise ConfigError("out is empty; give a directory")
