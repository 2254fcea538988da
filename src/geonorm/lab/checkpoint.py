"""Checkpoints: everything a run needs to go on as if nothing had happened, on any number of ranks.

    checkpoints/step-N/   weights, optimizer state, random states (storage.py says how) and state.json (progress)

Weights and optimizer state are saved under the names of the parameters, sharded as they stand on the ranks, and read
into whatever sharding the loading run has. Saving copies the state in memory and goes on training; a second thread
writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor

from ..errors import CheckpointError, cause
from .distributed.ranks import ALONE, World, raised_by_all_ranks
from .storage import Reader, Writer, clear, ignore_single_process, kind_of, read_state, verify

Optimizers = list[torch.optim.Optimizer]
Scalars = dict[str, dict[str, Any]]
Tensors = Mapping[str, Tensor]
NOTHING: Tensors = {}
"""Tensors beside weights, optimizer state and random states that a run keeps, by KIND.NAME."""


class Saver:
    """Saves into one folder, one checkpoint at a time, from a thread of its own."""

    def __init__(self, folder: Path, keep: int, world: World = ALONE, trunk: int | None = None) -> None:
        self.folder, self.keep, self.world, self.trunk = folder, keep, world, trunk
        if world.first:
            folder.mkdir(exist_ok=True)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.pending: Future[None] | None = None

    def save(
        self, step: int, model: nn.Module, optimizers: Optimizers, progress: dict[str, Any], more: Tensors = NOTHING
    ) -> None:
        """Copies the state and returns; folder/step-N appears when all of it is on the disk. Waits for the save before
        this one. CheckpointError, on every rank, if that one failed: then what was saved earlier is as it was."""
        self.wait()
        tensors, scalars = tensors_to_save(model, optimizers, self.world)
        staged = {name: tensor.to("cpu", copy=True) for name, tensor in {**tensors, **more}.items()}
        ignore_single_process()
        self.pending = self.thread.submit(self.write, step, staged, {**progress, "optimizer": scalars})

    def wait(self) -> None:
        """Returns when the last save is on the disk; CheckpointError if it failed."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    @property
    def failed(self) -> bool:
        """Whether the last save has ended badly: `wait` says why."""
        return self.pending is not None and self.pending.done() and self.pending.exception() is not None

    def close(self) -> None:
        """Lets a save under way end; its failure is not raised."""
        self.thread.shutdown(wait=True)

    def write(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Runs in the thread, on every rank."""
        world = self.world
        writer = Writer(self.folder, step, world.rank, world.size, state)
        try:
            dcp_save(tensors, storage_writer=writer, process_group=world.saving, no_dist=world.size == 1)
        except CheckpointException as failed:
            if world.first:
                clear(self.folder)
            kept = saved_steps(self.folder)
            last = f"step-{kept[-1]} is kept" if kept else "there is no earlier one"
            problem = cause(next(iter(failed.failures.values()))[0])
            raise raised_by_all_ranks(
                CheckpointError(f"cannot save checkpoint {writer.target}: {problem}; {last}")
            ) from failed
        if world.first:
            self.prune(step)

    def prune(self, newest: int) -> None:
        """Removes all but the newest `keep` and that of step `trunk`. Those later than `newest` were passed over as
        corrupt, or belong to steps that were rewound."""
        found = saved_steps(self.folder)
        current = [step for step in found if step <= newest]
        kept = set(current[-self.keep :])
        kept |= {step for step in current if step == self.trunk}
        for old in set(found) - kept:
            shutil.rmtree(self.folder / f"step-{old}", ignore_errors=True)


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizers: Optimizers | None = None,
    world: World = ALONE,
    more: Tensors = NOTHING,
) -> dict[str, Any]:
    """Restores model, optimizers and random states in place from a checkpoint folder and returns its state.

    CheckpointError, on every rank, if a file is missing, its checksum differs, or its tensors do not fit; then nothing
    was changed. Without optimizers only the weights are read.
    """
    state = world.on_all_ranks(lambda: read_and_verify(path, world, optimizers is not None))
    files = [name for name in sorted(state["sha256"]) if optimizers is not None or kind_of(name) == "model"]
    reader = Reader(path, files)
    found = reader.tensors()
    own, _ = tensors_to_save(model, [], world)
    own.update(more)
    sizes = {name: about.size for name, about in found.items() if name.startswith("model.")}
    wanted = {name: tensor for name, tensor in own.items() if name.startswith("model.")}
    for name in sorted({*sizes, *wanted} - {f"model.{name}" for name in aliases(model)}):
        if name not in sizes or name not in wanted or sizes[name] != wanted[name].shape:
            raise CheckpointError(f"checkpoint {path} is of another model: {name[6:]} does not fit")
    if optimizers is None:
        reader.fill(wanted, world.size == 1)
        return state
    targets = wanted | {name: tensor for name, tensor in own.items() if name in found}
    moments = make_moments(found, model)
    reader.fill({**targets, **moments}, world.size == 1)
    restore_optimizers(model, optimizers, moments, state["optimizer"])
    # every rank its own generators; a rank that the saved run did not have keeps its seed
    if (cpu := targets.get(f"random.{world.rank}.cpu")) is not None:
        torch.set_rng_state(cpu)
    if (cuda := targets.get(f"random.{world.rank}.cuda")) is not None:
        torch.cuda.set_rng_state(cuda)
    return state


def load_matching(
    path: Path, model: nn.Module, world: World = ALONE
) -> tuple[dict[str, Any], list[str], list[str], list[str]]:
    """Gives a model those weights of a checkpoint that it has by name. Returns the checkpoint's state and the names
    that were loaded, that the checkpoint lacks, and that it has besides. CheckpointError, on every rank, if no name is
    there or one has another shape; then nothing was changed."""
    state = world.on_all_ranks(lambda: read_and_verify(path, world, everything=False))
    files = [name for name in sorted(state["sha256"]) if kind_of(name) == "model"]
    reader = Reader(path, files)
    saved = {name.partition(".")[2]: about.size for name, about in reader.tensors().items()}
    weights = {name.partition(".")[2]: tensor for name, tensor in tensors_to_save(model, [], world)[0].items()
               if name.startswith("model.")}  # fmt: skip
    loaded = [name for name in weights if name in saved]
    for name in loaded:
        if saved[name] != weights[name].shape:
            shapes = f"{list(saved[name])} there, {list(weights[name].shape)} here"
            raise CheckpointError(f"checkpoint {path} is of a model of another size: {name} is {shapes}")
    if not loaded:
        raise CheckpointError(f"checkpoint {path} is of another model: it has no weight of this one")
    reader.fill({f"model.{name}": weights[name] for name in loaded}, world.size == 1)
    return state, loaded, [name for name in weights if name not in saved], sorted(saved.keys() - weights.keys())


def load_newest(
    folder: Path,
    model: nn.Module,
    optimizers: Optimizers | None,
    warn: Callable[[str], None],
    world: World = ALONE,
    more: Tensors = NOTHING,
    last: float = inf,
) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, of steps up to `last`; each corrupt one is reported through `warn` and
    passed over. None if there is no checkpoint at all; CheckpointError if there are some and none can be used."""
    found = world.share([step for step in saved_steps(folder) if step <= last])
    for step in reversed(found):
        try:
            return load_checkpoint(folder / f"step-{step}", model, optimizers, world, more)
        except CheckpointError as error:
            if step == found[0]:
                raise raised_by_all_ranks(
                    CheckpointError(f"{error}; no usable checkpoint is left in {folder}: train anew with another --out")
                ) from error
            warn(f"{error}; falling back to the previous one")
    return None


def saved_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, ascending."""
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir() if entry.is_dir())
    return sorted(int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdigit())


def read_and_verify(path: Path, world: World, everything: bool) -> dict[str, Any]:
    """The state of a checkpoint whose files this rank has checked, its share of them."""
    state = read_state(path)
    sums = [pair for pair in sorted(state["sha256"].items()) if everything or kind_of(pair[0]) == "model"]
    verify(path, sums[world.rank :: world.size])
    return state


def tensors_to_save(model: nn.Module, optimizers: Optimizers, world: World) -> tuple[dict[str, Tensor], Scalars]:
    """Everything there is to save: tensors by name (they share memory with the model), and what is no tensor."""
    skip = aliases(model)
    tensors = {f"model.{name}": t.detach() for name, t in model.state_dict().items() if name not in skip}
    names = names_of(model)
    scalars: Scalars = {}
    for optimizer in optimizers:
        for parameter, entry in optimizer.state.items():
            for field, value in entry.items():
                name = names[id(parameter)]
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{name}.{field}"] = value.detach()
                else:
                    scalars.setdefault(name, {})[field] = value
    tensors[f"random.{world.rank}.cpu"] = torch.get_rng_state()
    if torch.cuda.is_initialized():
        tensors[f"random.{world.rank}.cuda"] = torch.cuda.get_rng_state()
    return tensors, scalars


def names_of(model: nn.Module) -> dict[int, str]:
    """First name of every parameter, by its id."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def aliases(model: nn.Module) -> set[str]:
    """Second and further names of parameters that have several (tied weights)."""
    every = (name for name, _ in model.named_parameters(remove_duplicate=False))
    return set(every) - {name for name, _ in model.named_parameters()}


def make_moments(found: dict[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Room for the optimizer state that a checkpoint holds, sharded as the parameters it belongs to."""
    parameters = dict(model.named_parameters())
    blank: dict[str, Tensor] = {}
    for key, about in found.items():
        kind, name = key.split(".", 1)
        if kind != "optimizer":
            continue
        parameter = parameters.get(name.rpartition(".")[0])
        if parameter is None:
            raise CheckpointError(f"the checkpoint is of another model: it has optimizer state of {name}")
        dtype = about.properties.dtype
        if isinstance(parameter, DTensor) and about.size == parameter.shape:
            blank[key] = torch.zeros_like(parameter, dtype=dtype)
        else:
            blank[key] = torch.zeros(about.size, dtype=dtype, device=parameter.device)
    return blank


def restore_optimizers(model: nn.Module, optimizers: Optimizers, moments: dict[str, Tensor], scalars: Scalars) -> None:
    """Hyperparameters come from the config, so that only the state is taken over."""
    names = names_of(model)
    entries = {name: dict(values) for name, values in scalars.items()}
    for key, tensor in moments.items():
        name, _, field = key.split(".", 1)[1].rpartition(".")
        entries.setdefault(name, {})[field] = tensor
    for optimizer in optimizers:
        ordered = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        state = {index: entries[name] for index, name in enumerate(ordered) if name in entries}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
