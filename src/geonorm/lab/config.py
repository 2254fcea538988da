"""Every setting of a run, as plain typed dataclasses. No torch here: the command line reads this file.

What people set most is a field of the config itself (`--steps`), the rest is grouped (`--optim.weight_decay`). A part
of the program takes its group, not the whole: `build_optimizers(model, config.optim, lr)`. What follows from several
settings is worked out once, by `lab.resolve`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from typing import Annotated, Literal, Self

from ..errors import ConfigError, require, unknown
from ..models.config import DecoderConfig, preset
from ..settings import Count, Natural, NotNegative, Positive, Range, Settings, Share, check_out, convert_value, hints

MAX_SEED = 2**63 - 1
TRAINED_WITH: dict[str, Literal["adamw", "muon"]] = {"modern": "muon", "modern-d12": "muon"}
"""The optimizer that belongs to a preset, where it is not AdamW."""
TUNING_SEED = 1_000_000
"""Seed of the runs that choose a learning rate: none that a final run uses, however many seeds are added."""


def phase_of(seed: int) -> str:
    """What a comparison uses a run for: to tune, or as one of its final runs."""
    return "tune" if seed == TUNING_SEED else "final"


SEQUENCES = {
    "125m": 512, "paper-125m": 256, "bert-base": 256, "modern-d12": 256, "350m": 512, "1.3b": 512, "7b": 2048,
    "70b": 1024,
}  # fmt: skip
"""Sequences of a step, by preset: of 125m and 350m 0.5M tokens, of 1.3b 1M, of 7b and 70b 4M; of small ones 4."""
RATE_ROLES = ("embed", "position", "head", "hidden", "q", "k", "v", "o", "up", "gate", "down", "gain")
"""Roles that may have a learning rate of their own: those of models.init but for values (tables of token vectors),
transform (the layer before a masked head) and what only models of images have."""
WIDTH_FREE_ROLES = ("embed", "position", "gain")
"""Roles whose best rate does not depend on the width: no sum over the width stands between them and the stream."""
DECAY_LIMIT = 0.1
"""Independent weight decay must take a smaller share than this off a matrix in one step. It is also the default of
weight_decay, which is meant to be multiplied by the learning rate."""
Memory = Annotated[float, Range(0, 0.999999)]
"""Share of an average that it keeps in a step."""


@dataclass(frozen=True)
class Optim(Settings):
    """The optimizer and its schedule."""

    prefix = "optim."

    name: Literal["adamw", "muon"] | None = None
    """muon: orthogonalised momentum for matrices inside blocks, AdamW for the rest. When not given, that of the preset:
    muon for modern and modern-d12, adamw for all others."""
    weight_decay: NotNegative = 0.1
    """On matrices but not on embeddings, norms and scalars; decoupled."""
    independent: bool = False
    """Weight decay of a step is weight_decay times the schedule (arXiv:2309.14322: some 1e-4), not times the learning
    rate; 0.1 or more is refused."""
    betas: tuple[Memory, Memory] = (0.9, 0.95)
    """AdamW's averages."""
    eps: NotNegative = 1e-8
    """AdamW's epsilon."""
    clip: NotNegative = 1.0
    """Largest norm of the whole gradient; 0 switches clipping off."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """After warm-up: cosine to the floor, constant with a linear decay at the end (wsd), or constant."""
    warmup: Share = 0.1
    """Share of the steps in which the learning rate rises linearly."""
    warmup_steps: Natural | None = None
    """The same in steps, in place of the share."""
    cooldown: Share = 0.2
    """Share of the steps in which wsd decays."""
    floor: Share = 0.1
    """Last learning rate as a share of the highest."""
    rates: list[str] = field(default_factory=list)
    """Multipliers of the learning rate by role: embed=16 head=1. Roles: embed, position, head, q k v o up gate down,
    hidden (all of these), gain (norms, biases, numbers that a scheme learns). In a ladder those of embed, position and
    gain hold at the preset's width and grow with it, so that their rates stay while that of matrices falls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.multipliers) == len(self.rates), "optim.rates names a role twice")
        require(
            not self.independent or self.weight_decay < DECAY_LIMIT,
            f"optim.independent takes weight_decay, {self.weight_decay:g}, off every matrix in a step, whatever "
            "the rate: give a share for one step, say --optim.weight_decay 1e-4",
        )

    @property
    def multipliers(self) -> dict[str, float]:
        """Of the learning rate, by role. ConfigError for an unknown role or a rate that is not above 0."""
        multipliers: dict[str, float] = {}
        for word in self.rates:
            role, _, number = word.partition("=")
            if role not in RATE_ROLES:
                raise ConfigError(unknown("role of optim.rates", role, RATE_ROLES))
            name = f"optim.rates {role}"
            multipliers[role] = convert_value(name, convert_value(name, number, float, typed=True), Positive)
        return multipliers

    def at_width(self, ratio: float) -> Optim:
        """The same for a model `ratio` times as wide, whose learning rate is as many times lower: roles whose best rate
        does not depend on the width keep theirs."""
        factors = {role: ratio if role in WIDTH_FREE_ROLES else 1 for role in self.multipliers}
        return replace(self, rates=[f"{role}={rate * factors[role]:.6g}" for role, rate in self.multipliers.items()])


@dataclass(frozen=True)
class Evaluation(Settings):
    """Measurements during training, on held-out text that never changes."""

    prefix = "evaluation."

    every: Count | None = None
    """Steps between evaluations; a third of the run when not given. The last step is always evaluated."""
    tokens: Count | None = None
    """Held-out tokens, spread evenly over the validation text; the whole of it where it is shorter. When not given, an
    eighth of the tokens that the run trains on, at least 4096 and at most 65536. Evaluations before the last read
    fewer: a sixteenth of the tokens trained on since the last one, and at least 4096."""
    whole: bool | None = None
    """The whole validation text after the last step; when not given, where that costs little: it
    has at most an eighth of the tokens that the run trains on."""
    average: Share = 0.0
    """Share of the steps, the last ones, whose mean weights are evaluated too (val_loss_average); 0: none."""
    trace_tokens: Natural = 1024
    """Held-out tokens, spread like the others, on which the geometry of every site is measured; 0: no trace."""


@dataclass(frozen=True)
class Checkpoint(Settings):
    """What survives a crash."""

    prefix = "checkpoint."

    every: Count | None = None
    """Steps between checkpoints; a fifth of the run when not given. One is saved at the last step, and when ten minutes
    have passed without."""
    keep: Count = 2
    """Newest checkpoints kept; of a run under wsd also the one before the cool-down, where longer runs can begin."""


@dataclass(frozen=True)
class Log(Settings):
    """Where the numbers of a run go besides its directory."""

    prefix = "log."

    to: list[Literal["wandb", "trackio"]] = field(default_factory=list)
    """Trackers, each an extra of the package (pip install 'geonorm[wandb]'); none by default. Their project is
    $WANDB_PROJECT, or geonorm."""


@dataclass(frozen=True)
class Tokens(Settings):
    """How text becomes tokens."""

    prefix = "tokens."

    tokenizer: str = "bpe"
    """byte, bpe (trained on the training text, as many tokens as model.vocab_size), or a tokenizer.json; of token ids
    none. Tokens are kept in $GEONORM_CACHE, or ~/.cache/geonorm."""
    field: str | None = None
    """Field or column that holds the text; `text` when not given."""
    limit: Count | None = None
    """Tokens of a split to prepare: the piece of text that reaches them is the last. All when not given."""


@dataclass(frozen=True)
class Runtime(Settings):
    """Where and how fast."""

    prefix = "runtime."

    device: str = "auto"
    """auto (an NVIDIA GPU if there is one), cpu, cuda. With --dry-run also h100, h200, b200, a100, a100-40, l40s,
    rtx4090, rtx3090, or TFLOP/s and GiB for tensors such as 165/21; auto is then the GPU that is here, else h100."""
    dtype: Literal["fp32", "bf16"] | None = None
    """bf16: matrix products in bfloat16 under autocast, others in TF32; weights, norms and the residual stream stay
    fp32 (under fsdp gains and learned numbers of blocks are rounded to it on their way). When not given, bf16 on a GPU,
    fp32 on a CPU."""
    threads: Annotated[int, Range(1, 1024)] = 1
    """CPU threads of one run."""
    compile: bool | None = None
    """torch.compile, block by block, and of the loss; in runs of 10,000 steps or more, on one CPU thread, a model of up
    to 6 blocks as one graph. When not given, on a GPU from width 512 on."""
    recompute: bool = False
    """Activation checkpointing, block by block."""
    parallel: Literal["auto", "ddp", "fsdp", "hsdp"] = "auto"
    """Under torchrun: ddp, the model whole on every rank; fsdp, each block sharded over the ranks; hsdp, sharded over
    the ranks of a machine, one copy on each machine. auto: ddp where that fits the device, else fsdp."""
    tensorboard: bool = True
    """Whether to write event files."""


Model = make_dataclass(
    "Model",
    [(name, hint | None, None) for name, hint in hints(DecoderConfig).items() if name not in ("scheme", "causal")],
    bases=(Settings,),
    namespace={
        "__module__": __name__,
        "__doc__": "Shape of the model; what is not given comes from the preset.",
        "prefix": "model.",
        "documented_by": DecoderConfig,
    },
    frozen=True,
)
"""Every field of a model but the scheme and what the objective says, optional."""


@dataclass(frozen=True)
class Shared(Settings):
    """What every run of a study shares, whatever its length."""

    preset: str = "nano"
    """Size of the model: nano, nano-gpt2, nano-bert, modern, mini, 125m, paper-125m, bert-base, modern-d12,
    350m, 1.3b, 7b, 70b."""
    data: str = "stdlib"
    """Text: a file, a folder, JSONL, Parquet, a corpus in $GEONORM_DATA, a Hugging Face dataset, stdlib (built in); or
    token ids: .npy, .bin of nanoGPT, llm.c, Megatron. Several by shares of tokens: "3*novels.txt + latex.txt"."""
    objective: Literal["causal", "mlm"] = "causal"
    """What is trained: causal, the next token; mlm, 15 % of the tokens, masked, by a model that sees both sides."""
    guard: Literal["stop", "rewind", "spikes"] = "stop"
    """What is done at a loss or gradient that is not finite. stop: the run ends with a diagnosis; rewind: back to the
    last checkpoint, and on with the data after the bad batch, at most ten times; spikes: that, and at a loss more than
    six standard deviations above the mean of the last 100."""
    recipe: Literal["shared", "own"] = "shared"
    """own: each scheme departs from the shared recipe as its paper asks (`geonorm schemes NAME`)."""
    model: Model = field(default_factory=Model)  # type: ignore[valid-type]
    optim: Optim = field(default_factory=Optim)
    tokens: Tokens = field(default_factory=Tokens)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    runtime: Runtime = field(default_factory=Runtime)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optim.name is None:
            object.__setattr__(self, "optim", replace(self.optim, name=TRAINED_WITH.get(self.preset, "adamw")))

    @property
    def width(self) -> int:
        """Of the stream."""
        return int(asdict(self.model)["width"] or preset(self.preset).width)

    @property
    def usual_lr(self) -> float:
        """The learning rate that goes with the width, as matrices ask for it (arXiv:2203.03466); at most that of width
        128."""
        return min(5e-3, float(f"{0.64 / self.width:.3g}"))

    def on_device(self, kind: str) -> Self:
        """The same with what the kind of device decides, cpu or cuda, where it is left open. Of small models a run is
        over too soon to compile them."""
        runtime, gpu = self.runtime, kind == "cuda"
        compiled = gpu and self.width >= 512 if runtime.compile is None else runtime.compile
        dtype = runtime.dtype or ("bf16" if gpu else "fp32")
        return replace(self, runtime=replace(runtime, dtype=dtype, compile=compiled))

    def shape(self, scheme: str) -> DecoderConfig:
        """The model under a scheme: the preset with the fields of `model` replaced. ConfigError for a preset that needs
        another objective."""
        changes = {key: value for key, value in asdict(self.model).items() if value is not None}
        shape = preset(self.preset, scheme=scheme, **changes)
        if self.objective == "mlm":
            return replace(shape, causal=False)
        require(shape.causal, f"preset {self.preset} attends to both sides of a token: it needs --objective mlm")
        return shape

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.optim.schedule != "wsd":
            yield "optim.cooldown", "optim.schedule wsd"
        if self.optim.schedule == "constant":
            yield "optim.floor", "optim.schedule cosine or wsd"
        if self.optim.warmup_steps is not None:
            yield "optim.warmup", "optim.warmup_steps to be left out"


@dataclass(frozen=True)
class Recipe(Shared):
    """What every run of a comparison shares."""

    steps: Count = 300
    """Optimizer steps."""
    batch_size: Count | None = None
    """Sequences per step, of all ranks; when not given those of the preset: 4, or 0.1M to 4M tokens for 125m and
    more."""
    micro_batch: Literal["auto"] | Count = "auto"
    """Most sequences that a rank takes through the model at once; the rest of its share of a step follows in further
    passes. auto: as many as fit the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", SEQUENCES.get(self.preset, 4))


@dataclass(frozen=True)
class TrainConfig(Recipe):
    """One run."""

    scheme: str = "preset"
    """Residual scheme, as in `geonorm schemes`; preset: that of the preset, lambdas for modern and modern-d12, geonorm
    for all others."""
    lr: NotNegative | None = None
    """Highest learning rate; when not given 0.64 / width, 5e-3 at most."""
    seed: Annotated[int, Range(0, MAX_SEED)] = 0
    """Seed of weights and of the data order."""
    out: str = "runs/train"
    """Run directory. One that holds this run is resumed from its newest checkpoint."""
    resume: Literal["auto", "never"] = "auto"
    """auto: go on from the newest checkpoint in --out; never: refuse a directory that holds a run."""
    accept_changed: list[str] = field(default_factory=list)
    """Settings, or data_sha256, tokenizer_sha256, that differ from those of the run in --out: it goes on with them, as
    a new part that is recorded. Without, a change is refused by name."""
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
        if self.lr is None:
            object.__setattr__(self, "lr", self.usual_lr)
        check_out(self.out)


@dataclass(frozen=True)
class TrainCommand(TrainConfig):
    """Trains one model, or goes on with a run that was stopped: the settings of a run are stored in its directory, and
    the same command, or --config RUN/config.yaml, repeats or resumes it."""

    common = ("scheme", "preset", "data", "steps", "batch_size", "lr", "seed", "out", "resume", "dry_run")
    examples = (
        "geonorm train --scheme geonorm --data my.txt --steps 2000 --lr 6e-3 --out runs/geonorm",
        "geonorm train --preset 125m --data my.jsonl.zst --dry-run",
    )

    dry_run: bool = False
    """Print the resolved settings and a plan of the run (size, memory, time); train nothing, write nothing."""
    world_size: Count | None = None
    """With --dry-run: ranks to plan for; 1 when not given. A real run has as many as torchrun starts."""
    json: bool = False
    """With --dry-run: one JSON object instead of a table."""
    profile: Natural = 0
    """Steps to profile, from the fourth on: RUN/profile gets trace.json.gz, for Perfetto, and table.txt, operators by
    their time."""

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if not self.dry_run:
            yield from ((name, "--dry-run") for name in ("world_size", "json"))


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
