"""What a simulation holds: whether the machine has room for it, what is kept of every particle, and its file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..devices import memory_of_machine
from ..errors import CheckpointError, ConfigError
from ..schemes import Scheme
from .config import SimulateConfig
from .flow import Flow

Trajectories = dict[str, dict[str, Tensor]]
"""By scheme: `time` (times,) in fp64, and of what is kept (seeds, times, n, dim) each, of a stream that is several
(seeds, times, n, streams, dim), on the CPU in the precision of the simulation. NaN where the tokens of a seed had come
together before, and its simulation had ended."""
FILE = "trajectories.safetensors"
MOST_BYTES = 8 * 2**30


def count_bytes(config: SimulateConfig, schemes: Sequence[Scheme]) -> int:
    """Memory that what is kept takes at most."""
    keep = config.keep
    of_one = config.seeds * config.points * config.tokens * config.dim * getattr(torch, config.dtype).itemsize
    return sum(of_one * (scheme.streams if kind == "stream" else 1) for scheme in schemes for kind in keep)


def check_room(config: SimulateConfig, schemes: Sequence[Scheme]) -> None:
    """ConfigError where what is to be kept is absurdly large."""
    wanted = count_bytes(config, schemes)
    if wanted > MOST_BYTES:
        raise ConfigError(
            f"--keep {' '.join(config.keep)} would hold {wanted / 2**30:.3g} GiB, and {MOST_BYTES // 2**30} GiB "
            "are the most: keep less, or take fewer points, tokens, seeds or schemes"
        )


def count_state(config: SimulateConfig, schemes: Sequence[Scheme]) -> int:
    """Bytes that particles take at least: the starts of all seeds, and of those that move together the state, the next
    one and the velocities of a step."""
    of_seed = config.tokens * config.dim * getattr(torch, config.dtype).itemsize
    together = config.seeds if config.weights == "identity" else 1
    held = 2 + {"adaptive": 7, "rk4": 4}.get(config.method, 1)
    return of_seed * (config.seeds + together * held * max(scheme.streams for scheme in schemes))


def check_memory(config: SimulateConfig, schemes: Sequence[Scheme]) -> None:
    """ConfigError for particles that this machine cannot hold on the CPU: it would be busy for hours without a word."""
    least, there = count_state(config, schemes), memory_of_machine()
    if least > there > 0:
        raise ConfigError(
            f"{config.tokens:,} tokens take more than {least / 2**30:,.0f} GiB, and this machine has "
            f"{there / 2**30:,.0f}: choose fewer --tokens or --seeds, or less --dim"
        )


def look(flow: Flow, x: Tensor, tau: float, keep: Sequence[str]) -> dict[str, Tensor]:
    """What is kept of a state, (seeds, n, ..., dim)."""
    seen = {"tokens": flow.tokens, "stream": lambda x: x, "update": lambda x: flow.update(x, tau)}
    return {kind: seen[kind](x).cpu().clone() for kind in keep}


def join(times: Sequence[float], batches: Sequence[Sequence[Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Looks of each batch of seeds, time by time, as one table."""
    longest = max(map(len, batches))
    found = {"time": torch.tensor(times[:longest], dtype=torch.float64)}
    for kind in batches[0][0]:
        whole = []
        for looks in batches:
            course = torch.stack([each[kind] for each in looks], dim=1)
            missing = course.new_full((len(course), longest - len(looks), *course.shape[2:]), torch.nan)
            whole.append(torch.cat((course, missing), dim=1))
        found[kind] = torch.cat(whole)
    return found


def save_trajectories(folder: Path, found: Mapping[str, Mapping[str, Tensor]]) -> Path:
    """Writes the file of a simulation's folder, whole or not at all: tensors named SCHEME/WHAT."""
    from safetensors.torch import save_file

    aside = folder / f".{FILE}.{os.getpid()}"
    try:
        named = {f"{scheme}/{kind}": values for scheme, kinds in found.items() for kind, values in kinds.items()}
        save_file({name: values.contiguous() for name, values in named.items()}, aside)
        os.replace(aside, folder / FILE)
    finally:
        aside.unlink(missing_ok=True)
    return folder / FILE


def load_trajectories(folder: str | Path) -> Trajectories:
    """What a simulation in this folder has kept, empty if nothing. Raises CheckpointError for a file that is cut."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = Path(folder) / FILE
    found: Trajectories = {}
    if file.exists():
        try:
            loaded = load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}; simulate again with another --out") from None
        for name, values in loaded.items():
            scheme, _, kind = name.rpartition("/")
            found.setdefault(scheme, {})[kind] = values
    return found
