"""Schemes that add in flat space and normalise before, after or around the sub-layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from .. import sphere
from ..norms import NormSpec, upcast
from ..ops import AngleMap
from . import polar
from .base import Number, Placement, Schedule, Site, add, require, schedule
from .parse import register


@dataclass(frozen=True)
class Decayed(Placement):
    """A flat scheme whose update may be scaled by depth and kept below a ceiling. Decay constant, alpha 1, no ceiling
    are the published form.

    With a ceiling c the step is as long as GeoNorm's angle is wide, |step|/|x| = min(s min(|u|/|x|, c), c).
    """

    decay: Schedule = field(default="constant", kw_only=True)
    alpha: float = field(default=1.0, kw_only=True)
    max_step: Literal["none"] | float = field(default="none", kw_only=True)
    """Ceiling on |step|/|x| of a token, as max_angle of geonorm is one on its angle."""

    def check(self) -> None:
        super().check()
        require(self.alpha > 0, f"alpha must be positive, got {self.alpha}")
        require(self.max_step == "none" or float(self.max_step) > 0, f"max_step must be positive, got {self.max_step}")

    def step(self, site: Site) -> Number:
        # t costs an operation on a tensor: only where it is needed
        return self.alpha if self.decay == "constant" else schedule(self.decay, self.alpha, site.t, site.depth)

    def proposal(self, x: Tensor, u: Tensor, p: Any) -> Tensor:
        """What is added, before decay and ceiling."""
        return u

    def share(self, x: Tensor, q: Tensor, site: Site) -> Number:
        """How much of q is added: s, or, with a ceiling, what each token may take, (..., 1)."""
        if self.max_step == "none":
            return self.step(site)
        wide = upcast(x)
        q = q.to(wide.dtype)
        return self.lengths(site).quotient(sphere.safe_divide(sphere.dot(q, q), sphere.dot(wide, wide)))

    def moved(self, x: Tensor, q: Tensor, site: Site, h: Number) -> Tensor:
        """x + h s q, within the ceiling."""
        share = self.share(x, q, site)
        return add(x, q, share, h) if self.max_step == "none" else (upcast(x) + h * share * upcast(q)).to(x.dtype)

    def lengths(self, site: Site) -> AngleMap:
        """From |q|/|x| to |step|/|x|."""
        return AngleMap(post=self.step(site), max_angle=float(self.max_step))

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return self.moved(x, self.proposal(x, u, p), site, h)

    def clamped(self, x: Tensor, u: Tensor, p: Any, site: Site) -> Tensor | None:
        if self.max_step == "none":
            return None
        x = upcast(self.seen(x))
        return self.lengths(site).clamped(relative(x, self.proposal(x, u, p))).squeeze(-1)


def relative(x: Tensor, q: Tensor) -> Tensor:
    """|q| / |x|, shape (..., 1), in the dtype of x."""
    return sphere.safe_divide(sphere.radius(q.to(x.dtype)), sphere.radius(x))


@register("pre")
@dataclass(frozen=True)
class Pre(Decayed):
    """Pre-Norm: the sub-layer reads the normalised stream, the stream itself is never normalised on the way.

    `form=scaled` is the same function written on the sphere: the state of a token is its direction, a point of radius
    sqrt(dim), and its log-radius, (..., dim + 1). Adding becomes a metric projection whose step the radius divides, so
    that Pre-Norm shows itself as a spherical scheme with a decay of its own making; and no number of the state grows
    with depth. Outputs and gradients are those of the plain form to rounding; keep the state fp32, because bf16 would
    lose the small increments of the log-radius.
    """

    equation = "x + s u(N(x)), s = 1"
    source = "Xiong et al. 2020, arXiv:2002.04745"
    law = "s = r, r' = <θ,A>"
    claim = (
        "Trains without warm-up: BERT at learning rate 3e-4 reaches validation loss 1.69 about 40 % "
        "sooner than Post-LN."
    )
    checked = "transformers (Llama, GPT-2, T5, Granite, GPT-J and others) and x-transformers, to rounding"

    form: Literal["plain", "scaled"] = field(default="plain", kw_only=True)
    """plain: the state is x; scaled: direction and log-radius."""
    input: Literal["norm", "raw"] = field(default="norm", kw_only=True)
    """Whether the sub-layer reads N of the stream or the stream as it is."""

    @property
    def planar(self) -> bool:  # type: ignore[override]
        return self.form == "plain"

    @property
    def lawless(self) -> str:  # type: ignore[override]
        return "" if self.planar else "its state carries the log-radius as one more number; its law is that of pre"

    @property
    def layout(self) -> str:
        return super().layout if self.form == "plain" else "direction and log-radius"

    def width(self, dim: int) -> int:
        return dim if self.form == "plain" else dim + 1

    def seen(self, x: Tensor) -> Tensor:
        return x if self.form == "plain" else polar.merge(x).to(x.dtype)

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        start = super().enter(x, p, site)
        return start if self.form == "plain" else polar.split(start)

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return super().exit(self.seen(x), p, site)

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm()} if self.input == "norm" else {}

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        if self.input == "raw":
            return self.seen(x), None
        # merged in the precision of the maths: a radius that the dtype of the stream cannot hold is no obstacle
        return (p["input"](x) if self.form == "plain" else p["input"](polar.merge(x)).to(x.dtype)), None

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        if self.form == "scaled":
            return polar.moved(x, h * self.share(polar.merge(x), u, site) * upcast(u))
        return super().write(x, u, carry, p, site, h)


@register("post")
@dataclass(frozen=True)
class Post(Decayed):
    """Post-Norm: the stream is normalised after every addition. Needs no norm before the head."""

    equation = "N(x + s u(x)), s = 1"
    source = "Vaswani et al. 2017, arXiv:1706.03762; Xiong et al. 2020, arXiv:2002.04745"
    law = "s = 1, r' = 0"
    claim = (
        "Needs warm-up: the gradient of the last MLP at initialisation does not fall with depth "
        "(arXiv:2002.04745, Theorem 1)."
    )
    checked = "transformers (BERT, GPT, OPT-350m, BART) and x-transformers, to rounding"
    final: Literal["norm", "none"] = field(default="none", kw_only=True)
    input: Literal["raw", "norm"] = field(default="raw", kw_only=True)
    """Whether the sub-layer reads the stream as it is or N of it."""

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm(), "stream": norm()} if self.input == "norm" else {"stream": norm()}

    def reader(self, p: Any) -> nn.Module | None:
        return p["input"] if self.input == "norm" else None

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        out: Tensor = p["stream"](self.moved(x, self.proposal(x, u, p), site, h))
        return out


@register("peri")
@dataclass(frozen=True)
class Peri(Decayed):
    """Peri-LN: norms before and after the sub-layer, the residual addition stays plain (Gemma 2 and 3)."""

    equation = "x + s N(u(N(x))), s = 1"
    source = "Kim et al. 2025, arXiv:2502.02732"
    law = "s = r |A|, r' = <θ,A> / |A|"
    claim = (
        "Average of benchmarks against Pre-Norm, 30B tokens: 49.69 to 51.57 (400M), 53.71 to 56.55 (1.5B), "
        "56.69 to 58.56 (3.2B)."
    )
    checked = "transformers (Gemma 2, Gemma 3, GLM-4) and x-transformers, to rounding; the paper through notes"

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm(), "output": norm()}

    def reader(self, p: Any) -> nn.Module | None:
        return p["input"]

    def proposal(self, x: Tensor, u: Tensor, p: Any) -> Tensor:
        out: Tensor = p["output"](u)
        return out


@register("sandwich")
@dataclass(frozen=True)
class Sandwich(Peri):
    """Sandwich-LN of CogView: Peri-LN without a norm at the entry, output projections smaller by sqrt(2 L).

    `rescale=max` is the paper's precaution against overflow in fp16: each norm divides its input by max|x| / 8, without
    gradient, so it acts through eps alone wherever norms compute in fp32, as all do here. The maximum is that of the
    token, not of the whole batch as in the official code, so that no token knows of another.
    """

    source = "Ding et al. 2021 (CogView), arXiv:2105.13290"
    law = Peri.law
    claim = "No number of the paper is on record here; it was made for stable training in fp16."
    checked = "official code run (THUDM/CogView 189a12b) and x-transformers, to rounding"
    entry: Literal["sphere", "embedding"] = field(default="embedding", kw_only=True)
    rescale: Literal["none", "max"] = field(default="none", kw_only=True)
    """max: every norm divides its input by max|x| / 8 first."""

    def params(self, site: Site, norm: NormSpec) -> nn.Module:
        own = super().params(site, norm)
        if self.rescale == "none":
            return own
        return nn.ModuleDict({name: Rescaled(each) for name, each in own.named_children()})

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return base * (2 * site.depth) ** -0.5 if role in ("o", "down") else base


class Rescaled(nn.Module):
    """N(x / (max|x| / 8)), the maximum over the token and without gradient."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        largest = x.detach().abs().amax(-1, keepdim=True)
        out: Tensor = self.norm(sphere.safe_divide(x, largest / 8))
        return out


@register("olmo2")
@dataclass(frozen=True)
class Olmo2(Placement):
    """Reordered norm of OLMo 2: only the output of the sub-layer is normalised."""

    equation = "x + N(u(x))"
    source = "OLMo team 2025, arXiv:2501.00656"
    law = "s = r |A|, r' = <θ,A> / |A|"
    claim = "No comparison of placements is on record here."
    checked = (
        "transformers (OLMo 2, OLMo 3, EXAONE 4, Swin v2), to rounding; OLMo's norm on queries and keys is the model's "
        "qk_norm=full here"
    )

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"output": norm()}

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return add(x, p["output"](u), 1.0, h)


@register("deepnorm")
@dataclass(frozen=True)
class DeepNorm(Placement):
    """DeepNorm for decoders: the skip path is weighed up, value, output and MLP weights start smaller."""

    equation = "N((2L)^(1/4) x + u(x))"
    source = "Wang et al. 2022, arXiv:2203.00555"
    law = "s = (2 L)^(1/4), r' = 0"
    claim = (
        "No number of the paper is on record here; the perplexities that arXiv:2502.05795 reports for it (27.17 at "
        "130M, 1363 at 350M on C4) come from code with another multiplier and initialisation."
    )
    checked = "official code run (microsoft/torchscale 4d1e0e8), initialisation too, and x-transformers, to rounding"
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"stream": norm()}

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        out: Tensor = p["stream"](add((2 * site.depth) ** 0.25 * x, u, 1.0, h))
        return out

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return base * (8 * site.depth) ** -0.25 if role in ("v", "o", "up", "gate", "down") else base


@register("keel")
@dataclass(frozen=True)
class Keel(Placement):
    """Keel: Post-Norm with a strong skip path and a second norm before the sub-layer.

    The notes on the paper disagree about alpha. The number of sub-layers 2 L is taken here because it alone keeps the
    product of the skip paths' Jacobians, about alpha / sqrt(alpha^2 + |u|^2/|x|^2) each, from vanishing with depth.
    Gains on both norms are an assumption.
    """

    equation = "N(a x + u(N(x))), a = 2 L"
    source = "Keel, 2026, arXiv:2601.19895"
    law = "s = 2 L, r' = 0"
    claim = (
        "Notes on the paper, average scores Pre-Norm to Keel: multilingual 66.4 to 70.8, knowledge 63.6 to 66.4, "
        "mathematics and code 38.6 to 45.0, all 58.7 to 62.5."
    )
    checked = "x-transformers run, the block; alpha from notes, which disagree"
    final: Literal["norm", "none"] = field(default="none", kw_only=True)
    alpha: Literal["depth"] | float = field(default="depth", kw_only=True)
    """Weight of the skip path; depth: the number of sub-layers, 2 L."""

    def check(self) -> None:
        super().check()
        require(self.alpha == "depth" or float(self.alpha) > 0, f"alpha must be positive, got {self.alpha}")

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm(), "stream": norm()}

    def reader(self, p: Any) -> nn.Module | None:
        return p["input"]

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        alpha = self.alpha if isinstance(self.alpha, float) else 2.0 * site.depth
        out: Tensor = p["stream"](add(alpha * x, u, 1.0, h))
        return out


@register("lns")
@dataclass(frozen=True)
class LayerNormScaling(Placement):
    """LayerNorm scaling: Pre-Norm whose norm output shrinks with depth. Not to be combined with a scaled init."""

    equation = "x + u(N(x) / sqrt(t))"
    source = "Sun et al. 2025, arXiv:2502.05795"
    law = "s = r, r' = <θ,A>"
    claim = (
        "Perplexity on C4 against Pre-Norm: 26.73 to 25.76 (130M, 2.2B tokens), 21.92 to 20.35 (250M), "
        "19.58 to 18.20 (350M), 17.02 to 15.71 (1B, 8.9B tokens)."
    )
    checked = "official code run (lmsdss/LayerNorm-Scaling 3ac54dd), bit for bit"

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm()}

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        return p["input"](x) * site.t**-0.5, None

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return add(x, u, 1.0, h)


@register("sqrt")
@dataclass(frozen=True)
class Sqrt(Placement):
    """Post-Norm with updates scaled by 1/sqrt(t): the "sqrt-scaling" row of the attention-dynamics paper."""

    equation = "N(x + u(x) / sqrt(t))"
    source = "Karagodin et al. 2025, arXiv:2510.22026"
    law = "s = t^(1/2), r' = 0"
    claim = "Derived there for attention alone, not trained: tokens collapse as exp(-4 sqrt(t))."
    checked = "tables of the paper, through a formalisation of it"
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"stream": norm()}

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        out: Tensor = p["stream"](add(x, u, schedule("sqrt", 1.0, site.t, site.depth), h))
        return out
