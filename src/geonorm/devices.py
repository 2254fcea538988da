"""Which device to compute on, and what it can hold."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from .errors import ConfigError, unknown


def pick_device(name: str) -> torch.device:
    """The device of a setting (auto, cpu, cuda, cuda:1); ConfigError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"unknown device {name!r}; use auto, cpu or cuda")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} is asked for, but PyTorch sees no GPU here; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device {name!r} is asked for, but the last GPU here is cuda:{count - 1}")
    return device


class Machine(NamedTuple):
    """The device of one rank, as plans see it."""

    bf16: float
    """Peak of dense matrix products in bfloat16, 10^12 operations per second; 0 if unknown."""
    fp32: float
    """The same in fp32, without TF32."""
    memory: float
    """GiB that tensors may take: of a GPU nine tenths, the rest is for CUDA, NCCL and fragmentation."""


MACHINES = {
    "h100": Machine(989, 67, 72), "h200": Machine(989, 67, 126), "b200": Machine(2250, 75, 162),
    "a100": Machine(312, 19.5, 72), "a100-40": Machine(312, 19.5, 36), "l40s": Machine(362, 91, 43),
    "rtx4090": Machine(165, 82, 21), "rtx3090": Machine(71, 35, 21),
}  # fmt: skip
"""By their makers' data sheets."""


SLOWER = r"h[12]00.*(pcie|nvl)|gb200|laptop|4090d|mig"
"""Names of GPUs that are not as fast as what stands in them; mig: a part of one."""


def peak_flops(device: torch.device, dtype: str | None) -> float:
    """Operations per second of a GPU at its peak in a dtype of matrix products, bf16 or fp32; 0 where it is not known,
    as of a CPU."""
    machine = machine_here(device) if device.type == "cuda" else Machine(0, 0, 0)
    return 1e12 * (machine.bf16 if dtype == "bf16" else machine.fp32)


def machine_here(device: torch.device, ranks: int = 1, threads: int = 1) -> Machine:
    """The machine of a rank that computes on a device, of so many ranks on this machine."""
    if device.type == "cpu":
        # a core makes two multiply-adds of eight numbers, at 2.8 GHz
        return Machine(0.09 * threads, 0.09 * threads, 0.8 * memory_of_machine() / ranks / 2**30)
    about = torch.cuda.get_device_properties(device)
    name = about.name.lower().replace(" ", "")
    alike = [machine for key, machine in MACHINES.items() if key in name and not re.search(SLOWER, name)]
    return (alike or [Machine(0, 0, 0)])[0]._replace(memory=0.9 * about.total_memory / 2**30)


def machine_named(name: str, threads: int = 1) -> Machine:
    """The machine of a device setting, of MACHINES, or of `TFLOPS/GIB`; without a GPU auto and cuda are an h100.
    ConfigError for any other."""
    if match := re.fullmatch(r"(\d{1,6}(?:\.\d+)?)/(\d{1,6}(?:\.\d+)?)", name):
        return Machine(float(match[1]), float(match[1]), float(match[2]))
    if name in MACHINES or (name in ("auto", "cuda") and not torch.cuda.is_available()):
        return MACHINES.get(name, MACHINES["h100"])
    if not name.startswith(("auto", "cpu", "cuda")):
        raise ConfigError(unknown("device", name, ["auto", "cpu", "cuda", "TFLOPS/GIB", *MACHINES]))
    return machine_here(pick_device(name), threads=threads)


def memory_of_machine() -> int:
    """Bytes of memory that this machine has; 0 where the system does not know."""
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
    as_before = bool(torch.tensor(1e-40, dtype=torch.float32) * 1.0 == 0.0)
    torch.set_flush_denormal(True)  # False, and nothing changed, where the CPU has no such mode
    try:
        yield
    finally:
        torch.set_flush_denormal(as_before)
