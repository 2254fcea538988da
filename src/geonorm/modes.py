"""Whether a model trains or is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation within; behind it, also after an error, every module in training or not as it was. One that came in
    meanwhile is as the module whose name it has, or as the model."""
    before = {name: module.training for name, module in model.named_modules()}
    model.eval()
    try:
        yield
    finally:
        for name, module in model.named_modules():
            module.training = before.get(name, before[""])
