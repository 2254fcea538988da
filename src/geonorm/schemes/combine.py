"""Combinators: schemes made of schemes, chosen by site when a Residual is built."""

from dataclasses import dataclass, field, replace
from math import floor
from typing import Annotated, Any, Literal

from torch import Tensor

from ..errors import require
from ..settings import Natural, Range, hints
from .base import About, Placement, Scheme, Site
from .flat import Post
from .grammar import parse, takes_scheme
from .pre import Pre
from .registry import register


def state_of(scheme: Scheme) -> str:
    """What a token is between two blocks, in words: schemes of one state may follow one another.

    >>> geonorm.schemes.state_of(geonorm.parse("mix(post, pre)"))
    'one stream'
    """
    if isinstance(scheme, Nested):
        return state_of(scheme.inside()[0])
    return "one stream" if scheme.streams == 1 else f"{scheme.streams} streams of {type(scheme).__name__}"


@dataclass(frozen=True)
class Nested(Scheme):
    """A scheme made of schemes, which may be given as text."""

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            if isinstance(value := getattr(self, name), str) and takes_scheme(hint):
                object.__setattr__(self, name, parse(value))
        super().__post_init__()

    def inside(self) -> list[Scheme]:
        return [value for value in vars(self).values() if isinstance(value, Scheme)]

    @property
    def streams(self) -> int:  # type: ignore[override]
        return self.inside()[0].streams

    def seen(self, x: Tensor) -> Tensor:
        return self.inside()[0].seen(x)


@dataclass(frozen=True)
class Combined(Nested):
    """Two schemes over one stream, of which `choose` says which stands where; the first wins where both recipes name
    a key."""

    entry: Literal["part", "sphere", "embedding"] = field(default="part", kw_only=True)
    """Embedding norm: part: that of the scheme of the first block; sphere, embedding: with, without."""

    def choose(self, site: Site) -> Scheme:
        raise NotImplementedError(f"{type(self).__name__} must choose a part by site")

    def check(self) -> None:
        one, other = self.inside()
        require(
            state_of(one) == state_of(other),
            f"cannot combine {one} ({state_of(one)}) with {other} ({state_of(other)}): use schemes of one kind of "
            "stream",
        )
        lawless = next((part.about.lawless for part in self.inside() if not part.planar), "")
        object.__setattr__(self, "about", replace(self.about, lawless=lawless))

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Any = 1.0) -> Tensor:
        raise TypeError(f"{self} stands for other schemes: call resolve(site) and use what it returns")

    def resolve(self, site: Site) -> Scheme:
        part = self.choose(site).resolve(site)
        if site.kind != "entry" or self.entry == "part":
            return part
        require(
            isinstance(part, Placement),
            f"entry={self.entry} of {self} cannot be set: {part} stands there and has no such field; set it in the "
            "schemes inside",
        )
        return replace(part, entry=self.entry)  # type: ignore[call-arg]

    def recipe(self) -> dict[str, float]:
        one, other = self.inside()
        return {**other.recipe(), **one.recipe()}


@register("mix")
@dataclass(frozen=True)
class Mix(Combined):
    """The first share of the blocks under `a`, the rest under `b`; post, pre and a quarter are Mix-LN.

    The embedding norm is that of the first block, the final norm that of the last.

    >>> mix = geonorm.parse("mix(post, pre, 0.25)")
    >>> [str(mix.resolve(geonorm.Site(layer, "mlp", 4))) for layer in range(4)]
    ['post', 'pre', 'pre', 'pre']
    """

    about = About(
        equation="a in the first floor(share L) blocks, b after them",
        source="Li et al. 2024 (Mix-LN), arXiv:2412.13795",
        claim="Perplexity on C4 as arXiv:2502.05795 reports it, Pre-Norm to Mix-LN: 26.73 to 26.07 (130M), 21.92 to "
        "21.39 (250M), but 19.58 to 1363 (350M) and 17.02 to 1415 (1B).",
        checked="official code run (pixeli99/MixLN ff45826), bit for bit",
    )

    a: Scheme = field(default_factory=Post)
    """Of the first blocks."""
    b: Scheme = field(default_factory=Pre)
    """Of the others."""
    share: Annotated[float, Range(0, 1, "must lie in [0, 1]")] = 0.25
    """How much of the depth is a's."""

    def choose(self, site: Site) -> Scheme:
        # 0.58 of 50 blocks is 29, not the 28.999... of the product
        return self.a if site.layer < floor(self.share * site.depth + 1e-9) else self.b


@register("first")
@dataclass(frozen=True)
class First(Combined):
    """The first few blocks under `a`, the rest under `b`: `first(hybrid(input=norm), hybrid)` is HybridNorm*.

    >>> print(geonorm.parse("first(post, geonorm)").resolve(geonorm.Site(0, "attn", 4)))
    post
    """

    about = About(
        equation="a in the first n blocks, b after them; n = blocks",
        source="the form of HybridNorm*, Zhuo et al. 2025, arXiv:2503.04598",
        claim="A combinator: it claims nothing.",
        checked="official code of HybridNorm* run (BryceZhuo/HybridNorm f0dd605), to rounding",
    )

    a: Scheme = field(default_factory=Post)
    """Of the first blocks."""
    b: Scheme = field(default_factory=Pre)
    """Of the others."""
    blocks: Natural = 1
    """How many are a's."""

    def choose(self, site: Site) -> Scheme:
        return self.a if site.layer < self.blocks else self.b


@register("per_kind")
@dataclass(frozen=True)
class PerKind(Combined):
    """One scheme for attention (cross attention and parallel blocks too), another for the MLP.

    >>> scheme = geonorm.schemes.PerKind("geonorm", "pre")
    >>> print(scheme.resolve(geonorm.Site(0, "attn", 4)), scheme.resolve(geonorm.Site(0, "mlp", 4)))
    geonorm pre
    """

    about = About(
        equation="attn at attention, mlp at the MLP",
        source="the idea of HybridNorm, Zhuo et al. 2025, arXiv:2503.04598",
        claim="A combinator: it claims nothing.",
        checked="nothing: the default, Pre-Norm at attention and Post-Norm at the MLP, is ours",
    )

    attn: Scheme = field(default_factory=Pre)
    """Around attention, cross attention and parallel blocks. It also sets the embedding norm and the final norm."""
    mlp: Scheme = field(default_factory=Post)
    """Around the MLP."""

    def choose(self, site: Site) -> Scheme:
        return self.mlp if site.kind == "mlp" else self.attn
