"""What is measured on particles: how far they have collapsed, how fast, and by which law.

theta: unit directions (..., n, dim) as Flow.tokens gives them; results have the leading shape. 1 - cos is never computed
by subtraction: mean_{i != j} (1 - cos) = n/(n-1) mean_i |theta_i - mean theta|^2, which resolves 1e-28 in fp64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import sphere
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
    """d/dtau of the mean cosine, exact from the velocity field, shape (...)."""
    theta, moving = torch.func.jvp(flow.tokens, (x,), (flow.velocity(x, tau),))
    n = theta.shape[-2]
    # <theta_i', theta_i> = 0, and sum_i over the difference from the mean is accurate near collapse
    away = theta - theta.mean(-2, keepdim=True)
    inner = (moving * away).sum((-1, -2))
    return -2 * inner / max(1, n - 1)
