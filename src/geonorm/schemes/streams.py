"""Schemes that carry more than one residual stream per token, stacked as (..., streams, dim)."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decay import Schedule, schedule
from ..norms import NormSpec, autocast_device, upcast
from ..settings import Positive
from .base import About, Copied, Number, Site, add
from .connected import Connected
from .registry import register


@register("residual_dual")
@dataclass(frozen=True)
class ResidualDual(Copied):
    """ResiDual: a Post-Norm stream that sub-layers read, beside a plain sum of all updates, joined at the end.

    >>> geonorm.schemes.ResidualDual().streams
    2
    """

    about = About(
        equation="p = N(p + u(p)), d = d + u(p); exit p + N(d)",
        source="Xie et al. 2023, arXiv:2304.14802",
        claim="Better than Post-Norm and Pre-Norm on machine translation, also where the model is deep.",
        checked="official code run (microsoft/ResiDual 8682f75), its scale factors 1, to rounding",
        lawless="two streams; the Post-Norm stream by itself is that of `post`",
    )
    streams = 2

    parts = {"stream": "norm"}

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        normed, total = x.unbind(-2)
        return normed + super().exit(total, p, site)

    def read(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return x.select(-2, 0)

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        normed, total = x.unbind(-2)
        return torch.stack((p.stream(add(normed, u, 1.0, h)), add(total, u, 1.0, h)), dim=-2)


@register("siamese")
@dataclass(frozen=True)
class Siamese(Copied):
    """SiameseNorm: a Post-Norm stream a and a Pre-Norm stream b that share every sub-layer, which reads a + N(b).

    Without fields this is the paper's algorithm. The official code normalises each sum a + N(b) once more and divides
    what a receives by sqrt(2t): siamese(sum=norm, decay=sqrt, alpha=0.7071067811865476). The paper's language models
    use HybridNorm inside the stream a, which is a matter of the attention and not of the residual.

    >>> geonorm.schemes.Siamese().streams
    2
    """

    about = About(
        equation="a = N(a + s u), b = b + u, u = u(a + N(b)), s = 1; exit a + N(b)",
        source="Li et al. 2026 (SiameseNorm), arXiv:2602.08064",
        claim="1.3B parameters, 100B tokens, learning rate 1e-3: perplexity 10.43 where Pre-Norm has 10.84 and "
        "Post-Norm diverges.",
        checked="with its fields: official code run (Qwen-Applications/SiameseNorm 70efa00, DeiT), to rounding; "
        "without fields: the paper's algorithm from notes",
        lawless="two streams, and what leaves is the sum of one with the norm of the other",
    )
    streams = 2
    stackable = ("alpha",)

    decay: Schedule = field(default="constant", kw_only=True)
    """Decrease of the share with block t, as elsewhere."""
    alpha: Positive = field(default=1.0, kw_only=True)
    """With decay, the share s of the update that the Post-Norm stream receives; the other stream receives all of it."""
    sum: Literal["raw", "norm"] = field(default="raw", kw_only=True)
    """norm: a + N(b) is normalised once more, before every sub-layer and before the head."""

    def end_parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        extra = {"sum": "norm"} if site.kind == "exit" and self.sum == "norm" else {}
        return {**super().end_parts(site, norm), **extra}

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        parts = {"stream": "norm", "norm": "norm"}
        return {**parts, "sum": "norm"} if self.sum == "norm" else parts

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        post, pre = x.unbind(-2)
        return self.join(post, super().exit(pre, p, site), p)

    def read(self, x: Tensor, p: Any, site: Site) -> Tensor:
        post, pre = x.unbind(-2)
        return self.join(post, p.norm(pre), p)

    def join(self, post: Tensor, normed: Tensor, p: Any) -> Tensor:
        both = post + normed
        return p.sum(both) if self.sum == "norm" else both

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        post, pre = x.unbind(-2)
        step = schedule(self.decay, self.alpha, site.t, site.depth)
        return torch.stack((p.stream(add(post, u, step, h)), add(pre, u, 1.0, h)), dim=-2)

    def seen(self, x: Tensor) -> Tensor:
        """a + N(b) with N the root mean square: what sub-layers read and what leaves, up to learned gains."""
        post, pre = upcast(x).unbind(-2)
        return post + F.rms_norm(pre, pre.shape[-1:], eps=1e-6)


@register("hyper")
@dataclass(frozen=True)
class Hyper(Connected):
    """Hyper-connections: n streams; every sub-layer reads one mixture of them, is added to each, and they mix anew.

    A and B are a learned constant plus, for `dynamic=tanh`, a small function of each stream. At the start the k-th
    sub-layer of the network reads stream k mod n, all streams receive its output, none mix: the network is Pre-Norm.
    The streams start as copies and leave as their sum. The paper also rescales the matrices that write to the stream
    with n at the start, and lets the dynamic weights decay; here every scheme draws the same matrices, and only
    matrices of the sub-layers decay.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "hyper(n=2)", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(5, 2, 8)).shape  # two streams a token
    torch.Size([5, 2, 8])
    """

    about = About(
        equation="H = A'H + B'u(N(a'H)), [a A] = [e I] + s tanh(N(H) W), B = 1 + s tanh(N(H) w); exit N(sum H)",
        source="Zhu et al. 2024, arXiv:2409.19606",
        claim="A mixture of experts (7B, 1B active) converges 1.8 times faster with n = 4, dynamic.",
        checked="a third party's code of the paper's Appendix J run (lucidrains/hyper-connections 4775103), to "
        "rounding; no official code seen",
        lawless="n streams that mix, with weights that depend on the token",
    )

    dynamic: Literal["tanh", "none"] = field(default="tanh", kw_only=True)
    """tanh: the connections depend on the token; none: they are learned constants."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        parts = {"input": "norm", "connection": Connection(self.n, norm.dim, self.first(site), self.dynamic == "tanh")}
        # without gains: they would only scale the rows of W
        return {**parts, "streams": norm(gains=False)} if self.dynamic == "tanh" else parts

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        wide = upcast(x)
        # mixing is no matrix product of the model: it stays wide
        with torch.autocast(autocast_device(x), enabled=False):
            mix, share = p.connection(p.streams(wide) if self.dynamic == "tanh" else None, wide.dtype)
            mixed = mix.transpose(-1, -2) @ wide
        y, rest = mixed[..., 0, :], mixed[..., 1:, :]
        return p.input(y.to(x.dtype)), (rest, share)


class Connection(nn.Module):
    """The connections of one site: mix (..., n, 1 + n), whose column 0 is what the sub-layer reads and column 1 + j
    what becomes of stream j, and share (..., n), what each stream receives of the output. In the dtype asked for.

    Static: mix = [e_first, I], share = 1. Dynamic, added to them: 0.01 tanh(N(H) W), W = 0 at the start.
    """

    def __init__(self, n: int, dim: int, first: int, dynamic: bool) -> None:
        super().__init__()
        mix = torch.zeros(n, n + 1)
        mix[:, 1:].fill_diagonal_(1.0)
        mix[first, 0] = 1.0
        self.mix = nn.Parameter(mix)
        self.share = nn.Parameter(torch.ones(n))
        if dynamic:
            self.mix_weight = nn.Parameter(torch.zeros(dim, n + 1))
            self.share_weight = nn.Parameter(torch.zeros(dim))
            self.mix_scale = nn.Parameter(torch.full((1,), 0.01))
            self.share_scale = nn.Parameter(torch.full((1,), 0.01))

    def forward(self, normed: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """normed: N(H), (..., n, dim), or None without a dynamic part."""
        mix, share = self.mix.to(dtype), self.share.to(dtype)
        if normed is None:
            return mix, share
        moved = torch.tanh(normed @ self.mix_weight.to(dtype)) * self.mix_scale.to(dtype)
        received = torch.tanh(normed @ self.share_weight.to(dtype)) * self.share_scale.to(dtype)
        return mix + moved, share + received
