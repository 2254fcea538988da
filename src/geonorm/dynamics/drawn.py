"""What randomly drawn weights do to tokens that are nearly the same, before training: docs/theory-random-weights.md.

A sub-layer whose weights are drawn anew proposes an update at right angles to the token (to order width^-1/2), so that
a scheme turns every token by one angle phi, and the square of a small difference between directions becomes

    cos^2 phi + chi sin^2 phi

times what it was. phi is asked of the scheme's own `write`; chi belongs to the sub-layer: how much it stretches a
difference relative to its length. Attention averages tokens (chi = 0 for differences in full attention, 1/4 at last
under a causal mask, 1 for what all tokens share), an MLP has chi = E f'^2 m^2 / E f^2. Gradients go backwards through
the same factors, and a sub-layer's output matrix W gets |dL/dW| |W| ~ sin phi times what came from above.

Radii are in units of the scheme's N: |N(x)| = 1. Width is infinite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import atan2, cos, hypot, log, sin, sqrt

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import require
from ..schemes import Scheme, Site, read_at, write_at
from .fields import Attention
from .flow import Flow, check_values
from .rates import enter_radius
from .theory import LATE, SLOW, SUDDEN_LAYERS, Terminal, find_rest, grow, read_law

NODES = 200
"""Nodes of Gauss-Hermite quadrature; an even number has none at 0, where ReLU has its kink."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda y: F.relu(y).square(),
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class DrawnAttention:
    """Attention with drawn values and outputs: |u| = gain |y| for tokens that agree. Queries and keys do not matter
    there, nor does the number of heads: without positions in the scores every weight is one over the tokens seen."""

    gain: float = 1.0
    causal: bool = True
    kind = "attn"

    def propose(self, m: float, rule: Scheme, site: Site) -> tuple[float, float]:
        """(|u|, chi of a token alone) for |y| = m."""
        return self.gain * m * init_factor(rule, site, "v") * init_factor(rule, site, "o"), 1.0

    def averaging(self, n: int) -> Tensor:
        """(n, n): row j has the weights with which token j sees the others."""
        ones = torch.ones(n, n, dtype=torch.float64)
        return ones.tril() / torch.arange(1, n + 1, dtype=torch.float64)[:, None] if self.causal else ones / n


@dataclass(frozen=True)
class DrawnMlp:
    """down(act(up y)), or down(act(gate y) * up y) if gated: |u| = sqrt(E h^2), h the hidden units of normal
    pre-activations of standard deviation |y|. width, hidden: of the network, for schemes whose modules on hidden
    units know them."""

    activation: str = "gelu"
    gated: bool = False
    width: int = 1024
    hidden: int = 4096
    kind = "mlp"

    def propose(self, m: float, rule: Scheme, site: Site) -> tuple[float, float]:
        """(|u|, chi) for |y| = m."""
        # of what the matrices are drawn for, sqrt(width), which a scheme's own N need not have
        unit = enter_radius(rule, Site(0, "entry", site.depth), "rms", self.width) / sqrt(self.width)
        gain = init_factor(rule, site, "down") / unit
        up, gate = (
            m * unit * init_factor(rule, site, role) * self.slot_factor(rule, site, role) for role in ("up", "gate")
        )
        square, stretched = moments(self.activation, gate if self.gated else up)
        size, chi = gain * square**0.5, stretched / square
        return (size * up, chi + 1) if self.gated else (size, chi)

    def averaging(self, n: int) -> Tensor:
        """(n, n): each token sees itself."""
        return torch.eye(n, dtype=torch.float64)

    def slot_factor(self, rule: Scheme, site: Site, role: str) -> float:
        """The factor by which a scheme's module multiplies the hidden units of up or gate; 1 without such a module."""
        module = rule.slot(role, (self.hidden,), self.width, site)
        return 1.0 if module is None else module(torch.ones(self.hidden, dtype=torch.float64)).mean().item()


DrawnSublayer = DrawnAttention | DrawnMlp


def init_factor(rule: Scheme, site: Site, role: str) -> float:
    """The factor by which a scheme multiplies the base standard deviation of a weight."""
    return rule.init_std(role, 1, 1, site, 1.0)


@cache
def moments(activation: str, scale: float) -> tuple[float, float]:
    """(E f(sz)^2, E (s f'(sz))^2) of a standard normal z."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    z = torch.tensor(scale * nodes, requires_grad=True)
    with torch.enable_grad():
        f = ACTIVATIONS[activation](z)
        (slope,) = torch.autograd.grad(f.sum(), z)
    w = torch.tensor(weights / weights.sum())
    return (w * f.detach() ** 2).sum().item(), (w * (scale * slope) ** 2).sum().item()


BLOCK: tuple[DrawnSublayer, ...] = (DrawnAttention(), DrawnMlp())
SLOWEST = 0.25
"""Share of the square of a difference between tokens that is left after attention under a causal mask has averaged it,
in the slowest mode: the second token gives itself the weight one half. In full attention the share is 0."""


@dataclass(frozen=True)
class Turn:
    """What one sub-layer does to a token: radius before and after, how far it grew (their difference, of which no digit
    is lost where they are large), the angle phi, chi of a token."""

    sub: DrawnSublayer
    before: float
    after: float
    grown: float
    angle: float
    chi: float

    def stretch(self, chi: float) -> float:
        """The factor on the square of a difference of directions: with the turn's own chi of one that all tokens
        share."""
        return cos(self.angle) ** 2 + chi * sin(self.angle) ** 2

    def relative(self, averaged: float = SLOWEST) -> float:
        """The same factor for a difference between tokens, of whose square attention leaves the share `averaged`."""
        return self.stretch(self.chi * averaged if isinstance(self.sub, DrawnAttention) else self.chi)


class DrawnFlow:
    """A scheme as a network of `depth` blocks with drawn weights has it: how far each sub-layer turns a token.

    Raises ConfigError for a scheme whose step leaves the plane of x and u, or that changes the values in attention."""

    def __init__(self, scheme: str | Scheme, depth: int, subs: Sequence[DrawnSublayer] = BLOCK) -> None:
        self.flow = Flow(scheme, Attention(), depth)
        require(self.flow.scheme.planar, f"{self.flow.scheme} has no angle: its step leaves the plane of x and u")
        check_values(self.flow.scheme, depth)
        self.subs, self.depth = subs, depth

    @torch.no_grad()
    def turn_block(self, radius: float, t: float) -> list[Turn]:
        """The turns in a block of a token that enters it at depth-time t with this radius."""
        turns = []
        for sub in self.subs:
            rule, site = self.flow.rule(t - 1, sub.kind)
            x = torch.tensor([[radius, 0.0]], dtype=torch.float64)
            p = self.flow.parts_at(rule, site, 2, x)()
            y, carry = read_at(rule, x, p, site)
            size, chi = sub.propose(y[0].norm().item(), rule, site)
            u = torch.tensor([[0.0, size]], dtype=torch.float64)
            along, across = write_at(rule, x, u, p, site, carry=carry)[0].tolist()
            after = hypot(along, across)
            grown = ((along - radius) * (along + radius) + across**2) / (after + radius)
            turns.append(Turn(sub, radius, after, grown, atan2(across, along), chi))
            radius = after
        return turns

    @torch.no_grad()
    def turn_through(self) -> list[Turn]:
        """The turns in all blocks of a token whose embedding has radius 1."""
        radius = self.flow.enter(torch.tensor([[1.0, 0.0]], dtype=torch.float64)).norm().item()
        turns: list[Turn] = []
        for layer in range(self.depth):
            turns += self.turn_block(radius, layer + 1.0)
            radius = turns[-1].after
        return turns

    def find_law(self, averaged: float = SLOWEST) -> Terminal:
        """How the slowest difference between tokens shrinks, as 1 - cos, when depth goes on without end; exponents
        below 0: tokens move apart. `none` also where it stops: angles whose squares have a finite sum.
        Attention weighs tokens alike: that of `olmo2`, which reads a growing stream, turns hard under a causal mask,
        and the law ends."""
        start = self.turn_through()[-1].after
        rest = find_rest(lambda r: self.turn_block(r, LATE)[-1].after, start)
        grown = (rest, 0.0) if rest else grow(lambda r, t: sum(turn.grown for turn in self.turn_block(r, t)), start)
        if grown is None:
            return SLOW
        if any(turn.relative(averaged) < 1e-10 for turn in self.turn_block(grown[0], LATE)):
            return SUDDEN_LAYERS
        return read_law(lambda r, t: -sum(log(turn.relative(averaged)) for turn in self.turn_block(r, t)), *grown)


def pass_on(turn: Turn, products: Tensor, averaging: Tensor) -> Tensor:
    """Products <delta_i, delta_j> of the tokens' small changes of direction, (n, n), after a turn, exact at infinite
    width where the tokens agree but for these changes. averaging: of the sub-layer. With its transpose the same of
    gradients, r_i r_j <g_i, g_j> with g_i across the token, in front of the turn."""
    mixed = averaging @ products @ averaging.mT
    return cos(turn.angle) ** 2 * products + turn.chi * sin(turn.angle) ** 2 * mixed


def contrasts(turn: Turn, n: int) -> Tensor:
    """(n, n): how a sub-layer averages the differences of n tokens from one more, the first; what they share is never
    subtracted."""
    matrix = turn.sub.averaging(n + 1)
    return (matrix - matrix[:1])[1:, 1:]


def shrink_gap(turns: Sequence[Turn], tokens: int) -> list[float]:
    """Mean of 1 - cos over pairs of tokens that begin independent about one direction, in units of the beginning,
    before the first turn and after each."""
    products = [torch.eye(tokens - 1, dtype=torch.float64) + 1]
    for turn in turns:
        products.append(pass_on(turn, products[-1], contrasts(turn, tokens - 1)))
    gaps = [(tokens * each.trace() - each.sum()).item() for each in products]
    return [each / gaps[0] for each in gaps]
