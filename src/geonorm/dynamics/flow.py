"""The velocity field and the exact layer map of a scheme acting on particles under a field.

    velocity(x, tau) = d/dh write(x, field(read(x)); h) at h = 0,        layer(x, l) = write(x, field(read(x)); h = 1)

The state x is the residual stream of all particles, (..., n, dim) or (..., n, streams, dim), leading axes for seeds.
Time tau starts at 0 and is the layer of the site, so the depth-time of the schemes is t = tau + 1. N is unit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from .. import sphere
from ..errors import ConfigError, require
from ..norms import NormSpec
from ..schemes import Parts, Scheme, Site, parse, read_at, write_at
from .fields import Field
from .rates import chooses, derivative, motion, unit_parts, write_nothing

MOST_PARTS = 64
"""Most sites whose norms and learned numbers are held at once."""


def changed_values(scheme: Scheme, depth: int) -> str | None:
    """For a scheme that puts a module on the values inside attention, a message that says so: particle attention has no
    such module, and proposes something else. None for all other schemes."""
    for layer in range(depth if chooses(scheme) else 1):
        site = Site(layer, "attn", depth)
        rule = scheme.resolve(site)
        if rule.slot("v", (2, 2), 4, site) is not None:
            part = "" if rule == scheme else f" (its block {layer}: {rule})"
            return f"{scheme} changes v inside attention{part}"
    return None


def check_values(scheme: Scheme, depth: int) -> None:
    """ConfigError for a scheme with `changed_values`."""
    if reason := changed_values(scheme, depth):
        raise ConfigError(f"{reason}; particle attention does not: leave it out")


class Flow:
    """A scheme, the sub-layers of one layer and the depth L that schemes with a horizon refer to.

    field: one field (it stands at an `attn` site), or the sub-layers in order as (kind, field) pairs; a layer then
    moves every particle once per sub-layer. Raises ConfigError for an unknown scheme, for one whose state is not made
    of vectors of width dim, for a state of the wrong shape, and for zero vectors.

    >>> flow = geonorm.dynamics.Flow("post", geonorm.dynamics.Attention(beta=1.0))
    >>> x = flow.start(torch.eye(2))  # two orthogonal tokens turn towards each other
    >>> flow.velocity(x, 0.0).round(decimals=3) + 0.0
    tensor([[0.0000, 0.2690],
            [0.2690, 0.0000]])
    """

    def __init__(self, scheme: str | Scheme, field: Field | Sequence[tuple[str, Field]], depth: int = 1) -> None:
        self.scheme = parse(scheme)
        self.sublayers = list(field) if isinstance(field, Sequence) else [("attn", field)]
        self.depth = depth
        self.streams = self.scheme.streams
        self.parts: dict[tuple[object, ...], Parts] = {}
        self.opaque: set[tuple[Scheme, str, int]] = set()
        self.resting: dict[tuple[int, ...], Tensor] = {}

    # the ends of the stream

    def start(self, x: Tensor) -> Tensor:
        """The state at time 0 from embeddings (..., n, dim): entered, then on the sphere of a scheme that has one."""
        return self.settle(self.enter(x), 0.0)

    def enter(self, x: Tensor) -> Tensor:
        """The stream in front of the first layer from embeddings (..., n, dim), as the network enters it."""
        require((sphere.radius(x) != 0).all(), "a particle is the zero vector and has no direction: remove it")
        site = Site(0.0, "entry", self.depth)
        rule = self.scheme.resolve(site)
        return rule.enter(x, self.parts_at(rule, site, x.shape[-1], x)(), site)

    def settle(self, x: Tensor, tau: float, kind: str | None = None) -> Tensor:
        """The state that a step of size 0 leaves. kind: of the sub-layer, the first when not given."""
        rule, site = self.rule(tau, kind)
        return write_nothing(rule, self.parts_at(rule, site, x.shape[-1], x), x, site)

    def tokens(self, x: Tensor) -> Tensor:
        """Directions theta (..., n, dim), |theta| = 1, of what the head would read."""
        site = Site(self.depth - 1, "exit", self.depth)
        rule = self.scheme.resolve(site)
        out = rule.exit(x, self.parts_at(rule, site, x.shape[-1], x)(), site)
        return sphere.safe_divide(out, sphere.radius(out))

    def radius(self, x: Tensor) -> Tensor:
        """|x| of every particle, (..., n); of the largest stream where there are several."""
        radius = sphere.radius(x).squeeze(-1)
        return radius.amax(-1) if self.streams > 1 else radius

    # one site

    def rule(self, tau: float, kind: str | None = None) -> tuple[Scheme, Site]:
        """The scheme that acts at a time (combinators choose by layer), and its site."""
        site = Site(float(tau), kind or self.sublayers[0][0], self.depth)
        return self.scheme.resolve(site), site

    def parts_at(self, rule: Scheme, site: Site, dim: int, like: Tensor) -> Parts:
        """The norms and learned numbers at a site; shared by all layers for which the scheme describes them alike."""
        here = rule, site.kind, dim
        described = int(site.layer) if here in self.opaque else describe_parts(rule, site, dim)
        if isinstance(described, int):
            self.opaque.add(here)  # to describe modules is to make them: once is enough
            site = replace(site, layer=float(described))  # whatever time within the layer comes first
        key = (*here, described, like.dtype, like.device)
        if key not in self.parts:
            if len(self.parts) > MOST_PARTS:
                self.parts.clear()
                self.resting.clear()  # its keys are ids of parts, which other parts may get
            self.parts[key] = unit_parts(rule, site, dim, like)
        return self.parts[key]

    def update(self, x: Tensor, tau: float, sublayer: int = 0) -> Tensor:
        """The update that the sub-layer proposes, (..., n, dim): field(read(x))."""
        kind, field = self.sublayers[sublayer]
        rule, site = self.rule(tau, kind)
        y, _ = read_at(rule, x, self.parts_at(rule, site, x.shape[-1], x)(), site)
        return field(y, tau)

    def velocity(self, x: Tensor, tau: float) -> Tensor:
        """dx/dtau, shape of x: the sum over the sub-layers. Differentiable in x."""
        first, *others = (moved for moved, _ in self.motions(x, tau))
        return sum(others, start=first)

    def motions(self, x: Tensor, tau: float) -> Iterator[tuple[Tensor, Tensor | None]]:
        """`rates.motion` of each sub-layer."""
        for index, (kind, _) in enumerate(self.sublayers):
            rule, site = self.rule(tau, kind)
            parts = self.parts_at(rule, site, 2 if rule.planar else x.shape[-1], x)
            yield motion(rule, parts, x, self.update(x, tau, index), site)

    def check_forwards(self, x: Tensor, tau: float) -> None:
        """ConfigError if the scheme's schedule has ended by then, so that tokens turn away from their updates."""
        turns = [turn for _, turn in self.motions(x, tau) if turn is not None] if tau >= self.depth else []
        if any((turn < 0).any() for turn in turns):
            raise ConfigError(f"{self.scheme} runs backwards after its last layer: depth {self.depth}, time {tau:g}")

    def layer(self, x: Tensor, tau: float) -> Tensor:
        """The network: every sub-layer of the layer at tau, written with h = 1."""
        for kind, field in self.sublayers:
            rule, site = self.rule(tau, kind)
            p = self.parts_at(rule, site, x.shape[-1], x)()
            y, carry = read_at(rule, x, p, site)
            x = write_at(rule, x, field(y, tau), p, site, carry=carry)
        return x

    # what an integrator must know

    def breaks(self, start: float, end: float) -> list[float]:
        """Times inside (start, end) at which the velocity jumps: another scheme, or other weights of the field."""
        layers = range(int(start) + 1, ceil(end))
        if any(field.fresh for _, field in self.sublayers):
            return [float(layer) for layer in layers]
        if not chooses(self.scheme):
            return []

        def changes(layer: int) -> bool:
            return any(self.rule(layer, kind)[0] != self.rule(layer - 1, kind)[0] for kind, _ in self.sublayers)

        return [float(layer) for layer in layers[: max(0, self.depth - layers.start)] if changes(layer)]

    def keeps_radius(self, tau: float) -> Tensor:
        """Which streams move on their sphere, boolean (1,) or (streams, 1): their velocity has no radial part. A stream
        at rest does not count, since it may be written to later.

        Random states and updates are tried, so a scheme from elsewhere needs to say nothing. ConfigError where one
        sub-layer puts the stream on a sphere and another does not, or on another: no continuous time has both.
        """
        # one rule with one set of parts stays where it does at every time
        like = torch.empty((), dtype=torch.float64)
        sites = [self.rule(tau, kind) for kind, _ in self.sublayers]
        parts = [self.parts_at(*site, 3, like) for site in sites]
        key = tuple(map(id, parts))
        if key in self.resting:
            return self.resting[key]
        generator = torch.Generator().manual_seed(0)
        shape = (32, self.streams, 3) if self.streams > 1 else (32, 3)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        u = torch.randn(32, 3, generator=generator, dtype=torch.float64)
        first, *others = [self.settle(x, tau, kind) for kind, _ in self.sublayers]
        if not all(torch.allclose(first, other, rtol=1e-9, atol=1e-9) for other in others):
            kinds = " and ".join(dict.fromkeys(kind for kind, _ in self.sublayers))
            raise ConfigError(
                f"{self.scheme}: {kinds} do not put the stream on one sphere, which continuous depth cannot follow; "
                "choose --method layers"
            )
        velocities = [derivative(rule, p, first, u, site) for p, (rule, site) in zip(parts, sites, strict=True)]
        stays = [(sphere.dot(first, velocity).abs() < 1e-9).all(0) for velocity in velocities]
        moves = [(velocity != 0).any(-1, keepdim=True).any(0) for velocity in velocities]
        self.resting[key] = torch.stack(stays).all(0) & torch.stack(moves).any(0)
        return self.resting[key]


def describe_parts(rule: Scheme, site: Site, dim: int) -> object:
    """What tells the parts of a site from those of another: their description where it is plain data, else the layer,
    an int, since modules may be anything."""
    inside = site.kind not in ("entry", "exit")
    if inside and not callable(rule.parts):
        return None  # the same everywhere
    norm = NormSpec("unit", dim, gains=False, eps=0.0)
    parts = rule.parts(site, norm) if inside else rule.end_parts(site, norm)
    plain = all(isinstance(part, (str, int, float, tuple)) for part in parts.values())
    return tuple(parts.items()) if plain else int(site.layer)
