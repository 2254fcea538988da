"""How a change of the stream at one depth is felt at the end: |d x_T / d x_t| along a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from .flow import Flow
from .integrators import integrate


@dataclass(frozen=True)
class Sensitivity:
    """Frobenius norm of d x_T / d x_t for each time t and, if all rows were computed, its largest singular value."""

    times: tuple[float, ...]
    frobenius: Tensor
    operator: Tensor | None


def sensitivity(
    flow: Flow,
    x: Tensor,
    times: Sequence[float],
    *,
    probes: int | None = None,
    seed: int = 0,
    method: str = "layers",
    **settings: Any,
) -> Sensitivity:
    """The Jacobian of the state at the last of `times` with respect to the state at each of them, one backward pass.

    x: one system, flow.start(...) of shape (n, dim) or (n, streams, dim), or with a leading 1. probes: random normal
    cotangents, so that the mean of |J^T p|^2 is the squared Frobenius norm; None: every row, exact, at the cost of
    x.numel() copies of the run. method and settings: as in integrate.
    """
    base = x.detach()
    if base.dim() > (3 if flow.streams > 1 else 2):
        if base.shape[0] != 1:
            raise ConfigError(f"sensitivity takes one system at a time, got {base.shape[0]}")
        base = base[0]
    if not len(times):
        raise ConfigError("no times")
    size = base.numel()
    if probes is None:
        cotangents = torch.eye(size, dtype=base.dtype).reshape(size, *base.shape)
    else:
        if probes < 1:
            raise ConfigError(f"probes must be at least 1, got {probes}")
        generator = torch.Generator().manual_seed(seed)
        cotangents = torch.randn(probes, *base.shape, generator=generator, dtype=torch.float64).to(base.dtype)
    with torch.enable_grad():
        start = base.expand(cotangents.shape).clone().requires_grad_()
        path = list(integrate(flow, start, times, method=method, **settings))
        states = [state for _, state in path]
        found = torch.autograd.grad(states[-1], states, cotangents.to(base.device))
    rows = torch.stack([g.flatten(1) for g in found])
    squared = rows.square().sum((1, 2))
    frobenius = (squared if probes is None else squared / probes).sqrt()
    operator = torch.linalg.matrix_norm(rows, ord=2) if probes is None else None
    return Sensitivity(tuple(time for time, _ in path), frobenius, operator)
