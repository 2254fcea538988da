"""Steps of one angle whatever the length of the update: NAG, `geonorm(update=unit)`, and updates of 0 under both."""

from math import pi

import pytest
import torch
from torch import Tensor

from geonorm import Site, parse
from geonorm.norms import NormSpec
from geonorm.ops.angle import bias_softness
from geonorm.schemes import Parts, Scheme

from ..ops.geodesic_cases import angle_between
from .textbook import DEPTH, DIM, EPS, same, stream, written

SITE = Site(2, "mlp", DEPTH)
NUMBER = 6
"""Of this sub-layer, counted from 1."""
UNIT = "update=unit, retraction=projection, decay=sqrt, decay_on=update, index=sublayer, max_angle=pi"
UNIT_STEP = f"geonorm({UNIT}, input=norm)"


def placed(text: str, site: Site = SITE) -> tuple[Scheme, Parts]:
    rule = parse(text)
    own = Parts(rule, site, NormSpec("rms", DIM, eps=EPS)).double()
    own.reset_parameters()
    return rule, own


def opened(own: Parts) -> Parts:
    """With a gate of exactly 1."""
    own.get_parameter("modulator.bias").data.fill_(60.0)
    return own


def update(like: Tensor, scale: float = 1.0) -> Tensor:
    """Not along x, and with a mean of 0."""
    u = torch.randn(like.shape, generator=torch.Generator().manual_seed(5), dtype=like.dtype)
    return scale * (u - u.mean(-1, keepdim=True))


@pytest.mark.parametrize("scale", [0.5, 5.0, 500.0])
def test_the_length_of_an_update_does_not_matter(scale: float) -> None:
    rule, own = placed("geonorm(update=unit, alpha=0.9)")
    x = stream(rule)
    found = angle_between(x, written(rule, own, SITE, x, lambda y: update(y, scale)))
    torch.testing.assert_close(found, torch.full_like(found, 0.9 / 3 * pi / 4), rtol=1e-3, atol=0)
    assert rule.clamped(x, update(x), own(), SITE) is None
    rule, own = placed("nag")
    found = angle_between(x, written(rule, opened(own), SITE, x, lambda y: update(y, scale)))
    torch.testing.assert_close(found, torch.full_like(found, NUMBER**-0.5).atan(), rtol=1e-3, atol=0)


def test_steps_start_at_the_inverse_root_of_the_number_of_the_sub_layer() -> None:
    for n in range(2 * DEPTH):
        site = Site(n // 2, "mlp" if n % 2 else "attn", DEPTH)
        for text, start in (("nag", (n + 1) ** -0.5), ("nag(decay=0.25, alpha=2)", 2 * (n + 1) ** -0.25)):
            assert placed(text, site)[1].get_parameter("step").item() == pytest.approx(start, rel=1e-6)
    assert placed("nag(directions=3)")[1].get_parameter("modulator.weight").shape == (3, DIM)


def test_the_gate_lies_between_0_and_1_and_starts_near_a_half() -> None:
    rule, own = placed("nag")
    x = stream(rule)
    start = rule.read(x, own(), SITE)[1]
    torch.testing.assert_close(start, torch.full_like(start, 0.5), rtol=0, atol=0.05)
    assert own.get_parameter("modulator.weight").std().item() == pytest.approx(0.02, rel=0.15)
    for name in ("weight", "bias", "share"):
        own.get_parameter(f"modulator.{name}").data.normal_(0, 9, generator=torch.Generator().manual_seed(1))
    gate = rule.read(x, own(), SITE)[1]
    assert ((gate >= 0) & (gate <= 1)).all() and gate.std() > 0.1
    same(placed("nag(beta=3)")[0].read(x, own(), SITE)[1], gate**3)


@pytest.mark.parametrize("text", ["geonorm(update=unit)", "geonorm(update=unit, learn=step)", UNIT_STEP, "nag"])
def test_an_update_of_zero_moves_nothing_and_has_a_gradient(text: str) -> None:
    """v/|v| at 0: x' = x to the last bit; a small du moves x by its tangential part, divided by the softness."""
    rule, own = placed(text)
    x = stream(rule)
    still = written(rule, own, SITE, x, torch.zeros_like)
    assert torch.equal(still, x)
    u = torch.zeros_like(x, requires_grad=True)
    out = written(rule, own, SITE, x, lambda y: u)
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (grad,) = torch.autograd.grad((out * g).sum(), u)
    tangential = g - (g * x).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x
    if text == "nag":
        gate = rule.read(x, own(), SITE)[1]
        factor = own.get_parameter("step") * gate * x.norm(dim=-1, keepdim=True) / (bias_softness() * DIM**0.5)
        expected = factor * (tangential - tangential.mean(-1, keepdim=True))
    else:
        angle = torch.tensor(NUMBER**-0.5).double().atan() if text == UNIT_STEP else pi / 4 / 3
        expected = angle / bias_softness() * tangential
    torch.testing.assert_close(grad, expected, rtol=1e-6, atol=1e-6)
