"""Learned scales on the skip path: of the stream, of the embedding added again, of the middle taken out at the end; of
two streams side by side."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ..norms import NormSpec, upcast
from ..settings import Positive, Range
from .base import About, Copied, Number, Site
from .registry import register


@register("lambdas")
@dataclass(frozen=True)
class Lambdas(Copied):
    """Pre-Norm with learned scales: before each block the stream is a x + b x0, x0 its start. At the end c times the
    stream after the middle block is subtracted ("backout").

    x0 and the middle travel as streams beside x: three times the memory of Pre-Norm's stream, twice with backout=none.

    >>> geonorm.schemes.Lambdas().streams, geonorm.schemes.Lambdas(backout="none").streams
    (3, 2)
    """

    about = About(
        equation="x = a x + b x0 before a block, then x + u(N(x)); exit N(x - c x_mid), mid: block L//2 + 1",
        source="modded-nanogpt 2024, github.com/KellerJordan/modded-nanogpt; "
        "nanochat 2025, github.com/karpathy/nanochat",
        claim="nanochat's log, the scalars' rate chosen, without backout, bits per byte: lower by 0.0103 (8 blocks), "
        "0.0077 (12), 0.0057 (16), 0.0039 (20). Speed records of modded-nanogpt use it.",
        checked="official code run (karpathy/nanochat 92d63d4), to rounding, initial values too",
        lawless="the start of the stream is added again and again: a direction of its own",
    )
    carries = True

    start: Literal["depth", "neutral"] = field(default="depth", kw_only=True)
    """Initial values. depth: a from 1.15 to 1.05 and b from 0.2 to 0.05 over the blocks; neutral: 1 and 0, Pre-Norm."""
    backout: Literal["none"] | Positive = field(default=0.2, kw_only=True)
    """Initial value of c; none: nothing is taken out."""

    @property
    def streams(self) -> int:  # type: ignore[override]
        return 2 if self.backout == "none" else 3

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        if not begins(site):
            return {"input": "norm"}
        share = site.layer / max(site.depth - 1, 1)
        a, b = (1.15 - 0.1 * share, 0.2 - 0.15 * share) if self.start == "depth" else (1.0, 0.0)
        return {"input": "norm", "scale": float(a), "again": float(b)}

    def end_parts(self, site: Site, norm: NormSpec) -> Mapping[str, Any]:
        parts = super().end_parts(site, norm)
        return parts if site.kind == "entry" or self.backout == "none" else {**parts, "backout": self.backout}

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        last = self.seen(x)
        if self.backout != "none":
            last = last - p.backout.to(last.dtype) * x.select(-2, 2)
        return super().exit(last, p, site)

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Tensor]:
        mixed = x.select(-2, 0)
        if begins(site):
            mixed = p.scale.to(x.dtype) * mixed + p.again.to(x.dtype) * x.select(-2, 1)
        return p.input(mixed), mixed

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, carry: Any = None) -> Tensor:
        """carry is the stream with the embedding added again."""
        last, *others = x.unbind(-2)
        after = carry + u if isinstance(h, float) and h == 1.0 else last + h * (carry + u - last)
        if self.backout != "none":
            behind = site.layer < site.depth // 2 + 1  # it follows the stream, and stays where the middle block ends
            others[1] = torch.where(torch.as_tensor(behind, device=x.device), after, others[1])
        return torch.stack((after, *others), dim=-2)


def begins(site: Site) -> bool:
    """True for the first sub-layer of a block."""
    return site.kind in ("attn", "parallel")


@register("lanes")
@dataclass(frozen=True)
class Lanes(Copied):
    """Two streams: attention reads one, the MLP the other, and both sub-layers add to both, with learned weights.

    Each sub-layer multiplies both streams by one learned number, sqrt(1.1) at the start. In the first blocks the two
    are one stream; then attention begins to add 1.5 times its update to the MLP's. Their mean leaves.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "lanes", geonorm.Site(3, "mlp", 4), dim=8)
    >>> layer(torch.randn(5, 2, 8)).shape  # two streams a token
    torch.Size([5, 2, 8])
    """

    about = About(
        equation="x_j = r x_j + w_j u, u = attention(N(x_0)), then MLP(N(x_1)); exit N((x_0 + x_1)/2)",
        source="modded-nanogpt 2026, github.com/KellerJordan/modded-nanogpt, pull request 230",
        claim="The speed record of February 2026 took 45 steps and 0.85 s less than the one before; a record of March "
        "replaced the lanes by one cached state.",
        checked="official code run (KellerJordan/modded-nanogpt 699e93c), to rounding, initial values too",
        lawless="two streams, each read by one kind of sub-layer",
    )
    streams = 2

    share: Annotated[float, Range(0, 1, "must lie in [0, 1]")] = field(default=7 / 11, kw_only=True)
    """How much of the depth has one stream, in whole blocks."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        one = site.layer < floor(self.share * site.depth + 1e-9)
        weights = [1.0] if one else [1.0, 1.5 if site.kind == "attn" else 1.0]
        return {"input": "norm", "scale": 1.1**0.5, "weights": nn.Parameter(torch.tensor(weights))}

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return super().exit(x.mean(-2), p, site)

    def read(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return p.input(x.select(-2, int(site.kind == "mlp")))

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        after = p.scale.to(x.dtype) * x + p.weights.to(x.dtype).unsqueeze(-1) * u.unsqueeze(-2)
        return after if isinstance(h, float) and h == 1.0 else x + h * (after - x)

    def seen(self, x: Tensor) -> Tensor:
        """The mean of the streams, which leaves."""
        return upcast(x).mean(-2)
