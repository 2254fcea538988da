"""Pictures of a simulation: tokens on a sphere that can be drawn, at a few times and in frames through all of depth."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log1p
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..schemes import Scheme
from .config import SimulateConfig
from .flow import Flow
from .integrators import integrate
from .observables import gap
from .starts import STARTS
from .sublayers import build_sublayers

SNAPSHOTS = (0.0, 1.0, 3.0, 10.0, 30.0)
"""Times of the states that choose the axes of the pictures, as far as the simulation lasts."""
FRAMES = 24
"""Times of those that a slider goes through, even in log(1 + time)."""
DRAWN = 80
"""Most particles of a picture."""
MERGED = 1e-9
"""1 - cos at which nothing is left to see."""
SCALE = 32767


def alike(config: SimulateConfig) -> bool:
    """Whether every dimension acts as any other, so that d = 3 shows what happens: random weights, an activation of
    each coordinate and positions do not."""
    return config.weights == "identity" and config.heads == 1 and config.mlp is None and config.rope is None


@dataclass
class Album:
    """Directions (n, dim) of the tokens to be seen, in the order of depth, of the first seed of a simulation."""

    config: SimulateConfig
    frames: list[tuple[float, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times = self.config.times(FRAMES, log=True)

    def see(self, tau: float, theta: Tensor, measured: Sequence[float]) -> None:
        """Takes the nearest measurement to each time of a frame, where the simulation itself is shown."""
        wanted = {min(measured, key=lambda t: abs(log1p(t) - log1p(time))) for time in self.times}
        if tau in wanted:
            self.frames.append((tau, theta[:DRAWN].double().cpu()))


def take_pictures(
    config: SimulateConfig, scheme: Scheme, start: Tensor, album: Album, particles: dict[str, Any]
) -> None:
    """Adds a scheme to `particles`. Where all dimensions act alike, uniform tokens in d = 3 show what happens; else the
    first seed is seen in the three dimensions in which it varies. The axes are those of the first scheme for all of
    them: one direction is one place in every picture."""
    times = [t for t in SNAPSHOTS if t <= config.time]
    x = start[:1]
    run = {"tokens": config.tokens, "dim": config.dim, "init": config.init, "seeds": 1, "time": times[-1]}
    apart = alike(config) and config.dim > 3  # tokens of their own are shown, not those of the simulation
    if apart:
        x = STARTS["uniform"](DRAWN, 3, seeds=(0,), dtype=start.dtype).to(start.device)
        run |= {"tokens": DRAWN, "dim": 3, "init": "uniform"}
    flow = Flow(scheme, build_sublayers(config, scheme, 0), depth=config.layers)

    def walk(times: Sequence[float], even: bool = False) -> Iterator[tuple[float, Tensor]]:
        begun = flow.start(x)
        for tau, state in integrate(
            flow, begun, times, method=config.method, step=config.step, tolerance=1e-4, log_time=even
        ):
            yield tau, flow.tokens(state)[0].double().cpu()

    taken = list(walk(times))
    if "axes" not in particles:
        found = torch.linalg.svd(torch.cat([theta for _, theta in taken]), full_matrices=False)[2][:3]
        found = found * torch.where((taken[-1][1] @ found.T).sum(0) < 0, -1.0, 1.0).unsqueeze(-1)
        particles.update(run=run, axes_of=str(scheme), axes=found.tolist())
    axes = torch.tensor(particles["axes"], dtype=torch.float64)
    frames = album.frames
    if apart:
        frames = []
        for tau, theta in walk(album.times, even=True):
            frames.append((tau, theta))
            if gap(theta) < MERGED:
                break
    particles.setdefault("frames", {})[str(scheme)] = [
        {"time": tau, "cos": round(1 - gap(theta).item(), 6), "points": pack(theta[:DRAWN] @ axes.T)}
        for tau, theta in frames
    ]


def pack(points: Tensor) -> str:
    """Coordinates (n, 2 or 3) in [-1, 1] as base64 of little-endian int16, three of a point, in units of 1/32767."""
    whole = np.zeros((len(points), 3))
    whole[:, : points.shape[1]] = points.clamp(-1, 1).numpy()
    return b64encode(np.rint(SCALE * whole).astype("<i2").tobytes()).decode()
