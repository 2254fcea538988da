"""Predictions derived from the definitions, against the laws that docs/theory*.md derive by hand."""

import re
from itertools import pairwise
from math import cos, exp, isclose, log, log1p, pi, sin, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Site, dynamics, names
from geonorm.dynamics import theory
from geonorm.dynamics.closed import solve_equiangular
from geonorm.errors import ConfigError

from ..rows import each
from .conftest import speed_of

DEPTH = 12


# docs/theory-clustering.md: 1 - cos for t -> infinity, worked out by hand
TERMINAL: dict[Any, tuple[str, float | None]] = {
    "post": ("exponential", 2.0),
    "post(decay=harmonic, alpha=0.7)": ("polynomial", 1.4),
    "pre": ("polynomial", 2.0),
    "pre(decay=sqrt)": ("polynomial", 1.0),
    "pre(decay=harmonic)": ("none", None),
    "pre(input=raw)": ("none", None),  # the radius explodes
    "pre(max_step=0.1)": ("polynomial", 2.0),  # the clamp binds while r < 10 alone
    "peri(max_step=0.3)": ("polynomial", 2.0),
    "peri": ("polynomial", 2.0),
    "olmo2": ("none", None),  # reads the raw stream: beta r^2 grows, and tokens of equal length stop
    "mix": ("polynomial", 2.0),
    "mix(pre, post)": ("exponential", 2.0),
    "deepnorm": ("exponential", 2 / (2 * DEPTH) ** 0.25),
    "lns": ("polynomial", 1.0),
    "sqrt": ("stretched", 4.0),
    "ngpt": ("exponential", 0.1),
    "ngpt(alpha=0.8, decay=harmonic)": ("polynomial", 1.6),
    "geonorm": ("polynomial", 2.0),
    "geonorm(alpha=0.5)": ("polynomial", 1.0),
    "geonorm(decay=sqrt, alpha=0.7)": ("stretched", 2.8),
    "geonorm(decay=constant, alpha=0.4)": ("exponential", 0.8),
    "geonorm(decay=linear)": ("none", None),
    "geonorm(update=norm, alpha=0.5)": ("polynomial", 1.0),
    "geonorm(update=unit)": ("none", None),  # meets at a finite depth
    "geonorm(index=sublayer)": ("polynomial", 1.0),
    "geonorm(retraction=cayley, decay_on=update)": ("polynomial", 2.0),
    "orthogonal": ("exponential", 2.0),  # eps moves the radius by 1e-6 in a unit of t, when 1 - cos has fallen to e^-2
    "orthogonal(decay=sqrt, entry=embedding)": ("stretched", 4.0),
    "orthogonal(decay=harmonic, alpha=0.5)": ("polynomial", 1.0),
    "orthogonal(decay=linear)": ("none", None),
    "orthogonal(eps=0.1)": ("none", None),  # r ~ t^(1/3)
}


@each("scheme", TERMINAL)
def test_terminal_laws(scheme: Any) -> None:
    kind, exponent = TERMINAL[scheme]
    for causal, share in ((False, 1.0), (True, 0.5)):
        found = theory.terminal(scheme, DEPTH, causal)
        assert found.kind == kind
        if exponent is None:
            assert found.exponent is None and str(found) == "none"
        else:
            assert found.exponent is not None and isclose(found.exponent, share * exponent, rel_tol=1e-6)


def test_radius_at_the_start_matters_to_geonorm_alone_when_it_reads_the_normed_stream() -> None:
    for scheme, exponent in (("geonorm(entry=embedding)", 2.0), ("geonorm(entry=embedding, input=norm)", 0.5)):
        found = theory.terminal(scheme, radius=4.0).exponent
        assert found is not None and isclose(found, exponent, rel_tol=1e-6)


def slopes(flow: dynamics.Flow, x: Tensor, times: list[float], **how: Any) -> list[float]:
    """Minus the slope of log(1 - cos) against log t between successive times, of the particles themselves."""
    with torch.no_grad():
        walk = dynamics.integrate(flow, flow.start(x), times, **(how or {"tolerance": 1e-6, "log_time": True}))
        found = [(log(tau + 1), log(dynamics.gap(flow.tokens(state)).item())) for tau, state in walk]
    return [(a[1] - b[1]) / (b[0] - a[0]) for a, b in pairwise(found)]


# by the linearised system worked out by hand: two tokens of radii 1 and r at inverse temperature beta
UNEQUAL = [(2, 0.0, 2.5), (2, 0.5, 2.759), (2, 1.0, 3.043), (3, 0.0, 3.333), (3, 0.5, 4.418), (3, 1.0, 5.286)]


@each("r, beta, exponent", UNEQUAL)
def test_unequal_radii_change_the_exponent_of_a_scheme_that_keeps_them(r: float, beta: float, exponent: float) -> None:
    scheme = "geonorm(entry=embedding)"
    found = theory.terminal(scheme, radius=[1.0, float(r)], beta=beta)
    assert found.kind == "polynomial" and found.exponent == pytest.approx(exponent, abs=1e-3)
    x = torch.tensor([[[1.0, 0.0], [r * cos(0.01), r * sin(0.01)]]], dtype=torch.float64)
    flow = dynamics.Flow(scheme, dynamics.Attention(beta))
    assert slopes(flow, x, [1e2, 1e3])[0] == pytest.approx(found.exponent, rel=1e-3)


def test_unequal_radii_of_many_tokens_and_under_a_mask_against_particles() -> None:
    scheme, radii = "geonorm(entry=embedding)", [0.7, 1.0, 1.4]
    x = torch.tensor(radii, dtype=torch.float64)[:, None] * dynamics.cone(3, 3, 1e-3, seeds=(0,))
    found = theory.terminal(scheme, radius=radii, beta=0.3).exponent
    assert slopes(dynamics.Flow(scheme, dynamics.Attention(0.3)), x, [1e4, 1e5])[0] == pytest.approx(found, rel=0.02)
    # under a mask the modes lie close together: the slope rises to its limit over many decades
    limit = theory.terminal(scheme, causal=True, radius=radii, beta=0.3).exponent
    flow = dynamics.Flow(scheme, dynamics.Attention(0.3, causal=True))
    early, later, late = slopes(flow, x, [1e2, 1e3, 1e5, 1e7])
    assert limit is not None and early < later < late < limit and limit - late < 0.6 * (limit - early)
    for other in ("pre(entry=embedding)", "peri(entry=embedding)"):  # radii that grow become equal
        assert theory.terminal(other, radius=radii).exponent == pytest.approx(2.0, rel=1e-6)
    same = theory.terminal(scheme, radius=[3.0, 3.0 + 1e-7, 3.0]).exponent
    assert same == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize(
    ("scheme", "one", "two"), [("pre", 2.0, 2.0), ("peri", 2.0, 2.0), ("lns", 1.0, 1.0), ("geonorm", 2.0, 4.0)]
)
def test_two_attentions_double_the_exponent_of_schemes_that_keep_the_radius_alone(
    scheme: str, one: float, two: float
) -> None:
    """A radius that grows by what is added grows twice as fast, too."""
    x = dynamics.equiangular(4, 4, 0.9999)
    for count, exponent in ((1, one), (2, two)):
        assert theory.terminal(scheme, sublayers=count).exponent == pytest.approx(exponent, rel=1e-6)
    flow = dynamics.Flow(scheme, [("attn", dynamics.Attention())] * 2)
    times = [1e9, 1e10] if scheme == "lns" else [1e3, 1e4]  # its radius reaches 4 sqrt(t) slowly
    assert slopes(flow, x, times)[0] == pytest.approx(two, rel=2e-3)
    assert theory.terminal("post", sublayers=2).exponent == pytest.approx(4.0)
    assert theory.terminal("post", layers=True, sublayers=2).exponent == pytest.approx(4 * log(2))
    assert theory.terminal("sqrt", sublayers=3, causal=True).exponent == pytest.approx(6.0)


@pytest.mark.parametrize(("causal", "exponent"), [(False, 2.0), (True, 1.0)])
def test_olmo2_does_not_freeze_where_there_is_no_temperature(causal: bool, exponent: float) -> None:
    found = theory.terminal("olmo2", causal=causal, beta=0.0)
    assert found.kind == "polynomial" and found.exponent == pytest.approx(exponent, rel=1e-6)
    flow = dynamics.Flow("olmo2", dynamics.Attention(0.0, causal=causal))
    late = slopes(flow, dynamics.equiangular(3, 3, 0.99), [1e7, 1e8] if causal else [1e2, 1e3])[0]
    assert late == pytest.approx(exponent, rel=0.02)


@each(
    "scheme, causal, rate",
    [("post", False, 2 * log(2)), ("post", True, 2 * log(4 / 3)), ("ngpt(alpha=0.5)", False, 2 * log(2)),
     ("deepnorm", False, 2 * log(1 + (2 * DEPTH) ** -0.25)), ("sqrt", False, 4.0)],
)  # fmt: skip
def test_whole_layers_have_other_exponentials(scheme: str, causal: bool, rate: float) -> None:
    """N(x + A) with h = 1 halves a difference; continuous time says e^-1 per layer. Slow laws agree at last."""
    found = theory.terminal(scheme, DEPTH, causal, layers=True).exponent
    assert found == pytest.approx(rate, rel=1e-6)
    if scheme == "post":
        # triangular, so that differences far below the rounding of a rotated frame survive
        x = torch.linalg.cholesky(0.99 + 0.01 * torch.eye(4, dtype=torch.float64)).unsqueeze(0)
        flow = dynamics.Flow(scheme, dynamics.Attention(1.0, causal=causal))
        assert slopes(flow, x, [45, 46], method="layers")[0] * log(47 / 46) == pytest.approx(rate, rel=1e-2)
    assert str(theory.terminal("ngpt(alpha=1)", layers=True)) == "none"  # the token is replaced at once


@pytest.mark.parametrize("depth", [4, 12, 1000])
def test_whole_layers_bring_the_radius_of_norm_preserving_to_rest(depth: int) -> None:
    """r = sqrt(1 - 1/L) r + sqrt(1/L): 1 - cos shrinks by 1 - 1/L a layer, by e^-(2 - 2 sqrt(1 - 1/L)) without."""
    law, flow = (theory.terminal("norm_preserving", depth, layers=layers) for layers in (True, False))
    assert law.kind == flow.kind == "exponential" and law.exponent == pytest.approx(-log1p(-1 / depth), rel=1e-4)
    assert flow.exponent == pytest.approx(2 - 2 * sqrt(1 - 1 / depth), rel=1e-4)


@pytest.mark.parametrize("scheme", ["pre", "peri", "geonorm", "geonorm(alpha=0.5)"])
def test_whole_layers_keep_power_laws(scheme: str) -> None:
    law, flow = theory.terminal(scheme, layers=True), dynamics.Flow(scheme, dynamics.Attention(1.0))
    (slope,) = slopes(flow, dynamics.equiangular(3, 3, 0.99), [200, 400], method="layers")
    assert slope == pytest.approx(law.exponent, rel=0.03)


def test_muse_comes_together_like_a_scheme_on_the_sphere_and_beam_like_peri() -> None:
    """Muse loses a quarter of 1 - cos a layer. Beam counts both kinds of sub-layers: both must act to be Peri."""
    assert theory.terminal("muse", layers=True).exponent == pytest.approx(log(4 / 3), rel=1e-6)
    assert theory.terminal("muse").exponent == pytest.approx(2 - sqrt(3), rel=1e-6)
    assert str(theory.terminal("beam", sublayers=2)) == str(theory.terminal("peri", sublayers=2)) == "t^-2"
    assert str(theory.terminal("beam")) == "t^-1.5"


def initial(scheme: str, n: int, beta: float, r: float) -> float:
    """Table 2 of arXiv:2510.22026 and our rows, by hand."""
    plain, normed = 2 / (exp(beta) + n - 1), 2 / sqrt(exp(2 * beta) + n - 1)
    hot = 2 / sqrt(exp(2 * beta * r * r) + n - 1)  # olmo2 reads the stream as it is: temperature beta r^2
    return {
        "post": plain, "pre": plain / r, "peri": normed / r, "olmo2": hot / r, "mix": plain, "sqrt": plain,
        "ngpt": 0.05 * normed, "deepnorm": plain / (2 * DEPTH) ** 0.25, "lns": plain / r,
        "geonorm": 2 / (exp(beta * r * r) + n - 1), "geonorm(input=norm, alpha=0.5)": 0.5 * plain / r,
    }[scheme]  # fmt: skip


@each("n, beta, r", [(8, 1.0, 1.0), (256, 5.0, 1.0), (5, 0.3, 2.0), (12, 0.0, 1.0), (12, 3.0, 1.0), (12, 8.0, 1.0)])
@each("scheme", ["post", "pre", "peri", "olmo2", "mix", "sqrt", "ngpt", "deepnorm", "lns", "geonorm"])
def test_initial_velocity(scheme: str, n: int, beta: float, r: float) -> None:
    """Theorem 4.1 at time 0: of the closed equation, and of the particles."""
    wanted = initial(scheme, n, beta, r)
    assert isclose(theory.initial_velocity(scheme, n, beta, DEPTH, radius=r), wanted, rel_tol=1e-9)
    flow = dynamics.Flow(scheme, dynamics.Attention(beta), DEPTH)
    state = flow.settle(r * dynamics.equiangular(n, n), 0.0)
    assert dynamics.cosine_rate(flow, state).item() == pytest.approx(wanted, rel=1e-10)


def test_clamped_start() -> None:
    """Where the clamp binds, a particle turns by max_angle decay whatever |A| is: gamma' = 2 angle <v/|v|, theta_j>."""
    n, beta, angle = 8, 1.0, 0.05
    found = theory.initial_velocity(f"geonorm(max_angle={angle})", n, beta)
    assert isclose(found, 2 * angle / sqrt(n - 1), rel_tol=1e-9)


def test_two_tokens_under_a_unit_tangent_meet_at_a_finite_time() -> None:
    """Each turns by phi/t towards the other, however near it is: pi/2 - (pi/2) log t, which is 0 at t = e."""
    path = solve_equiangular("geonorm(update=unit)", 2, 1.0, [0.0, 0.5, 1.0])
    expected = [1 - cos(pi / 2 * (1 - log(1 + tau))) for tau in path.times]
    assert path.gap == pytest.approx(expected, rel=1e-4)


@each(
    "scheme",
    ["post", "peri", "olmo2", "lns", "ngpt(alpha=1)", "mix(post, pre, share=0.5)", "mix(pre, post, share=0.5)",
     "geonorm(max_angle=0.1, decay=sqrt)", "geonorm(update=norm)", "geonorm(decay=linear)"],
)  # fmt: skip
def test_the_closed_equation_is_the_particle_system(scheme: str) -> None:
    n, beta, times = 5, 2.0, [0.0, 0.5, 2.0, 3.0]
    path = solve_equiangular(scheme, n, beta, times, depth=4, gamma=0.1)
    flow = dynamics.Flow(scheme, dynamics.Attention(beta), depth=4)
    with torch.no_grad():
        states = list(dynamics.integrate(flow, flow.start(dynamics.equiangular(n, n, 0.1)), times, tolerance=1e-7))
        for i, (tau, state) in enumerate(states):
            assert isclose(dynamics.gap(flow.tokens(state)).item(), path.gap[i], rel_tol=1e-4)
            assert isclose(state.norm(dim=-1).mean().item(), path.radius[i], rel_tol=1e-5)
            assert isclose(speed_of(flow, state, tau).mean().item(), path.speed[i], rel_tol=1e-4)
            assert isclose(dynamics.cosine_rate(flow, state, tau).item(), path.velocity[i], rel_tol=1e-4)


@each("n, beta", [(2, 0.0), (8, 1.0), (5, 6.0), (256, 5.0), (1024, 6.0)])
def test_when_tokens_of_post_are_half_together(n: int, beta: float) -> None:
    """docs/theory-clustering.md: 0.39 to 1.6 times (e^beta + n - 1) log n / (2 n)."""
    about = (exp(beta) + n - 1) * log(n) / (2 * n)
    early, late = solve_equiangular("post", n, beta, [0.39 * about, 1.6 * about], tolerance=1e-4).gap
    assert early > 0.5 > late


def test_a_collapse_is_followed_far_below_rounding() -> None:
    path = solve_equiangular("post", 8, 1.0, [100.0, 200.0])
    assert 0 < path.gap[1] < 1e-150 and isclose(path.gap[1] / path.gap[0], exp(-200), rel_tol=1e-3)


def test_schemes_without_a_closed_equation_are_refused() -> None:
    for call in (theory.terminal, lambda s: theory.initial_velocity(s, 4, 1.0)):
        with pytest.raises(ConfigError, match="no closed equation"):
            call("residual_dual")


WORDS = {"<θ,A>": "a", "|A|": "size", "<": "", ">": ""}


def value(text: str, **names: float) -> float:
    """A formula as printed: a space between two factors is a product, ^ a power."""
    for printed, name in WORDS.items():
        text = text.replace(printed, name)
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text).replace("^", "**")
    return float(eval(text, {"__builtins__": {}}, names))  # noqa: S307 our own text


@each("scheme", [name for name in names() if theory.describe_law(name)])
@each("layer", [0.0, 2.5])
def test_the_printed_formulas_are_true(scheme: str, layer: float) -> None:
    x, u = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kept = str(theory.describe_law(scheme)).endswith("r' = 0") and scheme != "geonorm"
    x = x / x.norm(dim=-1, keepdim=True) * (1.0 if kept else 1.7)
    u = 0.2 * u
    site = Site(layer, "attn", DEPTH)
    s, growth = dynamics.speed(scheme, x, u, site), dynamics.radial_rate(scheme, x, u, site)
    said_s, said_growth = (part.split(" = ")[1] for part in str(theory.describe_law(scheme)).split(", r'"))
    for i in range(6):
        r = x[i].norm().item()
        names = {"r": r, "t": layer + 1, "L": DEPTH, "size": u[i].norm().item(), "a": (x[i] @ u[i]).item() / r}
        assert isclose(s[i].item(), value(said_s, **names), rel_tol=1e-9)
        assert isclose(growth[i].item(), value(said_growth, **names), rel_tol=1e-9, abs_tol=1e-12)
