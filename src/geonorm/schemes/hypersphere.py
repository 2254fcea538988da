"""nGPT and anGPT: stream, weights and update live on the unit sphere, or near it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import pi, sqrt
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decay import Schedule, schedule
from ..norms import NormSpec, UnitNorm, upcast
from ..ops import WeightedSum
from ..settings import TINIEST, Range
from .base import About, Number, Placement, Site, drawn_std
from .registry import register
from .scales import Scale, Scaled, Times, UnitQuery


@dataclass(frozen=True)
class Interpolated(Placement):
    """What nGPT and anGPT share: stream of radius 1, a learned step per feature towards the update, no final norm, unit
    queries and keys, neither weight decay nor warm-up."""

    alpha: Annotated[float, Range(TINIEST, 1, "must lie in (0, 1]")] = field(default=0.05, kw_only=True)
    """Initial step size."""
    final: Literal["norm", "none"] = field(default="none", kw_only=True)

    def end_parts(self, site: Site, norm: NormSpec) -> Mapping[str, Any]:
        return super().end_parts(site, NormSpec("unit", norm.dim, gains=False, eps=0.0))

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        if name == "q_rope":
            return UnitQuery(shape, dim)
        if name == "k_rope":
            return UnitNorm(shape[-1])
        return None

    def constrain(self, weights_by_role: Mapping[str, list[Tensor]]) -> None:
        for role, weights in weights_by_role.items():
            for weight in weights:
                self.project(role, weight)

    def project(self, role: str, weight: Tensor) -> None:
        """Puts a weight back where it may be, in place."""
        raise NotImplementedError(f"{type(self).__name__} must say where its weights may be")

    def recipe(self) -> dict[str, float]:
        return {"weight_decay": 0.0, "warmup": 0.0}


@register("ngpt")
@dataclass(frozen=True)
class NGPT(Interpolated):
    """Normalised Transformer: a learned step per feature towards the normalised output, then back to the sphere.

    Weights are normalised along the model dimension after every optimizer step; queries, keys, MLP units and logits get
    learned scales. Following the official code where it and the text differ (both up and gate times sqrt(dim)).

    >>> weight = torch.randn(4, 8)
    >>> geonorm.parse("ngpt").constrain({"up": [weight]})
    >>> weight.norm(dim=1)
    tensor([1..., 1..., 1..., 1...])
    """

    about = About(
        equation="N(x + a (N(u(x)) - x)), a = 0.05 per feature, learned; |weights| = 1",
        source="Loshchilov et al. 2024, arXiv:2410.01131",
        claim="Official repository: validation loss about 2.77 to 2.80 against 2.89 of its GPT at 0.5B parameters, "
        "context 1024, 10k steps (read off a plot).",
        checked="official code run (NVIDIA/ngpt ed19eb2), whole model and weight constraint, to rounding",
        shipped="Nemotron-Labs-Dory1.0-4B, with the norm moved to where the next sub-layer reads, its blocks in loops",
        law="s = |A| / 0.05, r' = 0",
    )

    decay: Schedule = field(default="constant", kw_only=True)
    """How the step size falls with depth; the published form is constant."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return {"unit": UnitNorm(norm.dim), "alpha": Scale((norm.dim,), self.alpha, norm.dim**-0.5)}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        step = p.alpha().abs() * schedule(self.decay, 1.0, site.t, site.depth)
        target = p.unit(u)
        if isinstance(h, float) and h == 1.0:
            moved = torch.lerp(x, target, step.to(x.dtype))
        else:
            moved = x + h * step * (target - x)
        return p.unit(moved)

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        if name in ("up", "gate"):
            return Scaled(Scale(shape, dim**0.5, 1.0))
        if name == "logits":
            return Scaled(Scale(shape, 1.0, dim**-0.5))
        return super().slot(name, shape, dim, site)

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        """Raises ConfigError for output matrices that begin at 0."""
        return drawn_std(self, role, base, "keeps them on the sphere, where 0 has no gradient")

    def project(self, role: str, weight: Tensor) -> None:
        weight.copy_(F.normalize(weight, dim=0 if role in ("o", "down", "patch") else -1))


@register("angpt")
@dataclass(frozen=True)
class AnGPT(Interpolated):
    """Approximately normalised Transformer: nGPT without norms in the stream, kept near the sphere by fixed factors.

    Known from notes on the paper: the step and its factor nu(a) = 1/sqrt(a^2 + (1-a)^2), which keeps the norm if stream
    and update are orthogonal and unit; the factors sqrt(inputs/outputs) after every matrix and 3.74 after SiLU; rows
    of all weights kept at norm <= 1; step and logit scale stored at 0.01; norms on queries and keys kept; no weight
    decay, no warm-up.

    Inferred here: the factors of value and output projection cancel, as do those of up and down, and what is left
    stands on gate (width / sqrt(hidden), nGPT's sqrt(width) included) and up (1 / rms of SiLU of a normal gate: 3.72 at
    hidden = 4 width, near enough to the 3.74 of the notes to say what that number is). The step starts at 0.05 and the
    logit scale at 1, queries and keys carry a learned scale, and the embedding is put on the unit sphere, all as in
    nGPT. The factors presume a gated MLP; a GELU MLP is nearly linear under them.

    >>> weight = torch.full((1, 4), 2.0)
    >>> geonorm.parse("angpt").constrain({"up": [weight]})
    >>> weight
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    about = About(
        equation="(x + a (u(x) - x)) / sqrt(a^2 + (1-a)^2), a = 0.05 per feature, learned; |rows| <= 1",
        source="Franke et al. 2025 (anGPT), arXiv:2505.22014",
        claim="Notes on the paper: 1.40 times faster to the same loss than GPT with QK-norm on SlimPajama (nGPT 1.29 "
        "times), at 2.75 % more time per step (nGPT 9.6 %).",
        checked="notes only; the official code was not seen",
        law="s = r / 0.05, r' = 0.05 <θ,A>",
    )

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return {"alpha": Scale((norm.dim,), self.alpha, 0.01)}

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum:
        """In fp32: rounded factors would have one error at every site, and the stream no norm at its end."""
        step = h * upcast(p.alpha())
        factor = torch.rsqrt(step.square() + (1 - step).square())
        return WeightedSum(factor * (1 - step), factor * step)

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        if name == "gate":
            return Times(dim / sqrt(shape[-1]))
        if name == "up":
            return Times(1 / silu_rms(sqrt(dim / shape[-1])))
        if name == "logits":
            return Scaled(Scale(shape, 1.0, 0.01))
        return super().slot(name, shape, dim, site)

    def project(self, role: str, weight: Tensor) -> None:
        weight.div_(torch.linalg.vector_norm(weight, dim=-1, keepdim=True).clamp(min=1.0))


@cache
def silu_rms(std: float) -> float:
    """Root mean square of SiLU of a centred normal of this standard deviation, by the trapezoid rule over +-12 std."""
    z = torch.linspace(-12.0, 12.0, 4801, dtype=torch.float64, device="cpu")
    square = torch.trapezoid(F.silu(std * z).square() * torch.exp(-z * z / 2), z)
    return sqrt(square.item() / sqrt(2 * pi))
