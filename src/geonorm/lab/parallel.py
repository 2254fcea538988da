"""Puts a model where it runs: device, precision, compilation, recomputation. One process; torchrun belongs here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..errors import ConfigError
from ..nn.decoder import Decoder
from .config import Runtime


def pick_device(name: str) -> torch.device:
    """The device of `runtime.device`; ConfigError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device {name!r}; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} is asked for, but PyTorch sees no GPU here; use auto or cpu")
    return device


def prepare(model: Decoder, runtime: Runtime, device: torch.device) -> Decoder:
    """Moves the model and wraps its blocks and its loss in place; parameter names do not change."""
    model.to(device)
    for block in model.blocks:
        if runtime.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if runtime.compile:
            block.compile()
    if runtime.compile:
        model.cross_entropy = torch.compile(Decoder.cross_entropy)  # type: ignore[method-assign]
    return model


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of this process's memory on the device; a GPU fetches it without this process waiting for the GPU's
    earlier work."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def precision(runtime: Runtime, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 if asked; weights, norms and the residual stream stay fp32."""
    if runtime.dtype == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
