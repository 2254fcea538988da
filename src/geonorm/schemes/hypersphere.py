"""nGPT: stream, weights and update live on the unit sphere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms import NormSpec
from .base import Number, Placement, Site, require
from .parse import register


@register("ngpt")
@dataclass(frozen=True)
class NGPT(Placement):
    """Normalised Transformer: a learned step per feature towards the normalised output, then back to the sphere.

    Weights are normalised along the model dimension after every optimizer step; queries, keys, MLP units and logits get
    learned scales. Following the official code where it and the text differ (both up and gate times sqrt(dim)).
    """

    equation = "N(x + a (N(u(x)) - x)), a = 0.05 per feature, learned; |weights| = 1"
    source = "Loshchilov et al. 2024, arXiv:2410.01131"

    alpha: float = field(default=0.05, kw_only=True)
    """Initial step size."""
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    def check(self) -> None:
        super().check()
        require(0 < self.alpha <= 1, f"alpha must lie in (0, 1], got {self.alpha}")

    def params(self, site: Site, norm: NormSpec) -> nn.Module:
        return super().params(site, NormSpec("unit", norm.dim, gains=False, eps=0.0))

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"unit": norm(), "alpha": Scale((norm.dim,), self.alpha, norm.dim**-0.5)}

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        step = p["alpha"]().abs()
        target = p["unit"](u.to(x.dtype))
        if isinstance(h, float) and h == 1.0:
            moved = torch.lerp(x, target, step.to(x.dtype))
        else:
            moved = x + h * step * (target - x)
        out: Tensor = p["unit"](moved)
        return out

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        if name == "q_rope":
            return UnitQuery(shape, dim)
        if name == "k_rope":
            return NormSpec("unit", shape[-1], gains=False, eps=0.0)()
        if name in ("up", "gate"):
            return Scaled(Scale(shape, dim**0.5, 1.0))
        if name == "logits":
            return Scaled(Scale(shape, 1.0, dim**-0.5))
        return None

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        """Directions only: every vector is normalised before the first step."""
        return base

    def constrain(self, weights_by_role: Mapping[str, list[Tensor]]) -> None:
        for role, weights in weights_by_role.items():
            for weight in weights:
                weight.copy_(F.normalize(weight, dim=0 if role in ("o", "down") else -1))

    def recipe(self) -> dict[str, float]:
        return {"weight_decay": 0.0, "warmup": 0.0}


class Scale(nn.Module):
    """A learned vector that acts as `start` at first but is stored as `stored`, which sets how fast Adam moves it."""

    def __init__(self, shape: tuple[int, ...], start: float, stored: float) -> None:
        super().__init__()
        self.stored = stored
        self.factor = start / stored
        self.weight = nn.Parameter(torch.full(shape, self.stored))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, self.stored)

    def forward(self) -> Tensor:
        return self.weight * self.factor


class Scaled(nn.Module):
    """y times a learned scale, in the dtype of y."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, y: Tensor) -> Tensor:
        return y * self.scale().to(y.dtype)


class UnitQuery(nn.Module):
    """s^2 N(q) head_dim: the paper scales queries and keys by one shared s and divides the softmax by 1/sqrt(head_dim);
    both factors stand on the query here, which leaves every product of query and key the same."""

    def __init__(self, shape: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.scale = Scale(shape, 1.0, dim**-0.5)
        self.unit = NormSpec("unit", shape[-1], gains=False, eps=0.0)()
        self.softmax = float(shape[-1])

    def forward(self, q: Tensor) -> Tensor:
        out: Tensor = self.unit(q) * (self.scale().square() * self.softmax).to(q.dtype)
        return out
