"""The state of a training run on one rank, and how it is built from settings and text."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...models.decoder import Decoder
from ..data.batches import Batches
from ..distributed import parallel
from ..distributed.ranks import ALONE, World
from ..resolve import Resolved
from ..runs.identity import without_accepted
from ..runs.provenance import sources_in
from ..schedule import Schedule
from . import optim
from .guard import AnomalyGuard
from .init_from import load_initial_weights
from .text import TrainingText
from .validation import Validation


@dataclass
class TrainState:
    """A run between two of its steps."""

    world: World
    device: torch.device
    model: Decoder
    parallel_model: parallel.ParallelModel
    optimizers: list[torch.optim.Optimizer]
    schedule: Schedule
    batches: Batches
    validation: Validation
    guard: AnomalyGuard
    initial: dict[str, Any] | None
    """Where the first weights come from, if not from the seed; its `line` says so in words."""
    identity: dict[str, Any]
    """All that decides the numbers of the run, by name."""
    required: dict[str, Any]
    """The part of the identity that a checkpoint must share: all but what --accept-changed names."""
    step: int = 0
    """Steps that have been made."""
    batch_offset: int = 0
    """Batches of the data that were left out when the run was rewound."""
    seconds: float = 0.0
    """Seconds of training, without evaluations and checkpoints."""
    started: float = field(default_factory=time.monotonic)
    """When the run would have started without interruptions."""


def build_state(setup: Resolved, text: TrainingText, device: torch.device, world: World = ALONE) -> TrainState:
    """The state before the first step. Nothing is written; GeonormError for settings that do not fit together."""
    runtime, schedule, seed = setup.runtime, setup.schedule, setup.text.seed
    torch.manual_seed(seed)
    # a model that is sharded over ranks is built on the meta device, so that no rank ever holds all of it
    sharded = setup.layout == "fsdp"
    with torch.device("meta" if sharded else "cpu"):
        model = Decoder(setup.shape)
    model = parallel.distribute(model, runtime, torch.device("meta") if sharded else device)
    parallel_model = parallel.ParallelModel(model, runtime, world, device, setup.layout, schedule.steps)
    initial = load_initial_weights(setup.folder, model, text.tokenizer.fingerprint, world)
    torch.manual_seed(parallel.rank_seed(seed, world))
    optimizers = optim.build_optimizers(model, schedule.optim, schedule.lr)
    validation = text.validation(setup.evaluation, schedule.steps, device, world, schedule.evaluate_every)
    identity = text.identity(setup.folder.settings, sources_in([setup.shape.scheme]))
    return TrainState(
        world, device, model, parallel_model, optimizers, schedule, text.batches(), validation,
        AnomalyGuard(setup.guard), initial, identity, without_accepted(identity, setup.folder.accepted),
    )  # fmt: skip


def fetch_batch(state: TrainState, step: int) -> tuple[Tensor, Tensor]:
    """This rank's rows of the batch of a step, on its device: ids and targets (rows, context)."""
    each = state.batches.batch_size // state.world.size
    rows = slice(state.world.rank * each, (state.world.rank + 1) * each)
    ids, targets = state.batches.at(step - 1 + state.batch_offset, rows)
    return parallel.to_device(ids, state.device), parallel.to_device(targets, state.device)
