"""What follows from the settings of a run, worked out once, before anything opens: its scheme and model, what the
scheme's recipe changes, how the model lies on the ranks, and how often it is evaluated and saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..devices import memory_of_machine
from ..errors import ConfigError
from ..models.config import DecoderConfig
from ..models.init import check_start
from ..schemes import Scheme, parse
from .config import TrainConfig
from .distributed.parallel import layout
from .distributed.ranks import World


@dataclass(frozen=True)
class Resolved:
    """A run, ready to be built."""

    config: TrainConfig
    """Its settings, with the departures in place."""
    scheme: Scheme
    departures: dict[str, float]
    """What the scheme's own recipe sets, if the run asks for it: keys weight_decay, warmup, lr, clip."""
    shape: DecoderConfig
    layout: str
    """none, ddp or fsdp on the ranks of a world; empty where no world is known."""
    evaluate_every: int
    """Steps between evaluations."""
    save_every: int
    """Steps between checkpoints."""


def resolve(config: TrainConfig, world: World | None = None) -> Resolved:
    """ConfigError for a scheme or model that does not exist, or does not fit the ranks of a world."""
    scheme, shape = parse(config.scheme), config.shape(config.scheme)
    check_start(scheme, shape)
    departures = dict(scheme.recipe()) if config.recipe == "own" else {}
    changes: dict[str, Any] = dict(departures)
    lr = changes.pop("lr", config.lr)
    if "warmup" in changes:
        changes["warmup_steps"] = None
    return Resolved(
        config=replace(config, lr=lr, optim=replace(config.optim, **changes)),
        scheme=scheme,
        departures=departures,
        shape=shape,
        layout="" if world is None else layout(config.runtime, world, config.batch_size),
        evaluate_every=config.evaluation.every or max(1, config.steps // 3),
        save_every=config.checkpoint.every or max(1, config.steps // 5),
    )


def check_memory(shape: DecoderConfig) -> None:
    """ConfigError for a model that this machine cannot hold while it trains on the CPU: building it would take hours,
    and the system end the process without a word. By the matrices that every block has and the embedding, their
    gradients included, in fp32: less than is needed."""
    block = 2 * shape.width * (shape.heads * shape.head_dim + shape.hidden)
    least = 8 * (shape.layers * block + shape.width * shape.vocab_size)
    there = memory_of_machine()
    if least > there > 0:
        raise ConfigError(
            f"weights and gradients of this model take more than {least / 2**30:,.0f} GiB, and this machine has "
            f"{there / 2**30:,.0f}: choose fewer --model.layers or less --model.width"
        )
