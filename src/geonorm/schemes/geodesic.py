"""GeoNorm: the residual is a geodesic step on the sphere through the token."""

from dataclasses import dataclass, field
from math import expm1, inf, log, pi
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import sphere
from ..decay import Schedule, schedule
from ..norms import NormSpec, upcast
from ..ops import AngleMap, geodesic_step
from ..settings import TINIEST, Positive, Range
from .base import About, Number, Placement, Site, normalise_update
from .registry import register

Power = Annotated[float, Range(1e-6, rule="p must be at least 1e-6")]


@register("geonorm")
@dataclass(frozen=True)
class GeoNorm(Placement):
    """Geodesic step: the tangential part of the update rotates the token by at most max_angle, less with depth.

    With `entry=embedding` this is the paper's rule as far as it is known. The order of clamp and decay is from a
    third-party port of its Appendix D; no official code exists.

    SpheretNorm (arXiv:2608.02668) has a learned step size and another retraction:
    `geonorm(retraction=projection, learn=step, decay=constant, decay_on=update, max_angle=pi)`, or cayley, or a number.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "geonorm(decay=sqrt)", geonorm.Site(0, "mlp", 4), dim=8)
    >>> x = torch.randn(2, 8)
    >>> torch.allclose(layer(x).norm(dim=-1), x.norm(dim=-1))  # it turns the token and keeps its length
    True
    """

    about = About(
        equation="cos(a) x + sin(a) |x| v/|v|, a = (alpha/t) min(|v|/|x|, pi/4)",
        source="Zheng et al. 2026, arXiv:2601.22095",
        claim="Loss at 125M parameters against Pre-Norm: 1.8792 against 1.9032 on Arxiv, 3.4040 against 3.4437 on "
        "Books3.",
        checked="a third party's port of Eq. 3-5 and Appendix D run (SeonghwanSeo/kfold 6d64ae1), to rounding; no "
        "official code exists",
        law="s = r t, r' = 0",
    )

    stackable = ("alpha", "max_angle")

    decay: Schedule = field(default="harmonic", kw_only=True)
    """Decrease of the angle with block t: harmonic 1/t, sqrt 1/sqrt(t), linear (L - t + 1)/L, constant, a
    number p t^-p."""
    alpha: Positive = field(default=1.0, kw_only=True)
    """Factor on the decay."""
    max_angle: Annotated[float, Range(TINIEST, pi, "must lie in (0, pi]")] = field(default=pi / 4, kw_only=True)
    """Clamp of the angle in radians, before and after the decay; pi is no clamp."""
    decay_on: Literal["angle", "update"] = field(default="angle", kw_only=True)
    """angle: the decay follows the clamp, so that the largest angle falls with depth; update: it comes before."""
    index: Literal["block", "sublayer"] = field(default="block", kw_only=True)
    """block: the sub-layers of a block share t; sublayer: each has its own, t = 1 to 2L."""
    input: Literal["raw", "norm"] = field(default="raw", kw_only=True)
    """norm: the sub-layer reads N of the stream; raw: the stream itself."""
    update: Literal["raw", "norm", "unit"] = field(default="raw", kw_only=True)
    """raw: the step follows the output of the sub-layer; norm: N of it (a geodesic Peri-LN); unit: its tangential part
    at the length of x, so that all tokens rotate by one angle. Below |v|/|x| = 0.001 unit fades out."""
    retraction: Literal["exp", "projection", "cayley"] | Power = field(default="exp", kw_only=True)
    """Angle of a tangent vector of length t: exp t, projection atan(t), cayley 2 atan(t/2), a number p: p atan(t/p)
    (arXiv:2608.02668, inferred)."""
    learn: Literal["none", "gain", "affine", "step"] = field(default="none", kw_only=True)
    """Learned scalars per sub-layer: gain on the angle; affine, gain and bias; step, the size alpha, kept positive by a
    softplus. A clamped token gives them no gradient: max_angle=pi gives room."""
    after: Literal["none", "norm"] = field(default="none", kw_only=True)
    """norm: N with gains follows the geodesic step, as in Post-Norm, and sets the radius."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        norms = {"input": self.input, "output": self.update, "stream": self.after}
        parts: dict[str, Any] = {name: "norm" for name, wanted in norms.items() if wanted == "norm"}
        return parts if self.learn == "none" else {**parts, "angle": AngleScalars(self.learn, self.alpha)}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        turned = geodesic_step(x, normalise_update(u, p), self.turn(p, site), h)
        return p.stream(turned) if self.after == "norm" else turned

    def angles(self, p: Any, site: Site) -> AngleMap | None:
        return None if self.after == "norm" else self.turn(p, site)

    def turn(self, p: Any, site: Site) -> AngleMap:
        """The angle map of a site: depth enters as one number, before or after the clamp."""
        scalars = p.angle() if self.learn != "none" else {}
        alpha = scalars.pop("step", self.alpha)
        t, depth = site.t, site.depth
        if self.index == "sublayer":
            t, depth = site.number + 1, site.total
        rate = schedule(self.decay, alpha, t, depth)
        powers = {"exp": inf, "projection": 1.0, "cayley": 2.0}
        power = powers[self.retraction] if isinstance(self.retraction, str) else self.retraction
        place = {"angle": "post", "update": "pre"}[self.decay_on]
        falls = not isinstance(self.decay, float) or self.decay >= 0  # t^-p with p < 0 grows beyond alpha
        below = self.learn == "none" and (
            (isinstance(self.alpha, float) and self.alpha <= 1 and falls) or self.decay_on == "update"
        )
        angles = AngleMap(max_angle=self.max_angle, power=power, below=below, **{place: rate}, **scalars)
        return angles.level() if self.update == "unit" else angles

    def clamped(self, x: Tensor, u: Tensor, p: Any, site: Site) -> Tensor | None:
        if self.update == "unit":  # one angle for all: nothing is clamped
            return None
        wide = upcast(x)
        _, v = sphere.frame(wide, normalise_update(u, p).to(wide.dtype))
        ratio = sphere.safe_divide(sphere.radius(v), sphere.radius(wide))
        return self.turn(p, site).clamped(ratio).squeeze(-1)


class AngleScalars(nn.Module):
    """Learned scalars on the angle of one site, (1,) fp32: gain = 1, bias = 0, step = alpha at the start.

    `step` is stored as the number whose softplus it is, so that no optimizer step can turn the token backwards."""

    step: Tensor

    def __init__(self, learn: str, alpha: float) -> None:
        super().__init__()
        start = {
            "gain": {"gain": 1.0},
            "affine": {"gain": 1.0, "bias": 0.0},
            "step": {"step": alpha + log(-expm1(-alpha))},
        }[learn]
        self.names = tuple(start)
        for name, value in start.items():
            self.register_parameter(name, nn.Parameter(torch.tensor([value])))

    def forward(self) -> dict[str, Tensor]:
        """By name. Called as a module, so that whoever moves weights about (offloading, sharding) sees it asked for."""
        return {name: F.softplus(self.step) if name == "step" else getattr(self, name) for name in self.names}
