"""What a residual scheme is: where it stands (`Site`), what it does (`Scheme`), and how its depth-wise step is written.

A scheme says what a sub-layer reads and how its output is written back to the residual stream, with an explicit step
size h (h = 1 is the layer; d/dh at 0 is the velocity of the particle system). It is frozen data and maths: it owns no
tensor, its string is its name everywhere, and no code outside this package asks which scheme it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError, require, unknown
from ..norms import NormSpec
from ..ops import AngleMap, WeightedSum
from ..settings import check
from .registry import format_scheme, name_of

Number = float | Tensor
KINDS = ("attn", "mlp", "cross", "parallel", "entry", "exit")
LARGEST = 1e30  # what fp32 can still be multiplied with
INTERFACE = 2
"""Version of what a scheme from elsewhere may rely on: `Scheme`, `Placement`, `Site`. Runs and exports note it."""


@dataclass(frozen=True)
class Site:
    """Where a residual stands.

    layer: 0-based block; an int, a 0-d tensor in a forward pass that is compiled or transformed, a float for simulated
    time.
    kind: attn | mlp | cross | parallel, and entry, exit at the ends of the stream. depth: number of blocks L.
    sublayers: residuals of a block, 3 where cross-attention stands between attention and MLP; 1 at the ends of a model
    of parallel sites, which have 2 themselves, for attention and MLP. Of a model of two stacks each counts its own
    blocks.
    Raises ConfigError for another kind, no blocks, and an int that is none of theirs.

    >>> site = geonorm.Site(2, "mlp", 12)
    >>> site.t, site.number, site.total
    (3, 5, 24)
    """

    layer: Any
    kind: str
    depth: int
    sublayers: int = 2

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(unknown("kind of site", str(self.kind), KINDS))
        require(
            hasattr(self.depth, "__index__") and self.depth >= 1,
            f"depth is the number of blocks, at least 1, got {self.depth!r}",
        )
        require(self.kind != "cross" or self.sublayers > 2, "blocks with cross-attention have sublayers=3")
        whole = hasattr(self.layer, "__index__") and not isinstance(self.layer, Tensor)
        if not hasattr(self.layer, "__float__") or (whole and not 0 <= self.layer < self.depth):
            last = self.depth - 1
            raise ConfigError(f"layers of {self.depth} blocks are 0 to {last}, counted from 0, got {self.layer!r}")

    @property
    def t(self) -> Any:
        """Depth-time t = layer + 1, the t of every formula."""
        return self.layer + 1

    @property
    def number(self) -> Any:
        """0-based place among the residuals of its stack: each sub-layer of a block counts, a parallel block once."""
        if self.kind == "parallel":
            return self.layer
        within = {"mlp": self.sublayers - 1, "cross": 1}.get(self.kind, 0)
        return self.sublayers * self.layer + within

    @property
    def total(self) -> int:
        """How many residuals its stack has, as `number` counts them."""
        return self.depth if self.kind == "parallel" else self.sublayers * self.depth


def add(x: Tensor, u: Tensor, step: Number, h: Number = 1.0) -> Tensor:
    """x + h step u; a step of exactly 1 costs one addition."""
    if isinstance(step, float) and isinstance(h, float):
        return x + u if step * h == 1.0 else torch.add(x, u, alpha=step * h)
    return x + (h * step) * u


def drawn_std(scheme: Scheme, role: str, base: float, why: str) -> float:
    """The standard deviation `base`; ConfigError where that of an output matrix is 0 and the scheme would leave it
    there for ever. why: what the scheme does to such a matrix, said of `it`."""
    if base == 0 and role in ("o", "down"):
        raise ConfigError(
            f"under {scheme} output matrices that begin at 0 would stay there: it {why}; choose another model.init, "
            "such as fan_in"
        )
    return base


def normalise_update(u: Tensor, p: Any) -> Tensor:
    """u through the part called output, if there is one."""
    norm = getattr(p, "output", None)
    return u if norm is None else norm(u)


@dataclass(frozen=True)
class About:
    """What is known of a scheme; the catalogue, the documentation and tests read it.

    >>> geonorm.parse("pre").about.law
    "s = r, r' = <θ,A>"
    """

    equation: str = ""
    source: str = ""
    claim: str = ""
    """What its source reports, in one sentence."""
    checked: str = ""
    """What the definition was compared with: paper, official code, transformers, notes only."""
    shipped: str = ""
    """Models that ship the rule, as their code in transformers shows."""
    law: str = ""
    """Speed factor s and radius law r' with default settings, as docs/theory.md writes them; tests hold it against
    `write`."""
    lawless: str = ""
    """Why there is no law (rho, sigma), where the step leaves span{x, u} or knows more than x and u."""
    why_from_start: str = ""
    """Why it is for models that are trained from the start alone."""
    figure_of: str = ""
    """The scheme of the figure, where one with default settings stands still at first."""
    figure_at: float = 0.0
    """When it is drawn, of a scheme that changes over training: optimizer steps that are made, over its `steps`."""


@dataclass(frozen=True)
class Scheme:
    """Base of all schemes. A new one is a frozen dataclass with `parts` and `write`, or `terms`; everything else has a
    default.

    Shapes: x is (..., dim), or (..., streams, dim); y and u are (..., dim). `p` has the parts of the site by name.

    A class may name fields in `stackable`, numbers that its forward pass takes from the scheme alone, and also as
    tensors of one number. `--launcher stacked` then trains models that differ in these as one. It is not inherited.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Half(geonorm.Scheme):
    ...     parts = {"input": "norm"}
    ...     def write(self, x, u, p, site, h=1.0):
    ...         return x + 0.5 * h * u
    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), Half(), geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about: ClassVar[About] = About()
    parts: ClassVar[Any] = {}
    """What a residual inside a block owns, by name: "norm", a number (a learned scalar, shape (1,)), (number, "dim")
    (a learned vector), an nn.Parameter or a module. Where it depends on the fields or the site: a method
    `parts(self, site, norm)` that returns such a dictionary; norm() makes an N. Only what the scheme uses. All of it
    begins with the values that it is given here; it is asked for again to be restored, so it may not depend on
    anything else, and what is drawn follows from the seed and the site. In `write`, p.name is called where it is a
    module, and a tensor where it is not."""
    carries: ClassVar[bool] = False
    """True: `read` returns (y, carry), and `write` takes the carry as its last argument."""
    streams = 1
    adds: ClassVar[bool] = False
    """Whether `terms` are those of `write`: noted of every class when it is defined."""
    depth_init: ClassVar[bool] = False
    """Whether its own initial values fall with depth, or ask for ones that do not: what `init` itself takes off output
    matrices for depth (gpt2, neox) is left out then, so that depth counts once."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        attributes = vars(cls)
        write, angles, terms = (
            next(n for n, base in enumerate(cls.__mro__) if name in vars(base)) for name in ("write", "angles", "terms")
        )
        if write < angles:
            cls.angles = Scheme.angles  # type: ignore[method-assign]  # those of a base do not fit another write
        cls.adds = terms <= write
        settings = {each.name for base in cls.__mro__[1:] if is_dataclass(base) for each in fields(base)}
        for name in sorted(settings & attributes.keys() - cls.__annotations__.keys()):
            raise ConfigError(
                f"{cls.__name__}: {name} without a type does not change the field of that name, write for example "
                f"{name}: {type(attributes[name]).__name__} = {attributes[name]!r}"
            )

    @property
    def planar(self) -> bool:
        """One stream that stays in span{x, u}: with unit norms, write is a law of two numbers (rho, sigma)."""
        return self.streams == 1 and not self.about.lawless

    def end_parts(self, site: Site, norm: NormSpec) -> Mapping[str, Any]:
        """As `parts`, for the entry to the stream and the exit from it."""
        return {}

    def resolve(self, site: Site) -> Scheme:
        """The scheme at this site: combinators choose, everything else is itself. Called when a Residual is built."""
        return self

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        """Embedding (..., dim) to the start of the stream."""
        return x

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        """End of the stream to what the head reads, (..., dim)."""
        return x

    def read(self, x: Tensor, p: Any, site: Site) -> Any:
        """What the sub-layer reads: the stream, through the part called input if there is one."""
        norm = getattr(p, "input", None)
        return x if norm is None else norm(x)

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        """The stream after the sub-layer proposed u, which has the dtype of x; the result is cast to it. h a tensor:
        differentiable forward and backward in h."""
        terms = self.terms(p, site, h)
        if terms is None:
            raise NotImplementedError(f"{type(self).__name__} must define write(x, u, p, site, h)")
        return terms(x, u)

    def terms(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum | None:
        """The write as a weighted sum of stream and update, for a scheme whose write is one: `write` computes it, and
        fused kernels do, with what the next site reads, in one pass. None for any other write."""
        return None

    def offer(self, p: Any, site: Site, h: Number = 1.0) -> WeightedSum | None:
        """The weighted sum for the kernels; None where a class below has another write."""
        return self.terms(p, site, h) if self.adds else None

    def angles(self, p: Any, site: Site) -> AngleMap | None:
        """The angle map of a `write` that is a geodesic step of u, or of p.output(u) where there is such a part: fused
        kernels then write, and read for the next site, in one pass. None for any other write."""
        return None

    def seen(self, x: Tensor) -> Tensor:
        """The stream that measurements are about, (..., dim): the one sub-layers read."""
        return x if self.streams == 1 else x.select(-2, 0)

    def clamped(self, x: Tensor, u: Tensor, p: Any, site: Site) -> Tensor | None:
        """Which tokens meet the scheme's clamp of the step, boolean (...); None where there is no clamp."""
        return None

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        """A module inside branch or head, applied to q k v q_rope k_rope up gate logits, or None.

        shape: of the last axes it sees, (heads, head_dim) for attention, (hidden,) for the MLP, (vocabulary,) for the
        logits. dim: width of the model. Asked again to restore it, as `parts` is."""
        return None

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        """Initial standard deviation of a weight by role (embed values patch position class_token q k v o up gate
        down head transform), stated against the base."""
        return base

    def constrain(self, weights_by_role: Mapping[str, list[Tensor]]) -> None:
        """Projects weights in place, at initialisation and after each optimizer step, under no_grad."""

    @property
    def constrains(self) -> bool:
        """True if `constrain` does anything."""
        return type(self).constrain is not Scheme.constrain

    def recipe(self) -> dict[str, float]:
        """Departures from the shared recipe that the scheme's paper asks for: weight_decay, warmup, lr, clip."""
        return {}

    def __post_init__(self) -> None:
        """Raises ConfigError where a field is not what its type says, limits included, or a number is not finite."""
        cls = type(self)
        try:
            fields_here = [name for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)]
            if fields_here and "__dataclass_fields__" not in vars(cls):
                raise ConfigError(f"{', '.join(fields_here)}: fields need @dataclass(frozen=True) above the class")
            for name, value in vars(self).items():
                if isinstance(value, (int, float)) and not abs(value) <= LARGEST:
                    raise ConfigError(f"{name} must be a finite number of at most {LARGEST:g}, got {float(value):g}")
            check(self)
        except ConfigError as error:
            raise ConfigError(f"scheme {name_of(cls)}: {error}") from None
        self.check()

    def check(self) -> None:
        """Raises ConfigError where fields do not fit each other."""

    def __str__(self) -> str:
        return format_scheme(self)


@dataclass(frozen=True)
class Placement(Scheme):
    """A scheme with the usual ends: a gain-free N after the embedding, a gained N before the head.

    >>> print(geonorm.schemes.Pre(entry="embedding"))
    pre(entry=embedding)
    """

    entry: Literal["sphere", "embedding"] = field(default="sphere", kw_only=True)
    """sphere: with embedding norm, the stream starts as N of the embedding without gains; embedding: without."""
    final: Literal["norm", "none"] = field(default="norm", kw_only=True)
    """norm: a norm stands before the language model's head; none: it reads the stream itself."""

    def end_parts(self, site: Site, norm: NormSpec) -> Mapping[str, Any]:
        if site.kind == "entry":
            return {"norm": norm(gains=False)} if self.entry == "sphere" else {}
        return {"norm": norm()} if self.final == "norm" else {}

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return p.norm(x) if self.entry == "sphere" else x

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return p.norm(x) if self.final == "norm" else x


@dataclass(frozen=True)
class Copied(Placement):
    """A scheme of several streams that start as copies of one."""

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return torch.stack((super().enter(x, p, site),) * self.streams, dim=-2)


def enter_as(scheme: Scheme, entry: str) -> Scheme:
    """The scheme with another entry; itself where it has no such field.

    >>> print(geonorm.schemes.enter_as(geonorm.parse("geonorm"), "embedding"))
    geonorm(entry=embedding)
    """
    return replace(scheme, entry=entry) if isinstance(scheme, Placement) else scheme  # type: ignore[arg-type]
