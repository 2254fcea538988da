"""Schemes that treat attention and MLP differently."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from ..norms import NormSpec, RMSNorm
from .base import About, Number, Placement, Site, add
from .registry import register


@register("hybrid")
@dataclass(frozen=True)
class Hybrid(Placement):
    """HybridNorm: attention reads the stream without a norm and normalises q, k, v per head; the MLP follows a norm of
    the stream.

    HybridNorm* differs in its first block only: `first(hybrid(input=norm), hybrid)`. The norms of q, k, v are RMSNorms
    over one head, before RoPE, with gains that the heads share. Output projections start smaller by sqrt(2 L), "full
    Megatron" in the official code. A parallel block, which the paper does not have, is treated as attention.

    >>> print(geonorm.parse("first(hybrid(input=norm), hybrid)"))  # HybridNorm*
    first(a=hybrid(input=norm), b=hybrid)
    """

    about = About(
        equation="attention: x + u(x) with N on q, k, v; MLP: y + u(y), y = N(x)",
        source="Zhuo et al. 2025 (HybridNorm), arXiv:2503.04598",
        claim="No number of the paper is on record here; arXiv:2602.08064 reports that at 1.3B parameters and "
        "learning rate 1e-3 it diverges where Pre-Norm does not.",
        checked="official code run (BryceZhuo/HybridNorm f0dd605), whole model and initialisation, to rounding",
    )
    carries = True
    depth_init = True
    input: Literal["raw", "norm"] = field(default="raw", kw_only=True)
    """norm: both sub-layers are Pre-Norm with normalised q, k, v, as the first block of HybridNorm*."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        if self.input == "norm":
            return {"input": "norm"}
        return {"stream": "norm"} if site.kind == "mlp" else {}

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        if self.input == "norm":
            return p.input(x), x
        y = p.stream(x) if site.kind == "mlp" else x
        return y, y

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, carry: Any = None) -> Tensor:
        """carry is what the update is added to: the stream, or N of it before an MLP."""
        return add(carry, u, 1.0, h)

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        return RMSNorm(shape[-1]) if name in ("q", "k", "v") else None

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return base * (site.sublayers * site.depth) ** -0.5 if role in ("o", "down") else base
