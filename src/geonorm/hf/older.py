"""Folders of older versions hold learned scalars without a dimension. transformers compares shapes before it asks a
module, so such scalars have none either until they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from ..norms import Scalars


class ReadsOlder:
    """Mixed into model classes before PreTrainedModel."""

    @staticmethod
    def _load_pretrained_model(model: Any, state_dict: Any, checkpoint_files: Any, *rest: Any, **settings: Any) -> Any:
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
