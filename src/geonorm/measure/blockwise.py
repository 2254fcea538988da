"""A model larger than memory: its weights stay in the safetensors files, and one block's are loaded while it runs.

What is not in a block (embeddings, norms at the ends) is loaded once; a head that the probe does not run, never.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..errors import ConfigError
from .anatomy import Stack, anatomy, join_path, root_stacks
from .load import load_config, model_class, no_model, one_line


class Shards:
    """Tensors of a directory of safetensors files by the name a model gives them."""

    def __init__(self, folder: Path, prefix: str) -> None:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            names: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self.files = {name: folder / file for name, file in names.items()}
        elif (folder / "model.safetensors").is_file():
            file = folder / "model.safetensors"
            with safe_open(file, framework="pt") as stored:
                self.files = dict.fromkeys(stored.keys(), file)
        else:
            raise ConfigError(f"{folder} has no model.safetensors: block by block needs safetensors weights on disk")
        self.prefix = f"{prefix}."

    def stored(self, name: str) -> str | None:
        """The name in the files: as it is, or with or without the base model's prefix."""
        for form in (name, name.removeprefix(self.prefix), self.prefix + name):
            if form in self.files:
                return form
        return None

    def read(self, names: Mapping[str, str], device: torch.device) -> dict[str, Tensor]:
        """Tensors by the keys of `names`, whose values are names in the files. Each file is opened once."""
        found: dict[str, Tensor] = {}
        for file in sorted({self.files[stored] for stored in names.values()}):
            with safe_open(file, framework="pt", device=str(device)) as tensors:
                for name, stored in names.items():
                    if self.files[stored] == file:
                        found[name] = tensors.get_tensor(stored)
        return found


def without_storage(_: nn.Module, __: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    """In the place of a parameter that a module registers; buffers, which no file holds, stay real."""
    if parameter is None or parameter.is_meta:
        return None
    return nn.Parameter(parameter.detach().to("meta"), requires_grad=False)


def load_one_block(
    name: str, device: torch.device, stacks: tuple[Stack, ...] | None = None, dtype: str = "auto"
) -> nn.Module:
    """A model whose blocks have weights only while they run. name: a local directory.

    ConfigError for a directory without safetensors, and where the files call the weights otherwise than today's
    transformers (ViT, older checkpoints): its own loader translates, this one does not. For one under a scheme, too.
    """
    config = load_config(name)
    if str(config.model_type).startswith("geonorm"):
        raise ConfigError(f"{name} holds a model under a scheme, which cannot be read block by block: load it whole")
    stacks = stacks or anatomy(config)
    with one_line(name, no_model(name, False)):
        return build_one_block(config, Path(name), device, stacks, dtype)


def build_one_block(
    config: Any, folder: Path, device: torch.device, stacks: tuple[Stack, ...], dtype: str
) -> nn.Module:
    kind = model_class(config)
    stored = dtype if dtype != "auto" else getattr(config, "dtype", None) or "float32"
    wanted = getattr(torch, stored) if isinstance(stored, str) else stored
    with register_module_parameter_registration_hook(without_storage):  # type: ignore[arg-type]  # may return one
        make = getattr(kind, "_from_config", None) or kind.from_config  # the second of an Auto class
        model: Any = make(config, dtype=wanted).eval()
    keep_in_fp32(model, wanted)
    # torch gives buffers the default dtype of _from_config where a checkpoint would keep them in fp32
    shards = Shards(folder, getattr(model, "base_model_prefix", ""))
    owners: dict[str, nn.Module] = {}
    for stack, base in root_stacks(model, stacks):
        path = join_path(base, stack.blocks)
        owners |= {join_path(path, n): block for n, block in model.get_submodule(path).named_children()}
    if not owners:
        raise ConfigError(f"no residual site found in {type(model).__name__}")
    resident, head = {}, {id(p) for p in model.parameters()}
    body = getattr(model, "base_model", model)
    head -= {id(p) for p in body.parameters()}
    for key, parameter in model.named_parameters():
        if any(key.startswith(f"{path}.") for path in owners) or id(parameter) in head:
            continue
        resident[key] = stored_name(shards, key, model)
    fill(model, shards.read(resident, device))
    for path, block in owners.items():
        names = {key: stored_name(shards, join_path(path, key), model) for key, _ in block.named_parameters()}
        attach(block, names, shards, device)
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = buffer.to(device)
    return model


def keep_in_fp32(model: nn.Module, dtype: torch.dtype) -> None:
    """Gives parameters the dtype that transformers' own loader keeps them in: T5's `wo` is fp32 beside fp16."""
    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ()) if dtype == torch.float16 else set[str]()
    if dtype in (torch.float16, torch.bfloat16):
        kept |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for key, parameter in model.named_parameters():
        if any(fnmatchcase(key, f"*{name}*") for name in kept):
            parameter.data = parameter.data.float()


def stored_name(shards: Shards, key: str, model: nn.Module) -> str:
    """The stored name of a parameter; tied ones are stored once."""
    found = shards.stored(key)
    if found is None:
        parameter = model.get_parameter(key)
        twins = [name for name, p in model.named_parameters(remove_duplicate=False) if p is parameter]
        found = next((stored for name in twins if (stored := shards.stored(name))), None)
    if found is None:
        raise ConfigError(f"the safetensors files have no {key}, as transformers calls it today: load it whole")
    return found


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts tensors, in the dtype that each parameter is to have, in the place of parameters."""
    for key, tensor in tensors.items():
        path, _, name = key.rpartition(".")
        owner = module.get_submodule(path)
        old = owner.get_parameter(name)
        value = nn.Parameter(tensor.to(old.dtype), requires_grad=False)
        owner._parameters[name] = value
        for other in module.modules():  # tied weights
            for place, parameter in other._parameters.items():
                if parameter is old:
                    other._parameters[place] = value


def attach(block: nn.Module, names: Mapping[str, str], shards: Shards, device: torch.device) -> None:
    """Loads the weights of a block before it runs, and lets go of them after."""

    def load(_: nn.Module, __: Any, ___: Any) -> None:
        fill(block, shards.read(names, device))

    def free(_: nn.Module, __: Any, ___: Any) -> None:
        for module in block.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[key] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    block.register_forward_pre_hook(load, with_kwargs=True)
    block.register_forward_hook(free)
