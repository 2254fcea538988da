"""Pictures of a simulation: tokens on a sphere that can be drawn, in frames through all of depth."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .config import SimulateConfig
from .flow import Flow
from .integrators import integrate
from .laws import gap
from .starts import uniform

SNAPSHOTS = (0.0, 1.0, 3.0, 10.0, 30.0)
"""Times of the states that choose the axes of the pictures, as far as the simulation lasts."""
FRAMES = 24
"""Number of frames that a slider goes through, even in log(1 + time)."""
DRAWN = 80
"""Most particles in a picture."""
MERGED = 1e-9
"""1 - cos below which all particles are one dot."""
SCALE = 32767


def take_pictures(flow: Flow, config: SimulateConfig, x: Tensor, particles: dict[str, Any]) -> dict[str, Any]:
    """`particles` with the frames of one more scheme. Where all dimensions act alike, uniform tokens in d = 3 show what
    happens; else the first seed x is seen in the three dimensions in which it varies. The axes are those of the first
    scheme for all of them: one direction is one place in every picture."""
    snapshots = [t for t in SNAPSHOTS if t <= config.time]
    run = {"tokens": x.shape[1], "dim": x.shape[2], "init": config.init, "seeds": 1, "time": snapshots[-1]}
    tolerance = 1e-8
    if config.weights == "identity" and x.shape[2] > 3:  # the tokens of the pictures are not those of the simulation
        x, tolerance = uniform(DRAWN, 3, dtype=x.dtype).to(x.device), 1e-4
        run |= {"tokens": DRAWN, "dim": 3, "init": "uniform"}

    def walk(times: list[float]) -> Iterator[tuple[float, Tensor]]:
        path = integrate(flow, flow.start(x), times, method=config.method, tolerance=tolerance, log_time=True)
        for tau, state in path:
            yield tau, flow.tokens(state)[0].double().cpu()

    if "axes" not in particles:
        thetas = [theta for _, theta in walk(snapshots)]
        axes = torch.linalg.svd(torch.cat(thetas), full_matrices=False)[2][:3]
        axes = axes * torch.where((thetas[-1] @ axes.T).sum(0) < 0, -1.0, 1.0).unsqueeze(-1)
        particles = particles | {"run": run, "axes_of": str(flow.scheme), "axes": axes.tolist()}
    axes = torch.tensor(particles["axes"], dtype=torch.float64)
    frames = []
    for tau, theta in walk(config.times(config.time, FRAMES, log=True)):
        points = pack(theta[:DRAWN] @ axes.T)
        frames.append({"time": tau, "cos": round(1 - gap(theta[:DRAWN]).item(), 6), "points": points})
        if gap(theta) < MERGED:
            break
    return particles | {"frames": particles.get("frames", {}) | {str(flow.scheme): frames}}


def pack(points: Tensor) -> str:
    """Coordinates (n, 2 or 3) in [-1, 1] as base64 of little-endian int16, three of a point, in units of 1/32767."""
    whole = np.zeros((len(points), 3))
    whole[:, : points.shape[1]] = points.clamp(-1, 1).numpy()
    return b64encode(np.rint(SCALE * whole).astype("<i2").tobytes()).decode()
