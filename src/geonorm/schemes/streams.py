"""Schemes that carry more than one residual stream per token, stacked as (..., streams, dim)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..norms import NormSpec
from .base import Number, Placement, Site, add
from .parse import register


@register("residual_dual")
@dataclass(frozen=True)
class ResidualDual(Placement):
    """ResiDual: a Post-Norm stream that sub-layers read, beside a plain sum of all updates, joined at the end."""

    equation = "p = N(p + u(p)), d = d + u(p); exit p + N(d)"
    source = "Xie et al. 2023, arXiv:2304.14802"
    streams = 2
    planar = False

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"stream": norm()}

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        start = super().enter(x, p, site)
        return torch.stack((start, start), dim=-2)

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        normed, total = x.unbind(-2)
        return normed + super().exit(total, p, site)

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        return x.select(-2, 0), None

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        normed, total = x.unbind(-2)
        return torch.stack((p["stream"](add(normed, u, 1.0, h)), add(total, u, 1.0, h)), dim=-2)
