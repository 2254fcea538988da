"""Residual rules that models of 2026 ship, read from their code in transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..norms import NormSpec, upcast
from ..settings import Positive
from .base import About, Number, Placement, Site
from .registry import register


@register("beam")
@dataclass(frozen=True)
class Beam(Placement):
    """Peri-LN in coordinates in which the stream keeps its length: the n-th update brings 1/(n + 1) of the squares.

    y_n = sqrt(n + 1) x_n, with n updates added, follows y + N(u(N(y))): the function of `peri` with the same weights,
    up to the eps of the norms. Lengths and rounding differ. h scales the weight of the update; the other weight
    follows, so that their squares sum to 1.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "beam", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="sqrt(1 - 1/m) x + sqrt(1/m) N(u(N(x))), m = 2t for attention, 2t + 1 for the MLP",
        source="Beam-1.0-501B-A23B, 2026, github.com/huggingface/transformers, models/beam",
        claim="No comparison of residual rules is on record here.",
        checked="transformers (Beam), to rounding",
        shipped="Beam-1.0-501B-A23B",
        law="s = (2 t)^(1/2) r |A|, r' = <θ,A> / |A| / (2 t)^(1/2)",
    )

    parts: ClassVar[Any] = {"input": "norm", "output": "norm"}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        share = 1 / (site.number + 2)
        return (1 - h * h * share) ** 0.5 * x + h * share**0.5 * p.output(u)


@register("muse")
@dataclass(frozen=True)
class Muse(Placement):
    """A learned angle per channel between the stream and the normalised update: 30 degrees at the start, g = 0.

    b = sigmoid(g / temperature) weighs the update, a = sqrt(1 - b^2) the stream, so that the length holds on average.
    The update is normalised without gains; that of the MLP is multiplied by a learned vector before, not after. h
    scales b; a follows.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "muse", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="a x + b N(u(N(x))), b = sigmoid(g / 0.3), a = sqrt(1 - b^2), g learned, 0 at the start",
        source="Muse-Spark-Open-816B-A42B, 2026, github.com/huggingface/transformers, models/muse_spark",
        claim="No comparison of residual rules is on record here.",
        checked="transformers (Muse Spark), to rounding",
        shipped="Muse-Spark-Open-816B-A42B",
        law="s = 2 r |A|, r' = <θ,A> / |A| / 2",
    )
    temperature: Positive = field(default=0.3, kw_only=True)
    """What divides g in the gate."""
    floor: Positive = field(default=1e-3, kw_only=True)
    """The least a^2."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        output = ScaledInput(norm) if site.kind == "mlp" else norm(gains=False)
        return {"input": "norm", "output": output, "gate": (0.0, "dim")}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        wide = upcast(x)
        b = h * torch.sigmoid(p.gate.to(wide.dtype) / self.temperature)
        a = ((1 - b) * (1 + b)).clamp(min=self.floor).sqrt()
        return a * wide + b * p.output(u.to(wide.dtype))


class ScaledInput(nn.Module):
    """N(w u) with a learned vector w, 1 at the start, and no gains behind it."""

    def __init__(self, norm: NormSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(norm.dim))
        self.norm = norm(gains=False)

    def forward(self, u: Tensor) -> Tensor:
        out: Tensor = self.norm(self.weight.to(u.dtype) * u)
        return out


@register("affine")
@dataclass(frozen=True)
class AffineResidual(Placement):
    """Pre-Norm with a learned scale and bias per channel on both terms of the addition; plain Pre-Norm at the start.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "affine", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="(x + b) s + (u(N(x)) + c) w per channel, learned, s = w = 1, b = c = 0 at the start",
        source="ZAYA1-8B, 2026, github.com/huggingface/transformers, models/zaya",
        claim="No comparison of residual rules is on record here.",
        checked="transformers (Zaya), to rounding",
        shipped="ZAYA1-8B",
        law="s = r, r' = <θ,A>",
    )

    parts: ClassVar[Any] = {
        "input": "norm", "scale": (1.0, "dim"), "bias": (0.0, "dim"),
        "update_scale": (1.0, "dim"), "update_bias": (0.0, "dim"),
    }  # fmt: skip

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        """h leads from x to the layer: a stream that is scaled moves by scale - 1 without any update."""
        moved = (x + p.bias) * p.scale + (u + p.update_bias) * p.update_scale
        return x + h * (moved - x)
