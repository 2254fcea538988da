"""Learned scales that schemes put on a step, on queries and keys, on hidden units, on logits."""

import torch
from torch import Tensor, nn

from ..norms import UnitNorm


class Scale(nn.Module):
    """A learned tensor that acts as `start` at first but is stored as `stored`, which sets how fast Adam moves it.

    Without `stored` it is stored as it acts. A single number has shape (1,).
    """

    def __init__(self, shape: tuple[int, ...], start: float, stored: float | None = None) -> None:
        super().__init__()
        self.factor = 1.0 if stored is None else start / stored
        self.weight = nn.Parameter(torch.full(shape, start if stored is None else stored))

    def forward(self) -> Tensor:
        return self.weight * self.factor


class Scaled(nn.Module):
    """y times a learned scale, in the dtype of y."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, y: Tensor) -> Tensor:
        return y * self.scale().to(y.dtype)


class Times(nn.Module):
    """y times a fixed number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, y: Tensor) -> Tensor:
        return y * self.factor


class UnitQuery(nn.Module):
    """s^2 N(q) head_dim: the paper scales queries and keys by one shared s and divides the softmax by 1/sqrt(head_dim);
    both factors stand on the query here, which leaves every product of query and key the same."""

    def __init__(self, shape: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.scale = Scale(shape, 1.0, dim**-0.5)
        self.unit = UnitNorm(shape[-1])
        self.head_dim = float(shape[-1])

    def forward(self, q: Tensor) -> Tensor:
        return self.unit(q) * (self.scale().square() * self.head_dim).to(q.dtype)
