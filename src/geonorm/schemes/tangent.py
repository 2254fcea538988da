"""Schemes that add the tangential part of the update in flat space."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .. import sphere
from ..norms import NormSpec, upcast
from .base import Number, Site, add, require
from .flat import Decayed
from .parse import register


@register("orthogonal")
@dataclass(frozen=True)
class Orthogonal(Decayed):
    """Orthogonal residual update: Pre-Norm without the part of the update that lies along the stream.

    The projection is per token over the features ("Orthogonal-F", the default of the official code), with eps in its
    denominator, so a share eps / (|x|^2 + eps) of the radial part is left. The inner products are fp32. With decay it
    is the flat twin of GeoNorm's step: tangential, but the radius grows as the square root of 1 + |v|^2/|x|^2.
    """

    equation = "x + s (u - <x,u> x / (|x|^2 + eps)), u = u(N(x)), s = 1"
    source = "Oh et al. 2025, arXiv:2505.11881"
    law = "s = r, r' = 1e-6 <θ,A> / (r^2 + 1e-6)"
    claim = "No number of the paper is on record here."
    checked = "official code run (BootsofLagrangian/ortho-residual 4f663d3) and x-transformers, to rounding"
    eps: float = field(default=1e-6, kw_only=True)
    """Added to |x|^2 in the projection."""

    def check(self) -> None:
        super().check()
        require(self.eps > 0, f"eps must be positive, got {self.eps}")

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm()}

    def reader(self, p: Any) -> nn.Module | None:
        return p["input"]

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        wide = upcast(x)
        update = u.to(wide.dtype)
        v = update - sphere.dot(wide, update) / (sphere.dot(wide, wide) + self.eps) * wide
        return add(wide, v, self.step(site), h).to(x.dtype)
