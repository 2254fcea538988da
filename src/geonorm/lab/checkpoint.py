"""Checkpoints of one process: safetensors and JSON with checksums, written aside and renamed, verified on load.

    checkpoints/step-N/   model.safetensors  optimizer.safetensors  state.json (progress, sha256 of both files)

No pickle is read or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import CheckpointError

Optimizers = list[torch.optim.Optimizer]
FILES = ("model.safetensors", "optimizer.safetensors")


def save(folder: Path, step: int, model: nn.Module, optimizers: Optimizers, state: dict[str, Any], keep: int) -> Path:
    """Writes folder/step-N and removes all but the newest `keep`. On any failure the older ones stay as they were and
    CheckpointError says so in one line. Half-written folders of a process that was killed are removed first."""
    target = folder / f"step-{step}"
    aside = folder / f".step-{step}.{os.getpid()}"
    for left in folder.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        save_file(tensors_of(model), aside / FILES[0])
        flat, layout = flatten_optimizers(optimizers)
        save_file(flat, aside / FILES[1])
        sums = {name: checksum(aside / name) for name in FILES}
        with open(aside / "state.json", "w", encoding="utf-8") as file:
            json.dump({**state, "step": step, "optimizer": layout, "sha256": sums}, file)
        for path in aside.iterdir():
            sync(path)
        if target.exists():
            shutil.rmtree(target)
        os.replace(aside, target)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        kept = steps(folder)
        last = f"step-{kept[-1]} is kept" if kept else "there is no earlier one"
        raise CheckpointError(f"cannot save checkpoint {target}: {reason(error)}; {last}") from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    kept = [other for other in steps(folder) if other <= step][-keep:]  # later ones were passed over as corrupt
    for old in set(steps(folder)) - set(kept):
        shutil.rmtree(folder / f"step-{old}", ignore_errors=True)
    return target


def load(path: Path, model: nn.Module, optimizers: Optimizers | None = None) -> dict[str, Any]:
    """Restores model (and optimizers) in place from a checkpoint folder and returns its state.

    CheckpointError if a file is missing, its checksum differs, or its tensors do not fit; then nothing was changed in
    the model.
    """
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if path.name != f"step-{state['step']}":
            raise CheckpointError(f"checkpoint {path} is corrupt: it says step {state['step']}")
        for name in FILES:
            if checksum(path / name) != state["sha256"][name]:
                raise CheckpointError(f"checkpoint {path} is corrupt: the checksum of {name} differs")
        weights = load_file(path / FILES[0])
        moments = load_file(path / FILES[1]) if optimizers is not None else {}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"checkpoint {path} is not readable: {reason(error)}") from error
    own = model.state_dict()
    for name in sorted({*own, *weights} - aliases(model)):
        if name not in weights or name not in own or own[name].shape != weights[name].shape:
            raise CheckpointError(f"checkpoint {path} is of another model: {name} does not fit")
    model.load_state_dict(weights, strict=False)
    if optimizers is not None:
        restore_optimizers(optimizers, moments, state["optimizer"])
    return state


def load_newest(
    folder: Path, model: nn.Module, optimizers: Optimizers | None, warn: Callable[[str], None]
) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; each corrupt one is reported through `warn` and passed over. None if there
    is no checkpoint at all; CheckpointError if there are some and none can be used."""
    failed = None
    for step in reversed(steps(folder)):
        try:
            return load(folder / f"step-{step}", model, optimizers)
        except CheckpointError as error:
            warn(f"{error}; falling back to the previous one")
            failed = error
    if failed is not None:
        raise CheckpointError(f"no usable checkpoint in {folder}; choose another --out to start anew") from failed
    return None


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, ascending."""
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir() if entry.is_dir())
    return sorted(int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdigit())


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """State of the model without second names for the same tensor (tied weights)."""
    skip = aliases(model)
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in skip}


def aliases(model: nn.Module) -> set[str]:
    """Second and further names of parameters that have several (tied weights)."""
    seen: dict[int, str] = {}
    again = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if seen.setdefault(id(parameter), name) != name:
            again.add(name)
    return again


def flatten_optimizers(optimizers: Optimizers) -> tuple[dict[str, Tensor], list[Any]]:
    """Optimizer states as named tensors, and what is no tensor as plain JSON. Hyperparameters come from the config."""
    flat: dict[str, Tensor] = {}
    layout = []
    for index, optimizer in enumerate(optimizers):
        scalars: dict[str, dict[str, Any]] = {}
        for key, entry in optimizer.state_dict()["state"].items():
            scalars[str(key)] = {}
            for name, value in entry.items():
                if isinstance(value, Tensor):
                    flat[f"{index}.{key}.{name}"] = value.contiguous()
                else:
                    scalars[str(key)][name] = value
        layout.append(scalars)
    return flat, layout


def restore_optimizers(optimizers: Optimizers, flat: dict[str, Tensor], layout: list[Any]) -> None:
    for index, (optimizer, scalars) in enumerate(zip(optimizers, layout, strict=True)):
        state: dict[int, dict[str, Any]] = {int(key): dict(values) for key, values in scalars.items()}
        for name, tensor in flat.items():
            owner, key, field = name.split(".", 2)
            if int(owner) == index:
                state.setdefault(int(key), {})[field] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reason(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
