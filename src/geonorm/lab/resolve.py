"""What follows from the settings of a run, found once and before anything opens: its scheme, the model, what the
scheme's own recipe changes, and how the model lies on the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..devices import memory_of_machine
from ..errors import ConfigError
from ..models.config import DecoderConfig
from ..models.roles import check_start
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


def resolve(config: TrainConfig, world: World | None = None) -> Resolved:
    """ConfigError for a scheme or model that does not exist, or does not fit the ranks of a world."""
    scheme, shape = parse(config.scheme), config.shape(config.scheme)
    check_start(scheme, shape)
    departures = dict(scheme.recipe()) if config.recipe == "own" else {}
    kind = ""
    if world is not None:
        kind = layout(config.runtime, world, config.batch_size)
    changes: dict[str, Any] = dict(departures)
    lr = changes.pop("lr", config.lr)
    if "warmup" in changes:
        changes["warmup_steps"] = None
    config = replace(config, lr=lr, optim=replace(config.optim, **changes))
    return Resolved(config, scheme, departures, shape, kind)


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
