"""Checkpoints: everything a run needs to go on as if nothing had happened, on any number of ranks.

    checkpoints/step-N/   weights, optimizer state, random states (storage.py says how) and state.json (progress)

Weights and optimizer state are saved under the names of the parameters, sharded as they stand on the ranks, and read
into whatever sharding the loading run has. DCP's `async_save` copies the state in memory, and writes in a thread of its
own while training goes on.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from ..errors import CheckpointError, cause, require
from .distributed.ranks import ALONE, World, raised_by_all_ranks
from .runs.identity import OtherRun, check_identity
from .storage import (
    Headers,
    Writer,
    clear,
    ignore_single_process,
    kind_of,
    read_headers,
    read_into,
    read_state,
    saved_steps,
    verify,
)

Optimizers = list[torch.optim.Optimizer]
Scalars = dict[str, dict[str, Any]]
Tensors = Mapping[str, Tensor]
NOTHING: Tensors = {}
"""The default of `more` (tensors beside weights, optimizer state and random states, by KIND.NAME) and of `identity`."""


class Saver:
    """Saves into one folder, one checkpoint at a time, beside the training. Keeps the newest `keep` checkpoints and
    that of step `protected`."""

    def __init__(self, folder: Path, keep: int, world: World = ALONE, protected: int | None = None) -> None:
        self.folder, self.keep, self.world, self.protected = folder, keep, world, protected
        if world.first:
            folder.mkdir(exist_ok=True)
        self.pending: Future[Any] | None = None

    def save(
        self, step: int, model: nn.Module, optimizers: Optimizers, progress: dict[str, Any], more: Tensors = NOTHING
    ) -> None:
        """Copies the state and returns; folder/step-N appears when all of it is on the disk. Waits for the save before
        this one. CheckpointError, on every rank, if that one failed: then what was saved earlier is as it was."""
        self.wait()
        world, (tensors, scalars) = self.world, tensors_to_save(model, optimizers, self.world)
        state = {**progress, "optimizer": scalars}
        self.writer = Writer(self.folder, step, world, state, self.keep, self.protected)
        ignore_single_process()
        self.pending = async_save(  # type: ignore[assignment]  # a future, because the writer copies at once
            {**tensors, **more},
            storage_writer=self.writer,
            process_group=world.saving,
            no_dist=world.size == 1,
        )

    def wait(self) -> None:
        """Returns when the last save is on the disk; CheckpointError if it failed."""
        pending, self.pending = self.pending, None
        try:
            if pending is not None:
                pending.result()
        except CheckpointException as failed:
            if self.world.first:
                clear(self.folder)
            steps = saved_steps(self.folder)
            earlier = f"step-{steps[-1]} is kept" if steps else "there is no earlier one"
            problem = cause(next(iter(failed.failures.values()))[0])
            raise raised_by_all_ranks(
                CheckpointError(f"cannot save checkpoint {self.writer.target}: {problem}; {earlier}")
            ) from failed

    @property
    def failed(self) -> bool:
        """True if the last save has ended badly: `wait` raises why."""
        return self.pending is not None and self.pending.done() and self.pending.exception() is not None

    def close(self) -> None:
        """Lets a save under way end; its failure is not raised."""
        wait([self.pending] if self.pending is not None else [])


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizers: Optimizers | None = None,
    world: World = ALONE,
    more: Tensors = NOTHING,
    identity: Mapping[str, Any] = NOTHING,
) -> dict[str, Any]:
    """Restores model, optimizers and random states in place from a checkpoint folder and returns its state.

    CheckpointError, on every rank, if a file is missing, its checksum differs, its tensors do not fit, or it was made
    from something else than `identity`; then nothing was changed. Without optimizers only the weights are read.
    """
    state = world.on_all_ranks(lambda: read_and_verify(path, world, optimizers is not None))
    check_identity(f"checkpoint {path}", state.get("identity", {}), identity)
    headers, weights = read_headers(path), named_weights(model)
    saved = {name for name in headers if kind_of(name) == "model"}
    for name in sorted(saved | weights.keys()):
        if name not in saved or name not in weights or headers[name].size != weights[name].shape:
            raise CheckpointError(f"checkpoint {path} is of another model: {without_kind(name)} does not fit")
    if optimizers is None:
        read_into(path, weights, world.size == 1)
        return state
    random = {name: tensor for name, tensor in {**random_states(world), **more}.items() if name in headers}
    moments = make_moments(headers, model)
    read_into(path, {**weights, **random, **moments}, world.size == 1)
    restore_optimizers(model, optimizers, moments, state["optimizer"])
    # every rank its own generators; a rank that the saved run did not have keeps its seed
    if (cpu := random.get(f"random.{world.rank}.cpu")) is not None:
        torch.set_rng_state(cpu)
    if (cuda := random.get(f"random.{world.rank}.cuda")) is not None:
        torch.cuda.set_rng_state(cuda)
    return state


def load_matching(
    path: Path, model: nn.Module, world: World = ALONE
) -> tuple[dict[str, Any], list[str], list[str], list[str]]:
    """Loads the weights that a model and a checkpoint have in common, by name. Returns the checkpoint's state, and
    three lists of names: loaded, missing from the checkpoint, left over in it. CheckpointError, on every rank, if they
    have no name in common or a weight has another shape; then nothing was changed."""
    state = world.on_all_ranks(lambda: read_and_verify(path, world, everything=False))
    weights = named_weights(model)
    saved = {name: about.size for name, about in read_headers(path).items() if kind_of(name) == "model"}
    loaded = [name for name in weights if name in saved]
    for name in loaded:
        if saved[name] != weights[name].shape:
            shapes = f"{list(saved[name])} there, {list(weights[name].shape)} here"
            raise CheckpointError(f"checkpoint {path} is of a model of another size: {without_kind(name)} is {shapes}")
    require(loaded, f"checkpoint {path} is of another model: it has no weight of this one", CheckpointError)
    read_into(path, {name: weights[name] for name in loaded}, world.size == 1)
    missing = [name for name in weights if name not in saved]
    left = sorted(saved.keys() - weights.keys())
    loaded, missing, left = (list(map(without_kind, names)) for names in (loaded, missing, left))
    return state, loaded, missing, left


def without_kind(name: str) -> str:
    """The name of a weight as a model has it, without the `model.` of a checkpoint."""
    return name.removeprefix("model.")


def load_newest(
    folder: Path,
    model: nn.Module,
    optimizers: Optimizers | None,
    warn: Callable[[str], None],
    world: World = ALONE,
    more: Tensors = NOTHING,
    last: float = inf,
    identity: Mapping[str, Any] = NOTHING,
) -> dict[str, Any] | None:
    """Restores the newest intact checkpoint of a step up to `last` and returns its state; each corrupt one is reported
    through `warn` and skipped. None if there is no checkpoint at all; CheckpointError if there are some and none can be
    used."""
    steps = world.broadcast([step for step in saved_steps(folder) if step <= last])
    for step in reversed(steps):
        try:
            return load_checkpoint(folder / f"step-{step}", model, optimizers, world, more, identity)
        except OtherRun:
            raise
        except CheckpointError as error:
            if step == steps[0]:
                raise raised_by_all_ranks(
                    CheckpointError(f"{error}; no usable checkpoint is left in {folder}: train anew with another --out")
                ) from error
            warn(f"{error}; falling back to the previous one")
    return None


def read_and_verify(path: Path, world: World, everything: bool) -> dict[str, Any]:
    """The state of a checkpoint, after this rank has verified its share of the files. everything: optimizer and random
    states too, not the weights alone."""
    state = read_state(path)
    sums = [pair for pair in sorted(state["sha256"].items()) if everything or kind_of(pair[0]) == "model"]
    verify(path, sums[world.rank :: world.size])
    return state


def tensors_to_save(model: nn.Module, optimizers: Optimizers, world: World) -> tuple[dict[str, Tensor], Scalars]:
    """Everything there is to save: tensors by name (they share memory with the model), and other values of the
    optimizers' state. The order of tensors decides which rank writes which; sorted by name it is the same after a
    resume."""
    tensors, scalars = named_weights(model) | random_states(world), Scalars()
    names = names_of(model)
    for optimizer in optimizers:
        for parameter, entry in optimizer.state.items():
            for field, value in entry.items():
                name = names[id(parameter)]
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{name}.{field}"] = value.detach()
                else:
                    scalars.setdefault(name, {})[field] = value
    return dict(sorted(tensors.items())), scalars


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers as model.NAME; a weight with several names (a tied one) is there under the first alone."""
    all_names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    other_names = all_names - {name for name, _ in model.named_parameters()}
    return {f"model.{name}": t.detach() for name, t in model.state_dict().items() if name not in other_names}


def random_states(world: World) -> dict[str, Tensor]:
    """The states of this rank's generators."""
    states = {f"random.{world.rank}.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states[f"random.{world.rank}.cuda"] = torch.cuda.get_rng_state()
    return states


def names_of(model: nn.Module) -> dict[int, str]:
    """First name of every parameter, by its id."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def make_moments(headers: Headers, model: nn.Module) -> dict[str, Tensor]:
    """Empty tensors to read a checkpoint's optimizer state into, sharded as the parameters that it belongs to."""
    parameters = dict(model.named_parameters())
    moments: dict[str, Tensor] = {}
    for key, about in headers.items():
        kind, name = key.split(".", 1)
        if kind != "optimizer":
            continue
        parameter = parameters.get(name.rpartition(".")[0])
        if parameter is None:
            raise CheckpointError(f"the checkpoint is of another model: it has optimizer state of {name}")
        dtype = about.properties.dtype
        if isinstance(parameter, DTensor) and about.size == parameter.shape:
            moments[key] = torch.zeros_like(parameter, dtype=dtype)
        else:
            moments[key] = torch.zeros(about.size, dtype=dtype, device=parameter.device)
    return moments


def restore_optimizers(model: nn.Module, optimizers: Optimizers, moments: dict[str, Tensor], scalars: Scalars) -> None:
    """Loads moments and other state into the optimizers; their hyperparameters stay those of the config."""
    names = names_of(model)
    entries = {name: dict(values) for name, values in scalars.items()}
    for key, tensor in moments.items():
        name, _, field = key.split(".", 1)[1].rpartition(".")
        entries.setdefault(name, {})[field] = tensor
    for optimizer in optimizers:
        ordered = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        state = {index: entries[name] for index, name in enumerate(ordered) if name in entries}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
