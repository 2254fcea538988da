"""The state of a training run on one rank: how it is built, saved, resumed and rewound."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...models.decoder import Decoder
from .. import checkpoint
from ..config import TrainConfig
from ..data.batches import Batches
from ..distributed import parallel
from ..distributed.ranks import ALONE, World
from ..resolve import Resolved
from ..runs.folder import RunFolder
from . import optim
from .branch import SharedPrefix
from .diagnose import diagnose
from .guard import Anomaly, AnomalyGuard, Diverged
from .hooks import Hook
from .init_from import InitialWeights, load_initial_weights
from .text import Text
from .validation import Validation

Say = Callable[[str], None]


@dataclass
class TrainState:
    """A run between two of its steps."""

    resolved: Resolved
    world: World
    device: torch.device
    model: Decoder
    parallel_model: parallel.ParallelModel
    optimizers: parallel.Optimizers
    batches: Batches
    validation: Validation
    guard: AnomalyGuard
    initial: InitialWeights | None
    """Where the first weights come from, if not from the seed."""
    step: int = 0
    """Steps that have been made."""
    skipped_batches: int = 0
    """Batches of the data that were left out when the run was rewound."""
    seconds: float = 0.0
    """Of training, without evaluations and checkpoints."""
    started: float = field(default_factory=time.monotonic)
    """When the run would have started without interruptions."""

    @property
    def config(self) -> TrainConfig:
        return self.resolved.config


def build(resolved: Resolved, text: Text, device: torch.device, world: World = ALONE) -> TrainState:
    """The state before the first step. Nothing is written; GeonormError for settings that do not fit together."""
    c, shape = resolved.config, resolved.shape
    torch.manual_seed(c.seed)
    with torch.device(build_device := parallel.build_device(resolved.layout)):
        model = Decoder(shape)
    model = parallel.distribute(model, c.runtime, device if build_device.type == "cpu" else build_device)
    parallel_model = parallel.ParallelModel(model, c.runtime, world, device, resolved.layout, c.steps)
    initial = load_initial_weights(c, model, text.fingerprint, world)
    torch.manual_seed(parallel.rank_seed(c.seed, world))
    optimizers = parallel.split_groups(optim.build_optimizers(model, c.optim, c.lr))
    batches, validation = text.batches(c, shape), text.validation(c, shape, device, world)
    guard = AnomalyGuard(c.guard)
    return TrainState(resolved, world, device, model, parallel_model, optimizers, batches, validation, guard, initial)


def fetch_batch(state: TrainState, step: int) -> tuple[Tensor, Tensor]:
    """This rank's rows of the batch of a step, on its device: ids and targets (rows, context)."""
    rows = parallel.rank_rows(state.config.batch_size, state.world)
    ids, targets = state.batches.at(step - 1 + state.skipped_batches, rows)
    return parallel.to_device(ids, state.device), parallel.to_device(targets, state.device)


def hook_tensors(hooks: Sequence[Hook]) -> dict[str, Tensor]:
    """What checkpoints hold for all hooks."""
    return {name: tensor for hook in hooks for name, tensor in hook.tensors.items()}


def save(state: TrainState, hooks: Sequence[Hook], saver: checkpoint.Saver, run: RunFolder) -> None:
    """Copies the state; the files are written beside the next steps."""
    state.world.on_all_ranks(run.check_there)
    progress = {
        "scheme": state.config.scheme,
        "seconds": state.seconds,
        "wall_seconds": time.monotonic() - state.started,
        "passed_over": state.skipped_batches,
        "guard": state.guard.state(),
    }
    saver.save(state.step, state.model, state.optimizers, progress, hook_tensors(hooks))


def resume(state: TrainState, hooks: Sequence[Hook], run: RunFolder, prefix: SharedPrefix | None, say: Say) -> bool:
    """Takes over the newest checkpoint of the run, or of the run whose first steps it shares; False if there is
    none."""
    target = state.model, state.optimizers, say, state.world, hook_tensors(hooks)
    saved = checkpoint.load_newest(run.checkpoints, *target)
    if saved is None and prefix:
        saved = checkpoint.load_newest(prefix.folder.checkpoints, *target, prefix.last)
        prefix.copy_rows(run, saved is not None)
    if saved is None:
        return False
    state.step, state.seconds = saved["step"], saved["seconds"]
    state.started = time.monotonic() - saved["wall_seconds"]
    state.skipped_batches = saved["passed_over"]
    state.guard.restore(saved["guard"])
    return True


def rewind(
    state: TrainState,
    anomaly: Anomaly,
    hooks: Sequence[Hook],
    run: RunFolder,
    prefix: SharedPrefix | None,
    saver: checkpoint.Saver,
    say: Say,
) -> None:
    """Goes back to the last checkpoint, and on with the data behind the bad batch. Diverged where the anomaly is to
    stop the run, or the run was rewound too often."""
    if anomaly.action == "stop":
        raise Diverged(explain(state, anomaly))
    saver.wait()
    state.guard.record(anomaly)
    events, skipped, started = state.guard.events, state.skipped_batches, state.started
    if not resume(state, hooks, run, prefix, say):
        raise CheckpointError(f"{anomaly}, and there is no checkpoint to go back to")
    for optimizer in state.optimizers:
        optimizer.zero_grad(set_to_none=True)
    run.truncate(state.step)
    state.guard.events, state.started = events, started
    state.skipped_batches = skipped + anomaly.step - state.step
    events[-1]["to"] = state.step
    say(f"{anomaly}: back to step {state.step}, and on with other data")


def explain(state: TrainState, anomaly: Anomaly) -> str:
    """The diagnosis of a bad step, the same on every rank: from one whose rows overflow, if there is one."""
    on_validation = "validation" in anomaly.what
    ids, _ = state.validation.part[0] if on_validation else fetch_batch(state, anomaly.step)
    with parallel.precision(state.config.runtime, state.device):
        report = diagnose(state.model, ids.to(state.device), anomaly.step, anomaly.what)
    reports = state.world.gather(report)
    return next((text for text in reports if "first site to overflow" in text), reports[0])
