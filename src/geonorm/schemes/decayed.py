"""Flat schemes whose steps may fall with depth and be clamped."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from .. import sphere
from ..decay import Schedule, schedule
from ..norms import upcast
from ..ops import AngleMap, WeightedSum
from ..settings import Positive
from .base import Number, Placement, Site, add, normalise_update


@dataclass(frozen=True)
class Decayed(Placement):
    """A flat scheme whose update may be scaled by depth and clamped. Decay constant, alpha 1, no clamp
    are the published form.

    With a clamp c the step is as long as GeoNorm's angle is wide, |step|/|x| = min(s min(|u|/|x|, c), c). A token
    whose squared length underflows is not clamped, so that a stream can leave 0.
    """

    decay: Schedule = field(default="constant", kw_only=True)
    """Decrease of the step with block t: harmonic 1/t, sqrt 1/sqrt(t), linear (L - t + 1)/L, constant, a number p
    t^-p."""
    alpha: Positive = field(default=1.0, kw_only=True)
    """Factor on the decay."""
    max_step: Literal["none"] | Positive = field(default="none", kw_only=True)
    """Clamp of |step|/|x|, as max_angle of geonorm is one of its angle."""

    def step(self, site: Site) -> Number:
        # t costs an operation on a tensor: only where it is needed
        return self.alpha if self.decay == "constant" else schedule(self.decay, self.alpha, site.t, site.depth)

    def proposal(self, x: Tensor, u: Tensor, p: Any) -> Tensor:
        """What is added, before decay and clamp."""
        return normalise_update(u, p)

    def share(self, x: Tensor, q: Tensor, site: Site) -> Number:
        """How much of q is added: s, or, with a clamp, what each token may take, (..., 1)."""
        if self.max_step == "none":
            return self.step(site)
        wide = upcast(x)
        q, squared = q.to(wide.dtype), sphere.dot(wide, wide)
        return self.lengths(site).quotient(sphere.safe_divide(sphere.dot(q, q), squared, sphere.vanishes(squared)))

    def add(self, x: Tensor, q: Tensor, site: Site, h: Number = 1.0) -> Tensor:
        """x + h s q, within the clamp."""
        share = self.share(x, q, site)
        return add(x, q, share, h) if self.max_step == "none" else upcast(x) + h * share * upcast(q)

    def lengths(self, site: Site) -> AngleMap:
        """From |q|/|x| to |step|/|x|."""
        return AngleMap(post=self.step(site), max_angle=self.max_step)  # type: ignore[arg-type]

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum | None:
        if self.max_step != "none":
            return None
        return WeightedSum(scale=h * self.step(site), norm=getattr(p, "output", None))

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        terms = self.terms(p, site, h)
        return self.add(x, self.proposal(x, u, p), site, h) if terms is None else terms(x, u)

    def clamped(self, x: Tensor, u: Tensor, p: Any, site: Site) -> Tensor | None:
        if self.max_step == "none":
            return None
        x = upcast(self.seen(x))
        q = self.proposal(x, u, p).to(x.dtype)
        return self.lengths(site).clamped(sphere.safe_divide(sphere.radius(q), sphere.radius(x))).squeeze(-1)
