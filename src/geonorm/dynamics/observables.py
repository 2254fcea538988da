"""What is measured on particles: how far they have collapsed, and how fast.

theta: unit directions (..., n, dim) as Flow.tokens gives them; results have the leading shape. 1 - cos is never
computed by subtraction: mean_{i != j} (1 - cos) = n/(n-1) mean_i |theta_i - mean theta|^2 resolves 1e-28 in fp64.
"""

from __future__ import annotations

from math import sin

import torch
from torch import Tensor

from .. import sphere
from ..errors import ConfigError
from .flow import Flow

LEAST_ANGLE = 1e-7
"""Rounding of cosines in fp64, in radians."""


def variance(theta: Tensor) -> Tensor:
    """(1/n) sum |theta_i - mean theta|^2, shape (...).

    >>> geonorm.dynamics.variance(torch.eye(2))
    tensor(0.5000)
    """
    return (theta - theta.mean(-2, keepdim=True)).square().sum(-1).mean(-1)


def gap(theta: Tensor) -> Tensor:
    """1 - mean cosine between different particles, shape (...); 0 for a single particle.

    >>> geonorm.dynamics.gap(torch.eye(2))
    tensor(1.)
    """
    n = theta.shape[-2]
    return variance(theta) * (n / max(1, n - 1))


def mean_cosine(theta: Tensor) -> Tensor:
    """Mean of <theta_i, theta_j> over i != j, shape (...); 1 for a single particle.

    >>> geonorm.dynamics.mean_cosine(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor(0.6000)
    """
    return 1 - gap(theta)


def order_parameter(theta: Tensor) -> Tensor:
    """|mean theta|: 1 when all particles are together, about 1/sqrt(n) for uniform ones.

    >>> geonorm.dynamics.order_parameter(torch.eye(4))
    tensor(0.5000)
    """
    return sphere.radius(theta.mean(-2)).squeeze(-1)


def radius_cv(radius: Tensor) -> Tensor:
    """Standard deviation over mean of the radii (..., n), shape (...).

    >>> geonorm.dynamics.radius_cv(torch.tensor([1.0, 3.0]))
    tensor(0.5000)
    """
    return radius.std(-1, correction=0) / radius.mean(-1)


def cosine_rate(flow: Flow, x: Tensor, tau: float = 0.0) -> Tensor:
    """Derive the mean cosine by tau, exact from the velocity field, shape (...).

    >>> flow = geonorm.dynamics.Flow("post", geonorm.dynamics.Attention(beta=0.0))
    >>> geonorm.dynamics.cosine_rate(flow, flow.start(torch.eye(2)))  # 2 / (e^beta + n - 1)
    tensor(1.)
    """
    flow.tokens(x)  # modules of the exit cannot be made inside a transform
    velocity, settled = flow.velocity(x, tau), flow.settle(x, tau)
    # a scheme that takes over puts tokens on its sphere, and its velocity is theirs there
    x = x if torch.allclose(x, settled, rtol=8 * torch.finfo(x.dtype).eps, atol=0) else settled
    theta, moving = torch.func.jvp(flow.tokens, (x,), (velocity,))[:2]
    # <theta_i', theta_i> = 0, and sum_i over the difference from the mean is accurate near collapse
    away = theta - theta.mean(-2, keepdim=True)
    return -2 * (moving * away).sum((-1, -2)) / max(1, theta.shape[-2] - 1)


def clusters(theta: Tensor, angle: float = 0.1) -> Tensor:
    """Count the clusters, int64 (...), by single linkage: two particles are linked when the angle between them is at
    most `angle` radians, which is at least 1e-7. Memory n^2. Raises ConfigError for another angle.

    >>> geonorm.dynamics.clusters(torch.tensor([[1.0, 0.0], [0.999, 0.04], [0.0, 1.0]]))
    tensor(2)
    """
    if not LEAST_ANGLE <= angle <= torch.pi:
        raise ConfigError(f"angle must lie in [{LEAST_ANGLE:g}, pi], got {angle}")
    systems = theta.detach().double().reshape(-1, *theta.shape[-2:])
    counts = [count_components(system, 2 * sin(angle / 2)) for system in systems]
    return torch.tensor(counts, device=theta.device).view(theta.shape[:-2])


def count_components(points: Tensor, chord: float) -> int:
    """The number of connected components of points (n, dim) that are linked up to a distance."""
    away = points - points.mean(0)  # chords of differences: exact also where all are together
    square = away.square().sum(-1)
    near = square[:, None] + square - 2 * away @ away.mT <= chord**2
    first = label = torch.arange(len(points), device=points.device)
    while True:
        smallest = torch.where(near, label, len(points)).amin(-1)
        smallest = smallest[smallest]  # the label of the particle that lends its own: chains halve
        if torch.equal(smallest, label):
            return int((label == first).sum())
        label = smallest
