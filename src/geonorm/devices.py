"""Which device to compute on, and what it can hold."""

from __future__ import annotations

import os

import torch

from .errors import ConfigError


def pick_device(name: str) -> torch.device:
    """The device of a setting (auto, cpu, cuda, cuda:1); ConfigError if it is not there."""
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
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device {name!r} is asked for, but the last GPU here is cuda:{count - 1}")
    return device


def memory_of_machine() -> int:
    """Bytes of memory that this machine has; 0 where the system does not say."""
    if not hasattr(os, "sysconf"):
        return 0
    return max(0, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
