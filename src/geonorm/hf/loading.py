"""How models are read from folders, and what of a model came from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from ..elsewhere import allow_within
from ..norms import Scalars

LOADED = "_is_hf_initialized"
"""How transformers marks a tensor that came from a file."""


@contextmanager
def loaded_kept(module: nn.Module) -> Iterator[None]:
    """Parameters and buffers of the module, and of those inside it, that came from a file have their values again
    behind it."""
    held = (*module.parameters(), *module.buffers())
    loaded = [(tensor, tensor.detach().clone()) for tensor in held if getattr(tensor, LOADED, False)]
    yield
    with torch.no_grad():
        for tensor, value in loaded:
            tensor.copy_(value)


def share_weights(kind: Any, config: Any, ours: nn.Module, rename: Callable[[str], str]) -> Any:
    """A model of transformers with the very weights of ours, whose names it changes."""
    with torch.device("meta"):
        found = kind(config)
    weights = {rename(name): value for name, value in ours.state_dict(keep_vars=True).items()}
    frozen = [parameter for parameter in ours.parameters() if not parameter.requires_grad]
    found.load_state_dict(weights, strict=True, assign=True)
    found.tie_weights()
    for parameter in frozen:
        parameter.requires_grad_(False)
    return found.train(ours.training)


class ReadsFolders:
    """Mixed into model classes before PreTrainedModel: how a model is read from a folder."""

    @classmethod
    def from_pretrained(cls, *args: Any, **settings: Any) -> Any:
        """As transformers does it. A scheme from elsewhere that config.json names runs with trust_remote_code=True."""
        with allow_within(settings.get("trust_remote_code") is True):
            return super().from_pretrained(*args, **settings)  # type: ignore[misc]

    @staticmethod
    def _load_pretrained_model(model: Any, state_dict: Any, checkpoint_files: Any, *rest: Any, **settings: Any) -> Any:
        """Folders of older versions hold learned scalars without a dimension. transformers compares shapes before it
        asks a module, so such scalars have none either until they are read."""
        # with and without the prefix that a model with a head gives to the one inside it
        head = f"{model.base_model_prefix}."
        bare = {key.removeprefix(head) for key in without_dimension(state_dict, checkpoint_files)}
        older = [
            (module, name)
            for prefix, module in model.named_modules()
            if isinstance(module, Scalars)
            for name, own in module.named_parameters(recurse=False)
            if own.shape == (1,) and f"{prefix}.{name}".removeprefix(head) in bare
        ]
        reshape(older, ())
        try:
            return PreTrainedModel._load_pretrained_model(model, state_dict, checkpoint_files, *rest, **settings)
        finally:
            reshape(older, (1,))


def without_dimension(state_dict: Any, files: Any) -> set[str]:
    """Names of the numbers without a dimension that are to be read."""
    if state_dict is not None:
        return {key for key, value in state_dict.items() if value.dim() == 0}
    found = set()
    for file in files or []:
        if str(file).endswith(".safetensors"):
            with safe_open(file, "pt") as opened:
                found |= {key for key in opened.keys() if not opened.get_slice(key).get_shape()}  # noqa: SIM118
    return found


@torch.no_grad()
def reshape(scalars: Sequence[tuple[nn.Module, str]], shape: tuple[int, ...]) -> None:
    for module, name in scalars:
        old = module.get_parameter(name)
        new = nn.Parameter(old.detach().reshape(shape), old.requires_grad)
        new.__dict__.update(old.__dict__)  # what transformers marks as read
        module.register_parameter(name, new)
