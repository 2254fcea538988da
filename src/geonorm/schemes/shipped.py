"""Residual rules that models of 2026 ship, read from their code in transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms import NormSpec, autocast_device, upcast
from ..ops import WeightedSum
from ..settings import Count, Positive
from .base import About, Copied, Number, Placement, Site
from .connected import Connected
from .nag import small_matrices
from .registry import register


@register("beam")
@dataclass(frozen=True)
class Beam(Placement):
    """Peri-LN in coordinates in which the stream keeps its length: the n-th update brings 1/(n + 1) of the squares.

    y_n = sqrt(n + 1) x_n, with n updates added, follows y + N(u(N(y))): the function of `peri` with the same weights,
    up to the eps of the norms. Lengths and rounding differ.

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
        law="s = (2 t)^(1/2) r |A|, r' = <θ,A> / |A| / (2 t)^(1/2) - (1 - (1 - 1/(2 t))^(1/2)) r",
    )

    parts: ClassVar[Any] = {"input": "norm", "output": "norm"}

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        share = 1 / (site.number + 2)
        return WeightedSum(keep=1 - h + h * (1 - share) ** 0.5, scale=h * share**0.5, norm=p.output)


@register("muse")
@dataclass(frozen=True)
class Muse(Placement):
    """A learned angle per channel between the stream and the normalised update: 30 degrees at the start, g = 0.

    b = sigmoid(g / temperature) weighs the update, a = sqrt(1 - b^2) the stream, so that the length holds on average.
    The update is normalised without gains; that of the MLP is multiplied by a learned vector before, not after.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "muse", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="a x + b N(u(N(x))), b = sigmoid(g / 0.3), a = sqrt(1 - b^2), g learned, about 0 at the start",
        source="Muse-Spark-Open-816B-A42B, 2026, github.com/huggingface/transformers, models/muse_spark",
        claim="No comparison of residual rules is on record here.",
        checked="transformers (Muse Spark), to rounding",
        shipped="Muse-Spark-Open-816B-A42B",
        law="s = 2 r |A|, r' = <θ,A> / |A| / 2 - (1 - 3^(1/2)/2) r",
    )
    stackable = ("temperature", "floor")

    temperature: Positive = field(default=0.3, kw_only=True)
    """What divides g in the gate."""
    floor: Positive = field(default=1e-3, kw_only=True)
    """The least a^2."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        output = ScaledInput(norm) if site.kind == "mlp" else norm(gains=False)
        return {"input": "norm", "output": output, "gate": (0.0, "dim")}

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        b = torch.sigmoid(upcast(p.gate) / self.temperature)
        a = ((1 - b) * (1 + b)).clamp(min=self.floor).sqrt()
        return WeightedSum(1 - h + h * a, h * b, norm=p.output)


class ScaledInput(nn.Module):
    """N(w u) with a learned vector w, 1 at the start, and no gains after it."""

    def __init__(self, norm: NormSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(norm.dim))
        self.norm = norm(gains=False)

    def forward(self, u: Tensor) -> Tensor:
        return self.norm(self.weight.to(u.dtype) * u)


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

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        """h leads from x to the layer: a stream that is scaled moves by scale - 1 without any update."""
        shift = p.bias * p.scale + p.update_bias * p.update_scale
        return WeightedSum(1 - h + h * p.scale, h * p.update_scale, h * shift)


@register("gated_streams")
@dataclass(frozen=True)
class GatedStreams(Connected):
    """Streams that do not mix: a sub-layer reads the gated mean of their norms and is added to each with a weight.

    Each stream has gains of its own. The gates, one for each stream and channel, are a low-rank map of all streams. The
    exit reads as sub-layers do, without a norm after it. All matrices are drawn with a standard deviation of 0.02, so
    that gates begin near 1/2 and writing weights near 1; the streams, copies at first, differ by those draws.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "gated_streams(n=2)", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(5, 2, 8)).shape  # two streams a token
    torch.Size([5, 2, 8])
    """

    about = About(
        equation="x_k + 2 sigmoid(w_k y/n) u(mean_k g_k y_k), y = N(x), g = sigmoid(U silu(D y/n)); exit alike",
        source="Qwen4-Exp, 2026, github.com/huggingface/transformers, models/qwen4_exp",
        claim="No comparison of residual rules is on record here.",
        checked="transformers (Qwen4-Exp), to rounding",
        shipped="Qwen4-Exp",
        lawless="n streams, read and written with weights that depend on the token",
    )
    final: Literal["norm", "none"] = field(default="none", kw_only=True)
    rank: Literal["width"] | Count = field(default="width", kw_only=True)
    """Of the map to the gates; width: 5/32 of the width, as in Qwen4-Exp, which has 320 at 2,048."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        rank = self.rank if isinstance(self.rank, int) else max(1, 5 * norm.dim // 32)
        number = site.total if site.kind == "exit" else int(site.number)
        return {"reader": GatedRead(norm, self.n, rank, number, writes=site.kind != "exit")}

    def end_parts(self, site: Site, norm: NormSpec) -> Mapping[str, Any]:
        parts = super().end_parts(site, norm)
        return parts if site.kind == "entry" else {**parts, **self.parts(site, norm)}

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return Copied.exit(self, self.read(x, p, site)[0], p, site)

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        wide = upcast(x)
        with torch.autocast(autocast_device(x), enabled=False):  # the gates stay wide
            y, share = p.reader(wide)
        return y.to(x.dtype), (wide, share)


class GatedRead(nn.Module):
    """x (..., n, dim) to the gated mean of its normalised streams, (..., dim), and the weights in [0, 2] with which the
    streams receive, (..., n), or None."""

    def __init__(self, norm: NormSpec, n: int, rank: int, number: int, writes: bool) -> None:
        super().__init__()
        self.norm = norm(gains=False)
        self.gains = nn.Parameter(torch.ones(n, norm.dim))
        width = n * norm.dim
        self.down, self.up, share = small_matrices(number, (rank, width), (width, rank), (n, width))
        self.share = share if writes else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        n, dtype = x.shape[-2], x.dtype
        y = self.norm(x) * self.gains.to(dtype)
        together = y.flatten(-2) / n
        gates = torch.sigmoid(F.linear(F.silu(F.linear(together, self.down.to(dtype))), self.up.to(dtype)))
        mean = (gates.view_as(y) * y).mean(-2)
        return mean, None if self.share is None else 2 * torch.sigmoid(F.linear(together, self.share.to(dtype)))
