"""What a residual scheme is: where it stands (`Site`), what it does (`Scheme`), and how its depth-wise step is written.

A scheme says what a sub-layer reads and how its output is written back to the residual stream, with an explicit step
size h (h = 1 is the layer; d/dh at 0 is the velocity of the particle system). It is frozen data and maths: it owns no
tensor, its string is its name everywhere, and no code outside this package asks which scheme it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError, unknown
from ..norms import NormSpec

Number = float | Tensor
KINDS = ("attn", "mlp", "cross", "parallel", "entry", "exit")
INTERFACE = 1
"""Version of what a scheme from elsewhere may rely on: `Scheme`, `Placement`, `Site`. Runs and exports note it."""


@dataclass(frozen=True)
class Site:
    """Where a residual stands.

    layer: 0-based block; an int when a model is built, a 0-d tensor in a forward pass, a float for simulated time.
    kind: attn | mlp | cross | parallel, and entry, exit at the ends of the stream. depth: number of blocks L.
    Raises ConfigError for another kind, no blocks, and an int that is none of theirs.
    """

    layer: Any
    kind: str
    depth: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(unknown("kind of site", self.kind, KINDS))
        if self.depth < 1:
            raise ConfigError(f"depth is the number of blocks, at least 1, got {self.depth}")
        if isinstance(self.layer, int) and not 0 <= self.layer < self.depth:
            raise ConfigError(
                f"layers of {self.depth} blocks are 0 to {self.depth - 1}, got {self.layer}: count from 0"
            )

    @property
    def t(self) -> Any:
        """Depth-time layer + 1, the only one."""
        return self.layer + 1


Schedule = Literal["harmonic", "sqrt", "linear", "constant"] | float


def schedule(kind: str | float, alpha: Number, t: Any, depth: int) -> Number:
    """Step size at depth-time t = 1..depth: harmonic alpha/t, sqrt alpha/sqrt(t), linear alpha (depth-t+1)/depth; a
    number p alpha t^-p."""
    if isinstance(kind, float):
        return alpha * t**-kind
    if kind == "harmonic":
        return alpha / t
    if kind == "sqrt":
        return alpha / t**0.5
    if kind == "linear":
        return alpha * (depth - t + 1) / depth
    return alpha


def add(x: Tensor, u: Tensor, step: Number, h: Number = 1.0) -> Tensor:
    """x + h step u in the dtype of x; a step of exactly 1 costs one addition."""
    u = u.to(x.dtype)
    if isinstance(step, float) and isinstance(h, float):
        return x + u if step * h == 1.0 else torch.add(x, u, alpha=step * h)
    return x + (h * step) * u


@dataclass(frozen=True)
class Scheme:
    """Base of all schemes. A new one is a frozen dataclass with `write`; everything else has a default.

    Shapes: x is (..., dim), or (..., streams, dim); y and u are (..., dim). `p` is what `params` returned for the site.
    """

    streams = 1
    planar = True
    """One stream that stays in span{x, u}: with unit norms, write is a law of two numbers (rho, tau)."""
    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    claim: ClassVar[str] = ""
    """What its source reports, in one sentence."""
    checked: ClassVar[str] = ""
    """What the definition was compared with: paper, official code, transformers, notes only."""
    law: ClassVar[str] = ""
    """Speed factor s and radius law r' without fields, as docs/theory.md writes them; tests hold it against `write`."""
    lawless: ClassVar[str] = ""
    """Why there is no law (rho, tau), where the step leaves span{x, u} or knows more than x and u."""

    @property
    def layout(self) -> str:
        """What the state of a token is: schemes of one layout may follow one another in a model."""
        return "one stream" if self.streams == 1 else f"{self.streams} streams of {type(self).__name__}"

    def width(self, dim: int) -> int:
        """How many numbers the stream has along its last axis."""
        return dim

    def params(self, site: Site, norm: NormSpec) -> nn.Module | Mapping[str, nn.Module | nn.Parameter]:
        """The norms and scalars of this site, as a module or by name. Only what the scheme uses: no parameter without a
        gradient. Asked again to restore a plain nn.Parameter, so it may not depend on anything else."""
        return nn.ModuleDict()

    def resolve(self, site: Site) -> Scheme:
        """The scheme at this site: combinators choose, everything else is itself. Called when a Residual is built."""
        return self

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        """Embedding (..., dim) to the start of the stream."""
        return x

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        """End of the stream to what the head reads, (..., dim)."""
        return x

    def reader(self, p: Any) -> nn.Module | None:
        """The norm through which the sub-layer reads the stream, one of `p`; None: the stream as it is."""
        return None

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
        """What the sub-layer reads, and what `write` needs from the same look at x. The stream through the reader, and
        nothing, unless a scheme says otherwise."""
        norm = self.reader(p)
        return (x if norm is None else norm(x)), None

    def write(self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, h: Number = 1.0) -> Tensor:
        """The stream after the sub-layer proposed u. h a tensor: differentiable forward and backward in h."""
        raise NotImplementedError(f"{type(self).__name__} must define write(x, u, carry, p, site, h)")

    def write_read(
        self, x: Tensor, u: Tensor, carry: Any, p: Any, site: Site, then: Scheme, own: Any, at: Site, dtype: torch.dtype
    ) -> tuple[Tensor, tuple[Tensor, Any]]:
        """`write`, and the `read` of the site that follows within the block: of scheme `then` with parameters `own` at
        site `at`, whose branch computes in `dtype`. A scheme overrides it where one kernel does both."""
        x = self.write(x, u, carry, p, site)
        return x, then.read(x, own, at)

    @property
    def only_reads(self) -> bool:
        """Whether `read` is what `reader` says and no more."""
        return type(self).read is Scheme.read

    def seen(self, x: Tensor) -> Tensor:
        """The stream that measurements are about, (..., dim): the one sub-layers read."""
        return x if self.streams == 1 else x.select(-2, 0)

    def clamped(self, x: Tensor, u: Tensor, p: Any, site: Site) -> Tensor | None:
        """Which tokens meet the scheme's ceiling on the step, boolean (...); None where there is no ceiling."""
        return None

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        """A module inside branch or head, applied to q k v q_rope k_rope up gate logits, or None.

        shape: of the last axes it sees, (heads, head_dim) for attention, (hidden,) for the MLP, (vocabulary,) for the
        logits. dim: width of the model."""
        return None

    def plain_head(self) -> Scheme:
        """The same scheme without a slot on the logits and without a constraint on the head: what a model is under once
        the scale has been multiplied into the head."""
        return self

    def init_std(self, role: str, fan_in: int, fan_out: int, site: Site, base: float) -> float:
        """Initial standard deviation of a weight by role (embed position q k v o up gate down head), stated against
        the base."""
        return base

    def constrain(self, weights_by_role: Mapping[str, list[Tensor]]) -> None:
        """Projects weights in place, at initialisation and after each optimizer step, under no_grad."""

    def recipe(self) -> dict[str, float]:
        """Departures from the shared recipe that the scheme's paper asks for: weight_decay, warmup, lr, clip."""
        return {}

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises ConfigError when a field is outside its range; Literal fields are checked by the parser."""
        from .parse import check_fields

        check_fields(self)

    def __str__(self) -> str:
        from .parse import format_scheme

        return format_scheme(self)


@dataclass(frozen=True)
class Placement(Scheme):
    """A scheme with the usual ends: a gain-free N after the embedding, a gained N before the head."""

    entry: Literal["sphere", "embedding"] = field(default="sphere", kw_only=True)
    """sphere: the stream starts as the gain-free N of the embedding; embedding: as the raw embedding."""
    final: Literal["norm", "none"] = field(default="norm", kw_only=True)
    """Whether the stream is normalised once more before the language model's head."""

    def params(self, site: Site, norm: NormSpec) -> nn.Module:
        if site.kind == "entry":
            return nn.ModuleDict({"norm": norm(gains=False)} if self.entry == "sphere" else {})
        if site.kind == "exit":
            return nn.ModuleDict({"norm": norm()} if self.final == "norm" else {})
        return together(partial(self.norms, site, norm))

    def norms(self, site: Site, norm: NormSpec) -> Mapping[str, nn.Module | nn.Parameter]:
        """The norms and scalars of a residual inside a block, by name; a scalar may be a plain nn.Parameter."""
        return {}

    def enter(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return p["norm"](x) if self.entry == "sphere" else x

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return p["norm"](x) if self.final == "norm" else x


class Parts(nn.ModuleDict):
    """Modules and plain parameters by name: `p["alpha"]` is the parameter itself. A number is kept as (1,), which
    behaves alike in all arithmetic on tokens and which FSDP can shard."""

    def __init__(self, make: Callable[[], Mapping[str, nn.Module | nn.Parameter]]) -> None:
        super().__init__()
        self.make = make
        for name, part in make().items():
            if isinstance(part, nn.Parameter):
                self.register_parameter(name, as_vector(part))
            else:
                self.add_module(name, part)

    def __getitem__(self, key: str) -> Any:
        return self._parameters[key] if key in self._parameters else self._modules[key]

    def __contains__(self, key: str) -> bool:
        return key in self._parameters or key in self._modules

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gives the plain parameters the values that the scheme starts them with; the modules restore themselves."""
        with torch.device("cpu"):
            for name, part in self.make().items():
                if isinstance(part, nn.Parameter):
                    self._parameters[name].copy_(as_vector(part))  # type: ignore[union-attr]


def as_vector(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().reshape(1), parameter.requires_grad) if parameter.dim() == 0 else parameter


def together(make: Callable[[], Mapping[str, nn.Module | nn.Parameter]]) -> nn.Module:
    """Norms and scalars by name as one module."""
    parts = make()
    for name, part in parts.items():
        require(
            isinstance(part, (nn.Module, nn.Parameter)),
            f"{name} among the norms of a scheme must be a module or an nn.Parameter, got {type(part).__name__}",
        )
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    return nn.ModuleDict(modules) if len(modules) == len(parts) else Parts(make)


def own_parts(scheme: Scheme, site: Site, norm: NormSpec) -> nn.Module:
    """What a scheme's `params` says of a site, as one module."""
    own = scheme.params(site, norm)
    return own if isinstance(own, nn.Module) else together(partial(scheme.params, site, norm))  # type: ignore[arg-type]


def restore(own: nn.Module) -> None:
    """Gives every norm and scalar of a site its initial value, in the dtype it has."""
    for module in own.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
