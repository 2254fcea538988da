"""What is measured on particles: how far they have collapsed, how fast, and by which law.

theta: unit directions (..., n, dim) as Flow.tokens gives them; results have the leading shape. 1 - cos is never
computed by subtraction: mean_{i != j} (1 - cos) = n/(n-1) mean_i |theta_i - mean theta|^2 resolves 1e-28 in fp64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import sphere
from ..errors import ConfigError
from .flow import Flow


def variance(theta: Tensor) -> Tensor:
    """(1/n) sum |theta_i - mean theta|^2, shape (...)."""
    return (theta - theta.mean(-2, keepdim=True)).square().sum(-1).mean(-1)


def gap(theta: Tensor) -> Tensor:
    """1 - mean cosine between different particles, shape (...); 0 for a single particle."""
    n = theta.shape[-2]
    return variance(theta) * (n / max(1, n - 1))


def mean_cosine(theta: Tensor) -> Tensor:
    """Mean of <theta_i, theta_j> over i != j, shape (...); 1 for a single particle."""
    return 1 - gap(theta)


def order_parameter(theta: Tensor) -> Tensor:
    """|mean theta|: 1 when all particles are together, about 1/sqrt(n) for uniform ones."""
    return sphere.radius(theta.mean(-2)).squeeze(-1)


def cosine_rate(flow: Flow, x: Tensor, tau: float = 0.0) -> Tensor:
    """Derives the mean cosine by tau, exact from the velocity field, shape (...)."""
    flow.tokens(x)  # modules of the exit cannot be made inside a transform
    velocity, settled = flow.velocity(x, tau), flow.settle(x, tau)
    # a scheme that takes over puts tokens on its sphere, and its velocity is theirs there
    x = x if torch.allclose(x, settled, rtol=8 * torch.finfo(x.dtype).eps, atol=0) else settled
    theta, moving = torch.func.jvp(flow.tokens, (x,), (velocity,))[:2]
    n = theta.shape[-2]
    # <theta_i', theta_i> = 0, and sum_i over the difference from the mean is accurate near collapse
    away = theta - theta.mean(-2, keepdim=True)
    inner = (moving * away).sum((-1, -2))
    return -2 * inner / max(1, n - 1)


def radius_cv(radius: Tensor) -> Tensor:
    """Standard deviation over mean of the radii (..., n), shape (...)."""
    return radius.std(-1, correction=0) / radius.mean(-1)


LEAST_ANGLE = 1e-7


def labels(theta: Tensor, angle: float = 0.1) -> Tensor:
    """Cluster of each particle, int64 (..., n): the smallest index it is linked to. Single linkage: two particles are
    linked when the angle between them is below `angle` radians, at least 1e-7 (rounding of cosines in fp64)."""
    if not LEAST_ANGLE <= angle <= torch.pi:
        raise ConfigError(f"angle must lie in [{LEAST_ANGLE:g}, pi], got {angle}")
    wide = theta.detach().double()
    flat = wide.reshape(-1, *wide.shape[-2:])
    return torch.stack([link(system, angle) for system in flat]).reshape(theta.shape[:-1])


def link(theta: Tensor, angle: float, rows: int | None = None) -> Tensor:
    """Connected components by the smallest label among neighbours, with pointer jumping, in blocks of rows."""
    n = len(theta)
    rows = rows or max(16, 4_000_000 // n)
    label = torch.arange(n, device=theta.device)
    chord = 2 * torch.sin(torch.tensor(angle / 2)).item()
    away = theta - theta.mean(0)  # chords of differences: exact also where all are together
    square = away.square().sum(-1)
    while True:
        new = label.clone()
        for i in range(0, n, rows):
            near = square[i : i + rows, None] + square - 2 * away[i : i + rows] @ away.mT <= chord**2
            new[i : i + rows] = torch.where(near, label, n).amin(-1).minimum(label[i : i + rows])
        # a smaller label reaches the root of every particle's old tree, then paths are halved to their ends
        root = label.clone().scatter_reduce_(0, label, new, "amin")
        new = new.minimum(root[label])
        while not torch.equal(new[new], new):
            new = new[new]
        if torch.equal(new, label):
            return label
        label = new


def clusters(theta: Tensor, angle: float = 0.1) -> Tensor:
    """Number of clusters, int64 (...)."""
    found = labels(theta, angle)
    return (found == torch.arange(found.shape[-1], device=found.device)).sum(-1)
