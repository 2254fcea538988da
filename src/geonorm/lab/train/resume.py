"""Saving a training run, resuming it from its newest checkpoint, and rewinding it to that."""

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from torch import Tensor

from ...errors import CheckpointError
from .. import checkpoint
from ..runs.folder import RunFolder
from .branch import SharedPrefix
from .diagnose import diagnose
from .guard import Anomaly, Diverged
from .hooks import Hook
from .state import TrainState, fetch_batch

Say = Callable[[str], None]


def hook_tensors(hooks: Sequence[Hook]) -> dict[str, Tensor]:
    """What checkpoints hold for all hooks."""
    return {name: tensor for hook in hooks for name, tensor in hook.tensors.items()}


def save_state(state: TrainState, hooks: Sequence[Hook], run: RunFolder, saver: checkpoint.Saver) -> None:
    """Copy the state; its files are written while the next steps run. All rows so far are on the disk before."""
    run.sync()
    progress = {
        "seconds": state.seconds,
        "wall_seconds": time.monotonic() - state.started,
        "batch_offset": state.batch_offset,
        "guard": state.guard.state(),
        "identity": state.identity,
        "rows": run.rows_sha256,
    }
    saver.save(state.step, state.model, state.optimizers, progress, hook_tensors(hooks))


def resume(
    state: TrainState, hooks: Sequence[Hook], run: RunFolder, prefix: SharedPrefix | None, say: Say, last: float = inf
) -> dict[str, Any] | None:
    """Restores the newest checkpoint of the run, of a step up to `last`, or else one of the run whose first steps it
    shares, and returns the checkpoint's state; None if there is none."""
    target = state.model, state.optimizers, say, state.world, hook_tensors(hooks)
    saved = checkpoint.load_newest(run.checkpoints, *target, last, state.required)
    if saved is None and prefix:
        saved = checkpoint.load_newest(prefix.folder.checkpoints, *target, prefix.last, state.required)
        if saved:
            prefix.copy_rows(run)
    if saved is None:
        return None
    state.step, state.seconds = saved["step"], saved["seconds"]
    state.started = time.monotonic() - saved["wall_seconds"]
    state.batch_offset = saved["batch_offset"]
    state.guard.restore(saved["guard"])
    return saved


def rewind(
    state: TrainState,
    anomaly: Anomaly,
    hooks: Sequence[Hook],
    run: RunFolder,
    prefix: SharedPrefix | None,
    saver: checkpoint.Saver,
    say: Say,
) -> None:
    """Goes back to the last checkpoint, and on with the data after the bad batch. Diverged if the anomaly must stop the
    run, or if the run was rewound too often."""
    if anomaly.action == "stop":
        raise Diverged(explain(state, anomaly))
    saver.wait()
    state.guard.record(anomaly)
    events, offset, started = state.guard.events, state.batch_offset, state.started
    saved = resume(state, hooks, run, prefix, say)
    if not saved:
        raise CheckpointError(f"{anomaly}, and there is no checkpoint to go back to")
    for optimizer in state.optimizers:
        optimizer.zero_grad(set_to_none=True)
    run.truncate(state.step, saved.get("rows"))
    state.guard.events, state.started = events, started
    state.batch_offset = offset + anomaly.step - state.step
    events[-1]["to"] = state.step
    say(f"{anomaly}: back to step {state.step}, and on with other data")


def explain(state: TrainState, anomaly: Anomaly) -> str:
    """The diagnosis of a bad step, the same on every rank: that of a rank whose rows of the batch overflow, if there is
    one."""
    on_validation = "validation" in anomaly.what
    ids, _ = state.validation.part[0] if on_validation else fetch_batch(state, anomaly.step)
    with state.parallel_model.precision():
        report = diagnose(state.model, ids.to(state.device), anomaly.step, anomaly.what)
    reports = state.world.gather(report)
    return next((text for text in reports if "first sub-layer to overflow" in text), reports[0])
