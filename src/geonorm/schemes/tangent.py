"""Flat schemes that mind the radius: they add the tangential part of the update, or weights whose squares sum to 1."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .. import sphere
from ..errors import require
from ..norms import NormSpec, upcast
from ..ops import WeightedSum
from ..settings import Positive
from .base import About, Number, Placement, Site
from .pre import Pre
from .registry import register


@register("orthogonal")
@dataclass(frozen=True)
class Orthogonal(Pre):
    """Orthogonal residual update: Pre-Norm without the part of the update that lies along the stream.

    The projection is per token over the features ("Orthogonal-F", the default of the official code), with eps in its
    denominator, so a share eps / (|x|^2 + eps) of the radial part is left. The inner products are fp32. With decay it
    is the flat counterpart of GeoNorm's step: tangential, but the radius grows as the square root of 1 + |v|^2/|x|^2.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "orthogonal", geonorm.Site(0, "mlp", 4), dim=8)
    >>> x = torch.randn(2, 8)
    >>> torch.allclose(geonorm.sphere.dot(layer(x) - x, x), torch.zeros(2, 1), atol=1e-5)
    True
    """

    about = About(
        equation="x + s (u - <x,u> x / (|x|^2 + eps)), u = u(N(x)), s = 1",
        source="Oh et al. 2025, arXiv:2505.11881",
        claim="No number of the paper is on record here.",
        checked="official code run (BootsofLagrangian/ortho-residual 4f663d3) and x-transformers, to rounding",
        law="s = r, r' = 1e-6 <θ,A> / (r^2 + 1e-6)",
    )
    eps: Positive = field(default=1e-6, kw_only=True)
    """Added to |x|^2 in the projection."""

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> None:
        """None: what is added depends on x."""

    def proposal(self, x: Tensor, u: Tensor, p: Any) -> Tensor:
        """The tangential part of u, in the precision of the maths."""
        wide = upcast(x)
        update = u.to(wide.dtype)
        return update - sphere.dot(wide, update) / (sphere.dot(wide, wide) + self.eps) * wide


@register("norm_preserving")
@dataclass(frozen=True)
class NormPreserving(Placement):
    """Pre-Norm whose weights keep the radius of a stream whose updates are as long as it is, and at right angles to it.

    What GeoNorm's step holds for every token, this holds on average and without a projection: the control for keeping
    the norm alone.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "norm_preserving", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="sqrt(1 - b/L) x + sqrt(b/L) u(N(x)), b = 1",
        source="Marin project 2026, github.com/marin-community/marin, issue 8860, with its learned b fixed",
        claim="Reported there, with b learned: 1.018 times as fast as the baseline at width 512, 0.950 times at 768.",
        checked="notes only; the code was not seen",
        law="s = r L^(1/2), r' = <θ,A> / L^(1/2) - (1 - (1 - 1/L)^(1/2)) r",
    )

    stackable = ("b",)

    b: Positive = field(default=1.0, kw_only=True)
    """Share of the squared norm that all updates of one kind bring in together; at most the number of blocks."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        require(self.b <= site.depth, f"b must be at most the number of blocks {site.depth}, got {self.b}")
        return {"input": "norm"}

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        share = self.b / site.depth
        return WeightedSum(keep=1 - h + h * (1 - share) ** 0.5, scale=h * share**0.5)
