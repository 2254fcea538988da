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
    """Parameters of the module, and of those inside it, that came from a file have their values again behind it."""
    loaded = [(p, p.detach().clone()) for p in module.parameters() if getattr(p, LOADED, False)]
    yield
    with torch.no_grad():
        for parameter, value in loaded:
            parameter.copy_(value)
