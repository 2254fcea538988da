"""What the mathematics says before anything is simulated: the closed equation of equiangular particles, the law by
which they come together at last, and how fast they begin. Proofs: docs/theory.md.

Nothing here knows a scheme. What a scheme contributes is asked of its definition, in the frame of a token: what it
reads (m = |read(x)|), how fast it turns (s) and grows (r') under a given update. Particles of equal radii with
<theta_i, theta_j> = gamma stay so under full attention with Q = K = V = I, and the system is two numbers, gamma and r:

    gamma' = (2/s) m p (1 - gamma) (1 + (n-1) gamma),   p = e^{b gamma} / (e^b + (n-1) e^{b gamma}),   b = beta m^2.

Time tau starts at 0, depth-time is t = tau + 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isclose, isfinite, log, sqrt

import torch
from torch import Tensor

from ..errors import require
from ..schemes import Scheme, parse, read_at
from ..schemes.registry import name_of
from .fields import Attention
from .flow import Flow
from .laws import gap as mean_gap
from .rates import in_plane, settled_radius

LATE = 1e9
"""Depth-time at which the terminal law is read off."""
TRIES, STEADY = 50, 1 - 1e-6
"""TRIES: steps of the search for a radius at rest. A radius counts as drawn to rest if each layer shortens its distance
from there at least by the factor STEADY."""
RESTS = 1e-6
"""A radius that grows by less than this share of itself while 1 - cos falls by a factor e counts as at rest: by a
thousandth, as long as 1 - cos is a number in fp64."""
NEAR = 1e-8
"""Smallest tangential part of an update, relative to the radial one, whose step is as good as the limit."""


@dataclass(frozen=True)
class Terminal:
    """1 - cos at late depth-time t: t^-exponent (polynomial), e^(-exponent sqrt(t)) (stretched), e^(-exponent t)
    (exponential); `none` where it is none of these, and then without an exponent."""

    kind: str
    exponent: float | None
    """Below 0 where tokens move apart."""
    why: str = ""
    """For `none`: what happens to the tokens instead."""

    def __str__(self) -> str:
        if self.exponent is None:
            return "none"
        k = f"{-self.exponent:.4g}"
        return {"polynomial": f"t^{k}", "stretched": f"e^({k} sqrt(t))", "exponential": f"e^({k} t)"}[self.kind]


NO_LAW = Terminal("none", None, "their rate is no power of t")
STILL = Terminal("none", None, "steps come to an end or have a finite sum, and tokens stop on the way")
SLOW = Terminal("none", None, "the radius follows no power of t")
SUDDEN_LAYERS = Terminal("none", None, "whole layers make near tokens equal at once, or have unequal radii")
FAR, SUDDEN = 0.01, 5.0
"""A token turns suddenly if it turns more than SUDDEN times as fast under a tangential part of NEAR as under FAR."""


class Frame:
    """A scheme as one token of radius r sees it at time tau: three numbers are all that the closed equation needs."""

    def __init__(self, scheme: str | Scheme, depth: int) -> None:
        self.flow = Flow(scheme, Attention(), depth)
        require(
            self.flow.scheme.planar, f"{self.flow.scheme} has no closed equation: its step leaves the plane of x and u"
        )

    def read(self, radius: float, tau: float) -> float:
        """m: the radius of what the sub-layer reads."""
        rule, site = self.flow.rule(tau)
        x = torch.tensor([[radius, 0.0]], dtype=torch.float64)
        y, _ = read_at(rule, x, self.flow.parts_at(rule, site, 2, x)(), site)
        return y[0, 0].item()

    def rates(self, radius: float, tau: float, radial: float, tangential: float) -> tuple[float, float]:
        """(dsigma/dh over the settled r = 1/s, r') under an update of these components along and across the token."""
        rule, site = self.flow.rule(tau)
        x = torch.tensor([[radius, 0.0]], dtype=torch.float64)
        u = torch.tensor([[radial, max(tangential, NEAR * abs(radial))]], dtype=torch.float64)
        parts = self.flow.parts_at(rule, site, 2, x)
        drho, dsigma, _ = in_plane(rule, parts, x, u, site)
        return dsigma.item() / settled_radius(rule, parts, x, site).item(), drho.item() * radius

    def settle(self, radius: float, tau: float) -> float:
        """The radius after a step of size 0."""
        return self.flow.settle(torch.tensor([[radius, 0.0]], dtype=torch.float64), tau).norm().item()

    def slowest(self, radii: Tensor, tau: float, beta: float, causal: bool) -> float:
        """lambda near collapse for radii (n,) of their own that do not change: token i turns towards k at the rate
        w_ik = p_ik |read(x_k)| / s_i, p_ik = softmax_k(beta |read(x_i)| |read(x_k)|), and 1 - cos shrinks at twice the
        smallest rate of a mode that is not common to all. w is a symmetric kernel between positive diagonals, so its
        spectrum is real; a causal one is triangular."""
        rule, site = self.flow.rule(tau)
        x = torch.stack((radii, torch.zeros_like(radii)), -1)
        parts = self.flow.parts_at(rule, site, 2, x)
        m = read_at(rule, x, parts(), site)[0][:, 0]
        scores = beta * m[:, None] * m
        p = torch.softmax(scores.tril() + torch.full_like(scores, -torch.inf).triu(1) if causal else scores, -1)
        along = p @ m
        _, turn, _ = in_plane(rule, parts, x, torch.stack((along, NEAR * along), -1), site)
        w = p * m * turn / radii[:, None]
        if causal:
            return 2 * (w.sum(1) - w.diagonal())[1:].min().item()
        return 2 * torch.linalg.eigvalsh(w.sum(1).diag() - (w * w.mT).sqrt())[1].item()

    def whole(self, radius: float, tau: float, causal: bool) -> float:
        """-log of the factor by which one layer, h = 1, shrinks 1 - cos of two tokens that are nearly one."""
        flow = Flow(self.flow.scheme, Attention(0.0, causal=causal), self.flow.depth)
        angle = torch.tensor([0.0, 1e-4], dtype=torch.float64)
        x = radius * torch.stack((angle.cos(), angle.sin()), -1)
        before, after = (mean_gap(flow.tokens(state)).item() for state in (x, flow.layer(x, tau)))
        return log(before / after) if after > 1e-10 * before else float("inf")


def equiangular_attention(n: int, beta: float, gap: float, m: float = 1.0) -> tuple[float, float, float]:
    """(<theta, A>, |P_theta A|, p) of equiangular particles read at radius m, 1 - gamma = gap; p is the weight of each
    other particle. No subtraction of nearly equal numbers at either end."""
    other = exp(-beta * m * m * gap)
    total = 1 + (n - 1) * other
    p = other / total
    radial = m * (1 - (n - 1) * p * gap)
    tangential = m * p * sqrt(max(0.0, (n - 1) * gap * (n - (n - 1) * gap)))
    return radial, tangential, p


@torch.no_grad()
def initial_velocity(scheme: str | Scheme, n: int, beta: float, depth: int = 1, radius: float = 1.0) -> float:
    """gamma'(0) of n orthonormal directions, read at radius `radius` before the scheme puts them on its own sphere."""
    frame = Frame(scheme, depth)
    return velocity(frame, n, beta, 0.0, frame.settle(radius, 0.0), 0.0)[0]


@torch.no_grad()
def initial_turn(scheme: str | Scheme, n: int, dim: int, beta: float, depth: int = 1) -> float:
    """|theta'| at time 0, mean over n tokens that begin independent and uniform on the sphere of `dim` dimensions: to
    leading order in dim and n, for beta^2 far below dim (docs/theory-clustering.md, Proposition 2d)."""
    frame = Frame(scheme, depth)
    radius = frame.settle(1.0, 0.0)
    m = frame.read(radius, 0.0)
    b = beta * m * m
    others = (n - 1) * exp(b * b / (2 * dim))
    total = exp(b) + others
    radial, tangential = m * (exp(b) + others * b / dim) / total, m * sqrt(n - 1) * exp(b * b / dim) / total
    return frame.rates(radius, 0.0, radial, tangential)[0] * tangential


def velocity(
    frame: Frame, n: int, beta: float, w: float, radius: float, tau: float
) -> tuple[float, float, float, float]:
    """(gamma', d log(1 - gamma)/dtau, r', s) where 1 - gamma = e^w."""
    gap = exp(w)
    m = frame.read(radius, tau)
    radial, tangential, p = equiangular_attention(n, beta, gap, m)
    turn, growth = frame.rates(radius, tau, radial, tangential)
    shrink = 2 * turn * m * p * (n - (n - 1) * gap)
    return gap * shrink, -shrink, growth, 1 / turn if turn else float("inf")


@torch.no_grad()
def terminal(
    scheme: str | Scheme,
    depth: int = 1,
    causal: bool = False,
    radius: float | Sequence[float] = 1.0,
    *,
    beta: float = 1.0,
    layers: bool = False,
    sublayers: int = 1,
) -> Terminal:
    """The law of 1 - cos as t grows without end, read off the scheme's definition near collapse (V = I).

    All particles together feel A = m theta; a small difference between them shrinks at the rate lambda = 2 m / s(t, r)
    (full attention), half of it under a causal mask. r follows from r' in the same state: where r' = c r^a t^b, the
    solution is r ~ t^((1+b)/(1-a)). What is left is the logarithmic derivative of lambda in t: -1 is a power law, 0
    an exponential, -1/2 a stretched one. Anything else, also a schedule that ends, is `none`. So is a power law where
    beta m^2 (1 - cos) does not vanish: attention that grows colder faster than particles of equal radii meet leaves
    each with itself. (Where radii differ all may follow the longest instead, and meet.) radius: one for all, or one for
    each particle; those that a scheme keeps change the rate, with beta, those that grow become equal relative to their
    size. An angle that does not shrink with the update brings them together before the end, which is
    no law either. layers: whole layers, h = 1, in place of continuous time: another exponential. sublayers:
    how many attentions act per unit of t; a radius that grows then grows as many times as fast.
    """
    frame = Frame(scheme, depth)
    lengths = torch.tensor(radius if isinstance(radius, Sequence) else [radius], dtype=torch.float64)
    radii = frame.flow.settle(torch.stack((lengths, torch.zeros_like(lengths)), -1), LATE - 1).norm(dim=-1)
    start = radii.mean().item()
    unequal = (radii.max() - radii.min()).item() > 1e-9 * start

    def look(r: float, t: float) -> tuple[float, float]:
        """(lambda, r') near collapse."""
        m = frame.read(r, t - 1)
        turn, growth = frame.rates(r, t - 1, m, 0.0)
        rate = 2 * turn * m * (0.5 if causal else 1.0)
        if abs(growth) > RESTS * r * abs(rate):
            return rate, growth
        return frame.slowest(radii, t - 1, beta, causal) if unequal else rate, 0.0

    def rate(r: float, t: float) -> float:
        return sublayers * look(r, t)[0]

    rest = find_rest(lambda r: r + sublayers * look(r, LATE)[1], start)
    grown = (rest, 0.0) if rest else grow(lambda r, t: sublayers * look(r, t)[1], start)
    if grown is None:
        return SLOW
    r, power = grown
    law = read_law(rate, r, power)
    if law.exponent is None or law.exponent <= 0:
        return law if rate(r, LATE) > 0 else STILL
    m = frame.read(r, LATE - 1)
    near, far = (frame.rates(r, LATE - 1, m, tangential)[0] for tangential in (0.0, FAR * m))
    if near > SUDDEN * far:
        return Terminal("none", None, "the angle does not shrink with the update: tokens meet at a finite depth")
    colder = 2 * log(frame.read(r * 1.01**power, LATE * 1.01 - 1) / frame.read(r, LATE - 1)) / log(1.01)
    if beta > 0 and law.kind == "polynomial" and law.exponent <= colder + 1e-6:
        return Terminal("none", None, "attention grows colder: equally long tokens stop, others may follow the longest")
    if layers and law.kind == "exponential":
        whole = float("inf") if unequal else sublayers * frame.whole(r, LATE - 1, causal)
        return Terminal(law.kind, whole) if isfinite(whole) else SUDDEN_LAYERS
    return law


def find_rest(step: Callable[[float], float], radius: float) -> float | None:
    """The radius to which repeated steps take a token that begins at `radius`, by Aitken's method; None where there is
    no such radius."""
    for _ in range(TRIES):
        first = step(radius)
        moved, again = first - radius, step(first) - first
        if abs(moved) <= 1e-13 * radius:
            near = 0.01 * first  # who rests by keeping any radius is not drawn to this one
            return first if abs(step(first + near) - first) < STEADY * near else None
        if not abs(again) < STEADY * abs(moved):  # it grows on
            return None
        radius = first + again * moved / (moved - again)
    return None


def read_law(rate: Callable[[float, float], float], r: float, power: float) -> Terminal:
    """The law of a quantity that shrinks at rate(r, t), with r ~ t^power at depth-time LATE, by the rate's logarithmic
    derivative: -1 is a power law, 0 an exponential, -1/2 a stretched one, anything else none of these. An exponent
    below 0 is growth."""
    now, later = rate(r, LATE), rate(r * 1.01**power, LATE * 1.01)
    if now * later <= 0:
        return NO_LAW if now or later else STILL
    slope = log(later / now) / log(1.01)
    for kind, expected, exponent in (
        ("polynomial", -1.0, now * LATE),
        ("stretched", -0.5, 2 * now * sqrt(LATE)),
        ("exponential", 0.0, now),
    ):
        if abs(slope - expected) < 1e-3:
            return Terminal(kind, exponent)
    return STILL if slope < -1 else NO_LAW


def grow(growth: Callable[[float, float], float], r: float) -> tuple[float, float] | None:
    """(r, q) at depth-time LATE of a radius that follows r ~ t^q, from r' = growth(r, t) = c r^a t^b near there. None
    where it shrinks, explodes, grows like a logarithm at most, or has not come to its power by then. A step capped at a
    share of r explodes only until the cap binds no more: r is looked for beyond."""
    power = 0.0
    if not abs(growth(r, LATE)) * LATE > 1e-6 * r:
        return None if growth(r * 1.01, LATE) * LATE > 1e-6 * r else (r, power)  # it rests, but would not stay
    for _ in range(60):
        now = growth(r, LATE)
        if now <= 0:
            return None
        a = log(growth(r * 1.001, LATE) / growth(r / 1.001, LATE)) / log(1.001**2)
        b = log(growth(r, LATE * 1.001) / growth(r, LATE / 1.001)) / log(1.001**2)
        if a >= 1 - 1e-6 and power == 0.0 and r < LATE:
            r *= 10
            continue
        if a >= 1 - 1e-6 or b <= -1 + 1e-9:
            return None
        power = (1 + b) / (1 - a)
        # the solution is r^(1-a) = c (1-a)/(1+b) t^(1+b)
        ahead = (now * r**-a * LATE / power) ** (1 / (1 - a))
        if isclose(ahead, r, rel_tol=1e-12):
            break
        while ahead > r and growth(ahead * 1.01, LATE) <= 0:  # beyond the radius at which it would shrink
            ahead = (ahead + r) / 2
        r = ahead
    return r, power


def describe_law(scheme: str | Scheme) -> str | None:
    """The speed factor and radius law of a scheme in a line, or None where no formula is on record (with fields, say).

    A = u(read(x)); for geonorm while the clamp does not bind (|P_θ A| < r pi/4; else s = |P_θ A| t / (pi/4))."""
    rule = parse(scheme)
    about = vars(type(rule)).get("about")  # not inherited: a subclass may write otherwise
    return about.law or None if about is not None and str(rule) == name_of(type(rule)) else None
