"""How models are read from folders, and what of a model came from a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..elsewhere import allow_within

LOADED = "_is_hf_initialized"
"""How transformers marks a tensor that came from a file."""


@contextmanager
def loaded_kept(module: nn.Module) -> Iterator[None]:
    """Parameters and buffers of the module, and of those inside it, that came from a file have their values again
    after it."""
    held = (*module.parameters(), *module.buffers())
    loaded = [(tensor, tensor.detach().clone()) for tensor in held if getattr(tensor, LOADED, False)]
    yield
    with torch.no_grad():
        for tensor, value in loaded:
            tensor.copy_(value)


class ReadsFolders:
    """Mixed into model classes before PreTrainedModel: how a model is read from a folder."""

    @classmethod
    def from_pretrained(cls, *args: Any, **settings: Any) -> Any:
        """As transformers does it. A scheme from elsewhere that config.json names runs with trust_remote_code=True."""
        with allow_within(settings.get("trust_remote_code") is True):
            return super().from_pretrained(*args, **settings)  # type: ignore[misc]
