"""Turns the configuration of a run into the parts of the run, once, before any file is opened. Each part of the program
takes the part that it needs; none looks at the configuration again."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..devices import memory_of_machine
from ..errors import ConfigError
from ..models.config import DecoderConfig
from ..models.init import check_start
from ..schemes import Scheme, parse
from ..settings import to_dict
from .config import Checkpoint, Evaluation, Log, Runtime, TrainConfig
from .distributed.parallel import layout
from .distributed.ranks import World
from .schedule import Schedule


@dataclass(frozen=True)
class TextPart:
    """Which text is read, and in which pieces."""

    source: str
    tokenizer: str
    objective: str
    vocab_size: int
    context: int
    batch_size: int
    seed: int
    field: str | None = None
    """The field of a record that holds its text."""
    limit: int | None = None
    """Most tokens of a split."""
    document_end: int | None = None

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.context


@dataclass(frozen=True)
class FolderPart:
    """The folder of a run, its settings, and what the run begins from."""

    path: Path
    settings: dict[str, Any]
    """As config.yaml holds them."""
    resume: bool
    accepted: list[str]
    """Names of settings and hashes that may have changed since the run was stopped (--accept-changed)."""
    branch: str | None
    init_from: str | None


@dataclass(frozen=True)
class Resolved:
    """The parts of a run."""

    folder: FolderPart
    text: TextPart
    shape: DecoderConfig
    """The model."""
    scheme: Scheme
    departures: dict[str, float]
    """What the scheme's own recipe sets, if the run asks for it: keys weight_decay, warmup, lr, clip."""
    schedule: Schedule
    runtime: Runtime
    layout: str
    """none, ddp or fsdp on the ranks of a world; empty where no world is known."""
    micro_batch: int
    """Sequences of a pass, at most before `plan.fit_to_device` has seen the device; 0: as many as fit it."""
    evaluation: Evaluation
    checkpoint: Checkpoint
    guard: str
    log: Log


def resolve(config: TrainConfig, world: World | None = None, on_cpu: bool = False) -> Resolved:
    """The parts of a run. on_cpu: this machine trains it on its CPU. ConfigError for a scheme or model that does not
    exist, or does not fit the ranks of a world or this machine's memory, and for a warm-up that does not end in
    time."""
    scheme, shape, settings = parse(config.scheme), config.shape(config.scheme), to_dict(config)
    if on_cpu:
        check_memory(shape)
    check_start(scheme, shape)
    departures = dict(scheme.recipe()) if config.recipe == "own" else {}
    changes: dict[str, Any] = {"lr": config.lr, **departures}
    lr = changes.pop("lr")
    if "warmup" in changes:
        changes["warmup_steps"] = None
    schedule = Schedule(
        replace(config.optim, **changes),
        lr,
        config.steps,
        config.evaluation.every or max(1, config.steps // 3),
        config.checkpoint.every or max(1, config.steps // 5),
        config.evaluation.average,
    )
    return Resolved(
        folder=FolderPart(
            Path(config.out),
            {field.name: settings[field.name] for field in fields(TrainConfig)} | {"accept_changed": []},
            config.resume == "auto",
            config.accept_changed,
            config.branch,
            config.init_from,
        ),
        text=TextPart(
            config.data,
            config.tokens.tokenizer,
            config.objective,
            shape.vocab_size,
            shape.context,
            config.batch_size or 1,
            config.seed,
            config.tokens.field,
            config.tokens.limit,
            shape.document_end,
        ),
        shape=shape,
        scheme=scheme,
        departures=departures,
        schedule=schedule,
        runtime=config.runtime,
        layout="" if world is None else layout(config.runtime, world, config.batch_size or 1),
        micro_batch=0 if config.micro_batch == "auto" else config.micro_batch,
        evaluation=config.evaluation,
        checkpoint=config.checkpoint,
        guard=config.guard,
        log=config.log,
    )


def check_memory(shape: DecoderConfig) -> None:
    """ConfigError for a model that this machine cannot hold while it trains on the CPU: building it would take hours,
    and then the system would kill the process without a message. Counted are the matrices that every block has and the
    embedding, with gradients, in fp32: a lower bound."""
    block = 2 * shape.width * (shape.heads * shape.head_dim + shape.hidden)
    least = 8 * (shape.layers * block + shape.width * shape.vocab_size)
    there = memory_of_machine()
    if least > there > 0:
        raise ConfigError(
            f"weights and gradients of this model take more than {least / 2**30:,.0f} GiB, and this machine has "
            f"{there / 2**30:,.0f}: choose fewer --model.layers or less --model.width"
        )
