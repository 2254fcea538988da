"""Schemes with a learned scale per site: on the branch, at or near 0 at the start, so that a deep model starts shallow;
or on the stream itself."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from ..norms import NormSpec
from ..ops import WeightedSum
from ..settings import Positive
from .base import About, Number, Placement, Site, add, drawn_std
from .registry import register
from .scales import Scale


@register("rezero")
@dataclass(frozen=True)
class ReZero(Placement):
    """ReZero: no norm at all, one learned scalar per sub-layer that starts at 0.

    The paper shares the scalar between attention and MLP of a block; here each sub-layer has its own. There is no norm
    before the head either.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "rezero", geonorm.Site(0, "mlp", 4), dim=8)
    >>> x = torch.randn(2, 8)
    >>> torch.equal(layer(x), x)  # the scalar starts at 0
    True
    """

    about = About(
        equation="x + a u(x), a = 0 at the start, learned",
        source="Bachlechner et al. 2020 (ReZero), arXiv:2003.04887",
        claim="No number of the paper is on record here.",
        checked="official code run (majumderb/rezero e2c94a8), bit for bit, but for the scalar that it shares within "
        "a layer",
        figure_of="rezero(alpha=0.5)",
    )
    final: Literal["norm", "none"] = field(default="none", kw_only=True)
    alpha: float = field(default=0.0, kw_only=True)
    """Initial value of the scalar."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return {"alpha": Scale((1,), self.alpha)}

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        """Raises ConfigError for output matrices that begin at 0 after a scalar that does so too."""
        return (
            base if self.alpha else drawn_std(self, role, base, "multiplies them by 0 at first, so that neither learns")
        )

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        return WeightedSum(scale=h * p.alpha())


@register("layerscale")
@dataclass(frozen=True)
class LayerScale(Placement):
    """LayerScale: Pre-Norm whose update is multiplied by a learned small number per feature.

    Initial values follow the paper's text as others quote it: 0.1 up to 18 blocks, 1e-5 at 24, 1e-6 beyond. Official
    models agree at 24, 36 and 48 blocks, but for XXS36, which has 1e-5.

    >>> print(geonorm.schemes.LayerScale(start=0.01))
    layerscale(start=0.01)
    """

    about = About(
        equation="x + l u(N(x)), l per feature, learned, small at the start",
        source="Touvron et al. 2021 (CaiT), arXiv:2103.17239",
        claim="No number of the paper is on record here; arXiv:2502.05795 reports that it worsens Pre-Norm on C4, "
        "perplexity 26.73 to 27.93 (130M) and 21.92 to 23.45 (250M).",
        checked="transformers (BEiT, DINOv2) and x-transformers, to rounding; initial values: facebookresearch/deit "
        "at 24, 36 and 48 blocks (but XXS36), a quotation of the paper for 0.1",
        shipped="DINOv2 and v3, BEiT, RADIO, Mimi (the transformer of its codec)",
    )
    start: Literal["depth"] | Positive = field(default="depth", kw_only=True)
    """Initial value of the scale; depth: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        if isinstance(self.start, float):
            start = self.start
        elif site.depth <= 18:
            start = 0.1
        else:
            start = 1e-5 if site.depth <= 24 else 1e-6
        return {"input": "norm", "scale": Scale((norm.dim,), start)}

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        return WeightedSum(scale=h * p.scale())


@register("gpas")
@dataclass(frozen=True)
class GPAS(Placement):
    """Pre-Norm whose stream a learned gate makes shorter after every sub-layer, while its gradient stays as it was.

    All derivatives are those of the sum x + u, not of the value. The official code shares the gate between attention
    and MLP of a block; here each sub-layer has its own.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "gpas", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="z - silu(a) sg(z), z = x + u(N(x)), sg without gradient, a = 0 at the start, learned",
        source="Chen et al. 2025 (GPAS), arXiv:2506.22049",
        claim="The official code notes perplexity 19.37 in place of Pre-Norm's 20.49 at 350M.",
        checked="official code run (dandingsky/GPAS 3198068), to rounding, but for the gate that it shares within a "
        "layer",
        law="s = r, r' = <θ,A>",
    )

    parts = {"input": "norm", "gate": 0.0}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        z = add(x, u, 1.0, h)
        return z - h * F.silu(p.gate.to(z.dtype)) * z.detach()
