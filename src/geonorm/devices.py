"""Which device to compute on, and what it can hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def subnormals_as_zero(device: torch.device) -> Iterator[None]:
    """On a CPU that can, numbers below the smallest normal one count as 0 in this thread and those that it starts.

    Moments of parameters that hardly get a gradient decay into these, and arithmetic on them takes microcode of a
    hundred cycles: a run with dead units took twice the time (docs/performance.md). Adam adds 1e-8 to what it divides
    by, so that weights do not notice."""
    if device.type != "cpu":
        yield
        return
    tiny = torch.tensor(1e-40, dtype=torch.float32)
    as_before = bool(tiny * 1.0 == 0.0)
    torch.set_flush_denormal(True)  # False, and nothing changed, where the CPU has no such mode
    try:
        yield
    finally:
        torch.set_flush_denormal(as_before)
