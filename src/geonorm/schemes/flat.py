"""Schemes that add in flat space and normalise before, after or around the sub-layer."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from ..decay import Schedule
from ..errors import require
from ..norms import NormSpec
from ..ops import WeightedSum
from ..settings import Positive
from .base import About, Number, Placement, Site, add
from .decayed import Decayed
from .registry import register


@register("post")
@dataclass(frozen=True)
class Post(Decayed):
    """Post-Norm: the stream is normalised after every addition. Needs no norm before the head.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "post", geonorm.Site(0, "mlp", 4), dim=8)
    >>> round(layer(torch.randn(8)).square().mean().item(), 3)  # what a norm leaves
    1.0
    """

    about = About(
        equation="N(x + s u(x)), s = 1",
        source="Vaswani et al. 2017, arXiv:1706.03762; Xiong et al. 2020, arXiv:2002.04745",
        claim="Needs warm-up: the gradient of the last MLP at initialisation is bounded whatever the depth "
        "(arXiv:2002.04745, Theorem 1), and was measured not to fall with it.",
        checked="transformers (BERT, GPT, OPT-350m, BART) and x-transformers, to rounding",
        shipped="BERT, the first GPT, BART, Marian, DETR",
        law="s = 1, r' = 0",
    )
    stackable = ("alpha", "max_step")

    final: Literal["norm", "none"] = field(default="none", kw_only=True)
    input: Literal["raw", "norm"] = field(default="raw", kw_only=True)
    """norm: the sub-layer reads N of the stream; raw: the stream itself."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return {"input": "norm", "stream": "norm"} if self.input == "norm" else {"stream": "norm"}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return p.stream(self.add(x, u, site, h))


@register("peri")
@dataclass(frozen=True)
class Peri(Decayed):
    """Peri-LN: norms before and after the sub-layer, the residual addition stays plain (Gemma 2 and 3).

    >>> geonorm.parse("peri").about.equation
    'x + s N(u(N(x))), s = 1'
    """

    about = About(
        equation="x + s N(u(N(x))), s = 1",
        source="Kim et al. 2025, arXiv:2502.02732",
        claim="Average of benchmarks against Pre-Norm, 30B tokens: 49.69 to 51.57 (400M), 53.71 to 56.55 (1.5B), "
        "56.69 to 58.56 (3.2B).",
        checked="transformers (Gemma 2 to 4, GLM-4) and x-transformers, to rounding; the paper through notes",
        shipped="Gemma 2 and 3, GLM-4, AFMoE, Kolibri 1, Muse Glimmer, LFM3, HyperCLOVA X; with layer_scalar Gemma 4",
        law="s = r |A|, r' = <θ,A> / |A|",
    )

    stackable = ("alpha", "max_step")

    layer_scalar: Literal["none", "learned"] = field(default="none", kw_only=True)
    """learned: a number, 1 at the start, multiplies the stream after each block. Gemma 4's code does not train it."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        ends_block = site.kind in ("mlp", "parallel")
        scalar = {"scalar": 1.0} if self.layer_scalar == "learned" and ends_block else {}
        return {"input": "norm", "output": "norm", **scalar}

    def check(self) -> None:
        require("none" in (self.layer_scalar, self.max_step), f"{self}: use max_step or layer_scalar, not both")

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum | None:
        terms = super().terms(p, site, h)
        if terms is None or not hasattr(p, "scalar"):
            return terms
        return replace(terms, keep=1 - h + h * p.scalar, scale=terms.scale * p.scalar)


@register("sandwich")
@dataclass(frozen=True)
class Sandwich(Decayed):
    """Sandwich-LN of CogView: Peri-LN without embedding norm; output projections start smaller by sqrt(2 L).

    The paper divides by max|x| / 8 before each norm, against overflow in fp16. That is not built: norms compute in fp32
    here.

    >>> geonorm.parse("sandwich").init_std("o", 8, 8, geonorm.Site(0, "attn", 8), base=1.0)  # (2 L)^(-1/2)
    0.25
    """

    about = About(
        equation=Peri.about.equation,
        source="Ding et al. 2021 (CogView), arXiv:2105.13290",
        claim="No number of the paper is on record here; it was made for stable training in fp16.",
        checked="official code run (THUDM/CogView 189a12b) and x-transformers, to rounding",
        law=Peri.about.law,
    )
    depth_init = True
    entry: Literal["sphere", "embedding"] = field(default="embedding", kw_only=True)

    parts: ClassVar[Any] = {"input": "norm", "output": "norm"}

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return base * (site.sublayers * site.depth) ** -0.5 if role in ("o", "down") else base


@register("olmo2")
@dataclass(frozen=True)
class Olmo2(Placement):
    """Reordered norm of OLMo 2: only the output of the sub-layer is normalised.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "olmo2", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="x + N(u(x))",
        source="OLMo team 2025, arXiv:2501.00656",
        claim="No comparison of placements is on record here.",
        checked="transformers (OLMo 2, OLMo 3, EXAONE 4, Swin v2), to rounding; OLMo's norm on queries and keys is "
        "the model's qk_norm=full here",
        shipped="OLMo 2 and 3, OLMo Hybrid (attention), FlexOlmo, EXAONE 4.0 and 4.5",
        law="s = r |A|, r' = <θ,A> / |A|",
    )

    parts = {"output": "norm"}

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        return WeightedSum(scale=h, norm=p.output)


@register("deepnorm")
@dataclass(frozen=True)
class DeepNorm(Placement):
    """DeepNorm for decoders: a larger weight on the skip path; value, output and MLP weights start smaller.

    >>> geonorm.parse("deepnorm").init_std("o", 8, 8, geonorm.Site(0, "attn", 8), base=1.0)  # (8 L)^(-1/4)
    0.3535...
    """

    about = About(
        equation="N((2L)^(1/4) x + u(x))",
        source="Wang et al. 2022, arXiv:2203.00555",
        claim="No number of the paper is on record here; the perplexities that arXiv:2502.05795 reports for it (27.17 "
        "at 130M, 1363 at 350M on C4) come from code with another multiplier and initialisation.",
        checked="official code run (microsoft/torchscale 4d1e0e8), initialisation too, and x-transformers, to rounding",
        shipped="MiniMax-01 and M1, with the norm moved to where the next sub-layer reads",
        law="s = (2 L)^(1/4), r' = 0",
    )
    depth_init = True
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    parts = {"stream": "norm"}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return p.stream(add((site.sublayers * site.depth) ** 0.25 * x, u, 1.0, h))

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return base * (4 * site.sublayers * site.depth) ** -0.25 if role in ("v", "o", "up", "gate", "down") else base


@register("keel")
@dataclass(frozen=True)
class Keel(Placement):
    """Keel: Post-Norm with a strong skip path and a second norm before the sub-layer.

    Notes on the paper disagree about alpha. It is the number of sub-layers 2 L here, with which the product of the skip
    paths' Jacobians tends to 1 with depth (with sqrt(2 L) to e^-1/2, with 1 to 0). Gains on both norms are an
    assumption.

    >>> print(geonorm.schemes.Keel(alpha=8.0))
    keel(alpha=8)
    """

    about = About(
        equation="N(a x + u(N(x))), a = 2 L",
        source="Chen and Wei 2026 (Keel), arXiv:2601.19895",
        claim="Notes on the paper, average scores Pre-Norm to Keel: multilingual 66.4 to 70.8, knowledge 63.6 to "
        "66.4, mathematics and code 38.6 to 45.0, all 58.7 to 62.5.",
        checked="x-transformers run, the block; alpha from notes, which disagree",
        law="s = 2 L, r' = 0",
    )
    final: Literal["norm", "none"] = field(default="none", kw_only=True)
    alpha: Literal["depth"] | Positive = field(default="depth", kw_only=True)
    """Weight of the skip path; depth: the number of sub-layers, 2 L."""

    parts = {"input": "norm", "stream": "norm"}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        alpha = self.alpha if isinstance(self.alpha, float) else float(site.sublayers * site.depth)
        return p.stream(add(alpha * x, u, 1.0, h))


@register("lns")
@dataclass(frozen=True)
class LayerNormScaling(Placement):
    """LayerNorm scaling: Pre-Norm whose norm output shrinks with depth.

    It is not combined with scaled initial values: those of gpt2 and neox are left unscaled.

    >>> layer = geonorm.Residual(torch.nn.Identity(), "lns(entry=embedding)", geonorm.Site(3, "mlp", 4), dim=1)
    >>> layer(torch.tensor([4.0])) - 4  # N(4) = 1, over the root of t = 4
    tensor([0.5000], grad_fn=...)
    """

    about = About(
        equation="x + u(N(x) / sqrt(t))",
        source="Sun et al. 2025, arXiv:2502.05795",
        claim="Perplexity on C4 against Pre-Norm: 26.73 to 25.76 (130M, 2.2B tokens), 21.92 to 20.35 (250M), 19.58 to "
        "18.20 (350M), 17.02 to 15.71 (1B, 8.9B tokens).",
        checked="official code run (lmsdss/LayerNorm-Scaling 3ac54dd), bit for bit",
        law="s = r, r' = <θ,A>",
    )

    depth_init = True
    parts = {"input": "norm"}

    def read(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return p.input(x) * site.t**-0.5

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        return WeightedSum(scale=h)


@register("sqrt")
@dataclass(frozen=True)
class Sqrt(Post):
    """Post-Norm with updates scaled by 1/sqrt(t): the "sqrt-scaling" row of the attention-dynamics paper.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "sqrt", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="N(x + u(x) / sqrt(t))",
        source="Karagodin et al. 2025, arXiv:2510.22026",
        claim="Derived there for attention alone, not trained: tokens collapse as exp(-4 sqrt(t)).",
        checked="tables of the paper, through a formalisation of it",
        law="s = t^(1/2), r' = 0",
    )
    decay: Schedule = field(default="sqrt", kw_only=True)
