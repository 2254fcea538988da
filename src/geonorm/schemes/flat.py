"""Schemes that add in flat space and normalise before, after or around the sub-layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from ..norms import NormSpec
from .base import Number, Placement, Schedule, Site, add, require, schedule
from .parse import register


@dataclass(frozen=True)
class Decayed(Placement):
    """A flat scheme whose update may be scaled by depth: decay constant, alpha 1 is the published form."""

    decay: Schedule = field(default="constant", kw_only=True)
    alpha: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        super().check()
        require(self.alpha > 0, f"alpha must be positive, got {self.alpha}")

    def step(self, site: Site) -> Number:
        return schedule(self.decay, self.alpha, site.t, site.depth)


@register("pre")
@dataclass(frozen=True)
class Pre(Decayed):
    """Pre-Norm: the sub-layer reads the normalised stream, the stream itself is never normalised on the way."""

    equation = "x + s u(N(x)), s = 1"
    source = "Xiong et al. 2020, arXiv:2002.04745"

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm()}

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        return p["input"](x), None

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return add(x, u, self.step(site), h)


@register("post")
@dataclass(frozen=True)
class Post(Decayed):
    """Post-Norm: the stream is normalised after every addition. Needs no norm before the head."""

    equation = "N(x + s u(x)), s = 1"
    source = "Vaswani et al. 2017, arXiv:1706.03762; Xiong et al. 2020, arXiv:2002.04745"
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"stream": norm()}

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        out: Tensor = p["stream"](add(x, u, self.step(site), h))
        return out


@register("peri")
@dataclass(frozen=True)
class Peri(Decayed):
    """Peri-LN: norms before and after the sub-layer, the residual addition stays plain (Gemma 2 and 3)."""

    equation = "x + s N(u(N(x))), s = 1"
    source = "Kim et al. 2025, arXiv:2502.02732"

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"input": norm(), "output": norm()}

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        return p["input"](x), None

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        return add(x, p["output"](u), self.step(site), h)


@register("olmo2")
@dataclass(frozen=True)
class Olmo2(Placement):
    """Reordered norm of OLMo 2: only the output of the sub-layer is normalised."""

    equation = "x + N(u(x))"
    source = "OLMo team 2025, arXiv:2501.00656"

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
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"stream": norm()}

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        out: Tensor = p["stream"](add((2 * site.depth) ** 0.25 * x, u, 1.0, h))
        return out

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return base * (8 * site.depth) ** -0.25 if role in ("v", "o", "up", "gate", "down") else base


@register("lns")
@dataclass(frozen=True)
class LayerNormScaling(Placement):
    """LayerNorm scaling: Pre-Norm whose norm output shrinks with depth. Not to be combined with a scaled init."""

    equation = "x + u(N(x) / sqrt(t))"
    source = "Sun et al. 2025, arXiv:2502.05795"

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
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    def norms(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"stream": norm()}

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        out: Tensor = p["stream"](add(x, u, schedule("sqrt", 1.0, site.t, site.depth), h))
        return out
