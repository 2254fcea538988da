"""What transformers has read from a file, and what it has not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

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
