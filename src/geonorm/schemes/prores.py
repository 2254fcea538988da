"""ProRes: any scheme whose steps grow from 0 while training begins, early blocks first."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..norms import NormSpec, upcast
from ..ops import AngleMap, WeightedSum
from ..settings import Count
from .base import About, Number, Scheme, Site
from .combine import Nested
from .parts import Progress, parts_of, read_at
from .pre import Pre
from .registry import register


@register("prores")
@dataclass(frozen=True)
class ProRes(Nested):
    """Progressive residual warm-up: the step size h of another scheme grows from 0 to 1, in block t over t times
    `steps` optimizer steps. Under `geonorm` the angle grows.

    In your own loop call `geonorm.schemes.advance(model)` after each optimizer step; `geonorm train` and
    `geonorm.hf.Trainer` do so. The count is saved with the model.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "prores(geonorm, steps=10)", geonorm.Site(0, "mlp", 4), dim=8)
    >>> x = torch.randn(2, 8)
    >>> torch.equal(layer(x), x)  # no step is made yet
    True
    >>> geonorm.schemes.advance(layer, 10)
    >>> torch.equal(layer(x), x)
    False
    """

    about = About(
        equation="h = min(step / (steps t), 1) on the step of `scheme`",
        source="Chen et al. 2026 (ProRes), arXiv:2603.05369",
        claim="Perplexity on C4, 50B tokens, learning rates tuned, without and with it: Pre-Norm 14.67 to 14.30 "
        "(130M), 10.32 to 9.86 (1.3B); Post-Norm 14.84 to 14.72, 11.62 to 10.53; Sandwich-LN 14.55 to 14.50, 10.16 to "
        "9.94.",
        checked="official code run (dandingsky/ProRes 5253e0d) around pre, post, deepnorm and sandwich, bit for bit",
        lawless="its step grows over training: at the end the law is that of the scheme inside",
        why_from_start="its steps begin at 0 and grow with those of the optimizer",
        figure_at=2.0,
    )

    scheme: Scheme = field(default_factory=Pre)
    """Whose steps grow."""
    steps: Count = 1000
    """Optimizer steps until the first block makes whole steps; block t takes t times as long."""

    carries = True

    @property
    def depth_init(self) -> bool:  # type: ignore[override]
        return self.scheme.depth_init

    def resolve(self, site: Site) -> Scheme:
        inner = self.scheme.resolve(site)
        return inner if site.kind in ("entry", "exit") else replace(self, scheme=inner)

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return {**parts_of(self.scheme, site, norm), "progress": Progress()}

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Any, Any]:
        return read_at(self.scheme, x, p, site)

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, carry: Any = None) -> Tensor:
        share = self.share(p, site, upcast(x).dtype)
        carried = (carry,) if self.scheme.carries else ()
        return self.scheme.write(x, u, p, site, h * share, *carried)

    def share(self, p: Any, site: Site, dtype: torch.dtype) -> Tensor:
        """How much of its step the site makes by now, of one number."""
        return (p.progress.done.to(dtype) / (self.steps * site.t)).clamp(max=1.0)

    def angles(self, p: Any, site: Site) -> AngleMap | None:
        """A share of an angle is another angle map, where the scheme inside is one whose last minimum never binds."""
        inside = self.scheme.angles(p, site)
        if inside is None:
            return None
        return inside.share(self.share(p, site, site.t.dtype if isinstance(site.t, Tensor) else torch.float64))

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum | None:
        return self.scheme.offer(p, site, h * self.share(p, site, torch.float32))

    def clamped(self, x: Tensor, u: Tensor, p: Any, site: Site) -> Tensor | None:
        return self.scheme.clamped(x, u, p, site)

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        return self.scheme.slot(name, shape, dim, site)

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return self.scheme.init_std(role, fan_in, fan_out, site, base)

    def constrain(self, weights_by_role: Mapping[str, list[Tensor]]) -> None:
        self.scheme.constrain(weights_by_role)

    @property
    def constrains(self) -> bool:
        return self.scheme.constrains

    def recipe(self) -> dict[str, float]:
        return self.scheme.recipe()
