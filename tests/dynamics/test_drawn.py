"""One formula for drawn weights (docs/theory-random-weights.md) against particles and against real decoders."""

from math import isclose, log, pi, prod, sin, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, Site, dynamics, parse
from geonorm.dynamics.drawn import ACTIVATIONS, DrawnAttention, DrawnFlow, DrawnMlp, contrasts, pass_on, shrink_gap
from geonorm.errors import ConfigError
from geonorm.models import preset

from ..rows import each

FULL = (DrawnAttention(causal=False),)
CAUSAL = (DrawnAttention(),)
GELU = (DrawnAttention(), DrawnMlp())
SWIGLU = (DrawnAttention(), DrawnMlp("silu", gated=True))
SPREAD = {"relu": 1.0, "gelu": 1.0720, "tanh": 1.1778, "silu": 1.0666}
"""chi = E f'^2 / E f^2 of a standard normal."""


@pytest.mark.parametrize("activation", SPREAD)
def test_spread_of_an_activation(activation: str) -> None:
    site = Site(0, "mlp", 1)
    _, chi = DrawnMlp(activation).propose(1.0, parse("pre"), site)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64, requires_grad=True)
    f = ACTIVATIONS[activation](z)
    (slope,) = torch.autograd.grad(f.sum(), z)
    weight = torch.exp(-(z**2) / 2)
    wanted = ((weight * slope**2).sum() / (weight * f**2).sum()).item()
    assert isclose(chi, wanted, rel_tol=1e-4) and chi == pytest.approx(SPREAD[activation], abs=2e-4)
    # a gate stretches by itself: f(a) b moves with a and with b
    assert DrawnMlp(activation, gated=True).propose(1.0, parse("pre"), site)[1] == pytest.approx(1 + chi)


G_M = 0.42522  # E gelu(z)^2
DECAYED = pi**2 / 16
"""Square of the clamp of geonorm, which a gain of 1 meets."""
LAWS: list[tuple[str, Any, str, float | None]] = [
    ("pre", FULL, "polynomial", 1.0),
    ("pre", CAUSAL, "polynomial", 0.75),
    ("pre", GELU, "polynomial", (0.75 - 0.0720 * G_M) / (1 + G_M)),
    ("peri", GELU, "polynomial", (0.75 - 0.0720) / 2),
    ("peri", SWIGLU, "polynomial", (0.75 - 1.0666) / 2),  # below 0: tokens move apart
    ("post", FULL, "exponential", log(2)),
    ("post", CAUSAL, "exponential", log(2 / 1.25)),
    ("post", GELU, "exponential", log(2 / 1.25) - log((1 + 1.0720 * G_M) / (1 + G_M))),
    ("sqrt", (DrawnAttention(sqrt(2), causal=False),), "polynomial", 2.0),
    ("sqrt", GELU, "polynomial", 0.75 - 0.0720 * G_M),
    ("geonorm", GELU, "none", None),
    ("geonorm(decay=0.75)", GELU, "none", None),
    ("geonorm(decay=sqrt)", CAUSAL, "polynomial", 0.75 * DECAYED),
    ("geonorm(decay=sqrt)", GELU, "polynomial", 0.75 * DECAYED - 0.0720 * G_M),
    ("ngpt(alpha=0.5)", CAUSAL, "exponential", log(2 / 1.25)),
    ("lns", GELU, "none", None),
    ("olmo2", CAUSAL, "polynomial", 0.75),
    # (1 - 1/L)^t without MLPs: the radius rests where the squares of what it loses and gains are one
    ("norm_preserving", FULL, "exponential", log(12 / 11)),
    ("norm_preserving", (DrawnAttention(sqrt(2), causal=False),), "exponential", log(12 / 11)),
    ("angpt", SWIGLU, "none", None),  # radius 1 is kept, but a token a little longer grows
    ("ngpt(alpha=1)", (DrawnAttention(sqrt(2), causal=False),), "none", None),  # it replaces tokens: equal at once
]


@each("scheme, subs, kind, exponent", LAWS)
def test_laws_worked_out_by_hand(scheme: str, subs: Any, kind: str, exponent: float | None) -> None:
    averaged = 0.25 if subs[0].causal else 0.0
    law = DrawnFlow(scheme, 12, subs).find_law(averaged)
    assert law.kind == kind and law.exponent == (None if exponent is None else pytest.approx(exponent, abs=3e-4))
    if exponent is not None and exponent < 0:
        assert str(law).startswith("t^0.")


def agrees(logs: list[float], said: float) -> None:
    """Within 5 % and three standard errors of the draws, which have to be small enough to say something."""
    error = torch.tensor(logs).std().item() / sqrt(len(logs))
    assert sum(logs) / len(logs) == pytest.approx(said, abs=0.05 * abs(said) + 3 * error)
    assert error < 0.05 * abs(said) + 0.12


def decoder(scheme: str, layers: int, seed: int = 1, **settings: Any) -> Decoder:
    torch.manual_seed(seed)
    shape = {"layers": layers, "width": 128, "hidden": 512, "mlp": "gelu", "positions": "none", "eps": 0.0}
    return Decoder(preset("nano", scheme=scheme, **(shape | settings))).double()


def walk(model: Decoder, x: Tensor) -> list[Tensor]:
    stream = [model.entry(x)]
    for block in model.blocks:
        stream.append(block(stream[-1], positions=None))
    return stream


def narrow(tokens: int, batch: int) -> Tensor:
    """Embeddings in cones of 1e-3, one about a direction of its own for each batch element."""
    return torch.randn(batch, 1, 128).double() + 1e-3 * torch.randn(batch, tokens, 128).double()


REAL = ["pre", "post", "peri", "geonorm(decay=sqrt)", "ngpt(alpha=0.5)"]


@each("scheme", REAL)
@each("mlp, subs", [("gelu", GELU), ("swiglu", SWIGLU)])
def test_real_decoders_carry_differences_as_the_formula_says(scheme: str, mlp: str, subs: Any) -> None:
    layers, n, draws = 12, 6, 4
    growth = []
    for seed in range(draws):
        first, *_, last = walk(decoder(scheme, layers, seed, mlp=mlp), narrow(n, 16))
        gaps = [dynamics.gap(x / x.norm(dim=-1, keepdim=True)).log().mean().item() for x in (first, last)]
        growth.append(gaps[1] - gaps[0])
    said = [log(gap) for gap in shrink_gap(DrawnFlow(scheme, layers, subs).turn_through(), n)[::2]]
    agrees(growth, said[-1])


@each("mlp, hidden", [("gelu", 512), ("swiglu", 512), ("swiglu", 128)])
@each("scheme", ["pre", "hybrid", "angpt"])
def test_an_mlp_proposes_what_its_hidden_units_say(scheme: str, mlp: str, hidden: int) -> None:
    """Modules of the scheme on up and gate among them, in units of its own N."""
    width, site, rule = 256, Site(0, "mlp", 1), parse(scheme)
    unit = 1.0 if scheme == "angpt" else 16.0
    given = {"gelu": "gelu", "swiglu": "silu"}[mlp]
    said, _ = DrawnMlp(given, gated=mlp == "swiglu", width=width, hidden=hidden).propose(0.7, rule, site)
    found = []
    for seed in range(6):
        branch = decoder(scheme, 1, seed, width=width, hidden=hidden, mlp=mlp).blocks[0].mlp.branch
        y = torch.randn(64, width).double()
        u = branch(0.7 * unit * y / y.norm(dim=-1, keepdim=True))
        found.append(u.square().sum(-1).mean().sqrt().item() / unit)
    assert sum(found) / len(found) == pytest.approx(said, rel=0.08)


def test_gradients_go_back_through_the_transposed_averages() -> None:
    """Centred over tokens they shrink as differences do; what is common to all ends at the first token."""
    layers, n, draws = 16, 4, 4
    turns = DrawnFlow("post", layers, GELU).turn_through()
    one = torch.ones(n, n, dtype=torch.float64)
    centred = torch.eye(n - 1, dtype=torch.float64) - 1 / n
    common, relative = [one], [centred]
    for turn in reversed(turns):  # from behind the last turn; relative: without the first token's gradient
        common.insert(0, pass_on(turn, common[0], turn.sub.averaging(n).mT))
        relative.insert(0, pass_on(turn, relative[0], contrasts(turn, n - 1).mT))
    said = torch.stack([each.diagonal() for each in common[::2]])
    apart = [(each.trace() + each.sum()).item() for each in relative[::2]]
    shared_sizes: list[Tensor] = []
    apart_sizes: list[Tensor] = []
    for seed in range(draws):
        stream = walk(decoder("post", layers, seed), narrow(n, 16).requires_grad_())
        coefficients = torch.randn(16, n, 128).double()
        for chosen, into in (
            (coefficients[:, :1], shared_sizes), (coefficients - coefficients.mean(1, keepdim=True), apart_sizes)
        ):  # fmt: skip
            theta = stream[-1] / stream[-1].norm(dim=-1, keepdim=True)
            found = torch.autograd.grad((chosen * theta).sum(), stream, retain_graph=True)
            into.append(torch.stack([across(x, g) for x, g in zip(stream, found, strict=True)]))
    shared, centre = (torch.stack(sizes).log().mean(0).exp() for sizes in (shared_sizes, apart_sizes))
    for layer in (0, 8):
        assert shared[layer] / shared[layer].sum() == pytest.approx(said[layer] / said[layer].sum(), abs=0.03)
        growth = (centre[layer].sum() / centre[-1].sum()).log().item()
        assert growth == pytest.approx(log(apart[layer] / apart[-1]), rel=0.1)
    assert said[0, 0] > 0.95 * said[0].sum()


def across(x: Tensor, g: Tensor) -> Tensor:
    """Per token, mean over the batch: the square of radius times gradient at right angles to the token."""
    x, g = x.detach(), g.detach()
    g = g - (g * x).sum(-1, keepdim=True) * x / (x * x).sum(-1, keepdim=True)
    return (g * x.norm(dim=-1, keepdim=True)).square().sum(-1).mean(0)


@each("scheme", ["pre", "post", "peri", "lns", "sqrt", "geonorm", "geonorm(decay=sqrt)", "olmo2"])
def test_the_gradient_of_an_output_matrix_follows_the_angle(scheme: str) -> None:
    """|dL/dW| |W| = sqrt(hidden) sin phi times the gradient of what all tokens share."""
    layers, draws = 10, 4
    sizes = torch.zeros(layers)
    for seed in range(draws):
        model = decoder(scheme, layers, seed)
        last = walk(model, narrow(4, 16))[-1]
        (torch.randn(16, 1, 128).double() * last / last.norm(dim=-1, keepdim=True)).sum().backward()
        for layer, block in enumerate(model.blocks):
            weight = block.mlp.branch.down.weight
            assert weight.grad is not None
            sizes[layer] += (weight.grad.norm() * weight.norm()).log().item() / draws
    turns = DrawnFlow(scheme, layers, GELU).turn_through()
    said = [
        sin(turn.angle) * prod(later.stretch(later.chi) for later in turns[2 * i + 2 :]) ** 0.5
        for i, turn in enumerate(turns[1::2])
    ]
    for layer in (0, 4):
        assert (sizes[layer] - sizes[-1]).item() == pytest.approx(log(said[layer] / said[-1]), abs=0.15)


# per block at t = 1000, times t^power: amplitudes, by hand from g = 1, g_m^2 = E f^2 and chi (theory-random-weights)
LYAPUNOV = [
    ("post", 0, (0.0106, 0.1234), (-0.2350, -0.2244, -0.1116)),
    ("sqrt", 1, (0.0153, 0.1897), (-0.3750, -0.3597, -0.1853)),
    ("geonorm(decay=sqrt)", 1, (0.0153, 0.1897), (-0.2313, -0.2160, -0.0416)),
    ("geonorm", 2, (0.0153, 0.1897), (-0.2313, -0.2160, -0.0416)),
]


@pytest.mark.parametrize(("scheme", "power", "collective", "relative"), LYAPUNOV)
def test_lyapunov_exponents_per_block(scheme: str, power: int, collective: Any, relative: Any) -> None:
    t = 1000.0
    blocks = [DrawnFlow(scheme, 12, subs).turn_block(1.0, t) for subs in (CAUSAL, GELU, SWIGLU)]
    found = [sum(log(turn.relative()) for turn in block) / 2 * t**power for block in blocks]
    assert found == pytest.approx(relative, abs=3e-4)
    found = [sum(log(turn.stretch(turn.chi)) for turn in block) / 2 * t**power for block in blocks]
    assert found == pytest.approx((0.0, *collective), abs=3e-4)


def test_what_has_no_angle_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no angle"):
        DrawnFlow("residual_dual", 4)
    with pytest.raises(ConfigError, match="changes v inside attention"):
        DrawnFlow("hybrid", 4)
    still = DrawnFlow("rezero", 4).turn_through()
    assert all(turn.angle == 0 and turn.stretch(turn.chi) == turn.relative() == 1 for turn in still)
