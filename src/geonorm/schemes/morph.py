"""Morph: one scheme that becomes another while a model trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from math import pi
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import sphere
from ..norms import NormSpec, upcast
from ..settings import Count
from .base import About, Number, Scheme, Site, require
from .combine import Nested, state_of
from .geodesic import GeoNorm
from .grammar import parse
from .parts import Named, Parts, Progress, parts_of, read_at
from .pre import Pre
from .registry import register


def blend(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """From a (share 0) to b (share 1), row by row over the last axis and in the precision of the maths: directions
    along the chord between them, lengths geometrically, so that lengths far apart do not hide one of the two. The ends
    are a and b bit for bit. Where a or b is 0 it is the straight line; antipodal rows meet in 0."""
    a, b = upcast(a), upcast(b)
    one, other = sphere.radius(a), sphere.radius(b)
    flat = (one == 0.0) | (other == 0.0)
    one, other = torch.where(flat, 1.0, one), torch.where(flat, 1.0, other)
    chord = (1 - share) * (a / one) + share * (b / other)
    length = torch.exp((1 - share) * torch.log(one) + share * torch.log(other))
    between = torch.where(flat, (1 - share) * a + share * b, sphere.safe_divide(length, sphere.radius(chord)) * chord)
    return torch.where(share <= 0.0, a, torch.where(share >= 1.0, b, between))


@register("morph")
@dataclass(frozen=True)
class Morph(Nested):
    """From one scheme to another while a model trains: `geonorm convert --way gradual` converts with it.

    Reads, writes and both ends of the stream go from those of `source` to those of `target` over `steps` optimizer
    steps, by half a cosine (q is step / steps): all together, or block after block with the ends beside the first and
    the last. At step 0 it is the source and from `steps` on the target, bit for bit. It owns the parts of both, those
    of one name once, so that the weights are those of the source to begin with, and those of the target once `settle`
    has dropped what only the source had. Steps are counted as under `prores`.
    """

    about = About(
        equation="from source a to target b: along the chord, |a|^(1-s) |b|^s; s = (1 - cos(pi q)) / 2",
        source="here; the single gate that moves by a cosine is TaperNorm's, arXiv:2602.10408",
        claim="A way to convert a trained model: it claims nothing.",
        checked="its two ends: source and target, bit for bit",
        lawless="its rule changes over training: the law is that of the source at first, at the end that of the target",
        moment=0.5,
    )
    carries = True
    planar = False

    source: Scheme = field(default_factory=Pre)
    """What it is at first."""
    target: Scheme = field(default_factory=GeoNorm)
    """What it becomes."""
    steps: Count = 1000
    """Optimizer steps until it is the target."""
    course: Literal["global", "layers"] = "global"
    """global: every block at once; layers: the first block first, each in its share of the steps."""

    def check(self) -> None:
        one, other = state_of(self.source), state_of(self.target)
        require(
            one == other,
            f"no gradual way leads from {self.source} ({one}) to {self.target} ({other}): use schemes of one "
            "kind of stream",
        )

    @property
    def depth_init(self) -> bool:  # type: ignore[override]
        return self.source.depth_init

    def width(self, dim: int) -> int:
        return self.source.width(dim)

    def resolve(self, site: Site) -> Scheme:
        rule = replace(self, source=self.source.resolve(site), target=self.target.resolve(site))
        for part in rule.inside():
            require(
                not part.about.state,
                f"no gradual way leads from or to {part}: its stream, {part.about.state}, is no vector to be blended",
            )
            require(
                not (part.constrains or part.about.fresh),
                f"no gradual way leads from or to {part}: it constrains weights or changes over training itself",
            )
        return rule

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return self.join(parts_of(self.source, site, norm), parts_of(self.target, site, norm))

    def end_parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        return self.join(self.source.end_parts(site, norm), self.target.end_parts(site, norm))

    def join(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        require(
            "progress" not in {**one, **other},
            f"no gradual way leads from {self.source} to {self.target}: one of them changes over training itself",
        )
        for name in one.keys() & other.keys():
            require(
                alike(one[name], other[name]),
                f"no gradual way leads from {self.source} to {self.target}: {name} is something else in each",
            )
        return {**one, **{name: part for name, part in other.items() if name not in one}, "progress": Way(one, other)}

    def share(self, x: Tensor, p: Any, site: Site) -> Tensor:
        """How far the site is on its way, a 0-d tensor: 0 is the source, 1 the target."""
        done: Tensor = (p.progress.done.to(upcast(x).dtype) / self.steps).clamp(max=1.0)
        if self.course == "layers":
            done = (done * site.depth - site.layer).clamp(0.0, 1.0)
        return (1 - torch.cos(pi * done)) / 2

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        a, b = (part.enter(x, own, site) for part, own in self.each(p))
        return self.between(x, p, site, a, b)

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        a, b = (part.exit(x, own, site) for part, own in self.each(p))
        return self.between(x, p, site, a, b)

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, tuple[Any, Any]]:
        (a, one), (b, other) = (read_at(part, x, own, site) for part, own in self.each(p))
        return self.between(x, p, site, a, b), (one, other)

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, carry: Any = (None, None)) -> Tensor:
        a, b = (
            part.write(x, u, own, site, h, *((carried,) if part.carries else ()))
            for (part, own), carried in zip(self.each(p), carry, strict=True)
        )
        return self.between(x, p, site, a, b)

    def each(self, p: Any) -> Iterator[tuple[Scheme, Named]]:
        """Source and target, each with its own parts alone: what a scheme has not got decides what it does."""
        yield self.source, p.progress.of_source(p)
        yield self.target, p.progress.of_target(p)

    def between(self, x: Tensor, p: Any, site: Site, a: Tensor, b: Tensor) -> Tensor:
        return blend(a, b, self.share(x, p, site)).to(a.dtype)

    def clamped(self, x: Tensor, u: Tensor, p: Any, site: Site) -> Tensor | None:
        """Those that meet the ceiling of the target, from the first step of the way on."""
        found = self.target.clamped(x, u, p.progress.of_target(p), site)
        return None if found is None else found & (self.share(x, p, site) > 0)

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        for part in self.inside():
            require(
                part.slot(name, shape, dim, site) is None,
                f"no gradual way leads from or to {part}, which puts a module inside branch or head ({name})",
            )
        return None

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        return self.source.init_std(role, fan_in, fan_out, site, base)

    def recipe(self) -> dict[str, float]:
        return self.source.recipe()


class Way(Progress):
    """How many steps of the way are made, and whose each part is."""

    def __init__(self, source: Iterable[str], target: Iterable[str]) -> None:
        super().__init__()
        self.source, self.target = tuple(source), tuple(target)

    def of_source(self, p: Any) -> Named:
        return pick(p, self.source)

    def of_target(self, p: Any) -> Named:
        return pick(p, self.target)


def pick(p: Any, names: Iterable[str]) -> Named:
    """Of the parts of a site those of some names."""
    own = Named()
    for name in names:
        setattr(own, name, getattr(p, name))
    return own


def alike(a: Any, b: Any) -> bool:
    """Whether two parts of one name can be one: modules may begin at other values, of which the source's count."""
    if not isinstance(a, (nn.Module, nn.Parameter)):
        return bool(a == b)
    return isinstance(a, nn.Module) and type(a) is type(b) and form(a) == form(b)


def form(module: nn.Module) -> list[Any]:
    """What a module is but for the values of its tensors: shapes, and settings that are plain."""
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    plain = (int, float, str, tuple)
    settings = [
        {name: value for name, value in vars(inside).items() if name[0] != "_" and isinstance(value, plain)}
        for inside in module.modules()
    ]
    return [shapes, *settings]


def settle(model: nn.Module) -> None:
    """Puts every site and end of a model that is under a `morph` under its target, in place: parts that only the source
    had are gone, all others are the tensors that they were. ConfigError for a model that is not under one or has not
    come to the end of its way."""
    found = [module for module in model.modules() if isinstance(getattr(module, "own", None), Parts)]
    moving: list[Any] = [module for module in found if isinstance(getattr(module, "scheme", None), Morph)]
    require(bool(moving), f"this {type(model).__name__} is not under morph: there is no way to end")
    for module in moving:
        done, steps = int(module.own.progress.done), module.scheme.steps
        require(done >= steps, f"this {type(model).__name__} has made {done} of the {steps} steps of its way: train on")
    for module in moving:
        _, site, norm = module.own.made_from
        target, wanted = module.scheme.target, module.own.progress.target
        for name in [name for name in vars(module.own()) if name not in wanted]:
            delattr(module.own, name)
        module.scheme, module.own.made_from = target, (target, site, norm)
    for module in model.modules():
        name_target(module)


def name_target(module: Any) -> None:
    """Where a module names a `morph`, in its configuration or by itself, its target is named from now on."""
    config: Any = getattr(module, "config", None)
    own = vars(module).get("scheme")
    named = getattr(config, "scheme", None)
    rule = parse(named) if isinstance(named, str) else None
    if rule is not None and (target := arrived(rule)) != rule:
        try:
            config.scheme = str(target)
        except FrozenInstanceError:  # of a model of ours
            module.config = replace(config, scheme=str(target))
    if isinstance(own, Scheme):
        module.scheme = arrived(own)


def arrived(scheme: Scheme) -> Scheme:
    """The scheme with its target wherever a `morph` stands, inside combinators too."""
    if isinstance(scheme, Morph):
        return arrived(scheme.target)
    inside = {name: value for name, value in vars(scheme).items() if isinstance(value, Scheme)}
    changes = {name: arrived(value) for name, value in inside.items()}
    return scheme if changes == inside else replace(scheme, **changes)
