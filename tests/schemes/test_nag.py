"""Steps of one angle whatever the length of the update: NAG, `geonorm(update=unit)`, and updates of 0 under both."""

from __future__ import annotations

from math import pi

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig, Site, parse
from geonorm.norms import NormSpec
from geonorm.ops.angle import BIAS_SOFTNESS
from geonorm.schemes import Parts, Scheme

from .textbook import DEPTH, DIM, EPS, same, stream, unit, written

SITE = Site(2, "mlp", DEPTH)
NUMBER = 6
"""Of this sub-layer, counted from 1."""
UNIT = "update=unit, retraction=projection, decay=sqrt, decay_on=update, index=sublayer, max_angle=pi"
TWIN = f"geonorm({UNIT}, input=norm)"


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


def angles(x: Tensor, y: Tensor) -> Tensor:
    return 2 * torch.atan2((unit(x) - unit(y)).norm(dim=-1), (unit(x) + unit(y)).norm(dim=-1))


@pytest.mark.parametrize("scale", [0.5, 5.0, 500.0])
def test_the_length_of_an_update_does_not_matter(scale: float) -> None:
    rule, own = placed("geonorm(update=unit, alpha=0.9)")
    x = stream(rule)
    found = angles(x, written(rule, own, SITE, x, lambda y: update(y, scale)))
    torch.testing.assert_close(found, torch.full_like(found, 0.9 / 3 * pi / 4), rtol=1e-3, atol=0)
    assert rule.clamped(x, update(x), own(), SITE) is None
    rule, own = placed("nag")
    found = angles(x, written(rule, opened(own), SITE, x, lambda y: update(y, scale)))
    torch.testing.assert_close(found, torch.full_like(found, NUMBER**-0.5).atan(), rtol=1e-3, atol=0)


def test_with_an_open_gate_nag_turns_as_a_unit_tangent_does() -> None:
    """The two differ in the length of x alone: one keeps it, the other makes it longer by sqrt(1 + a^2)."""
    nag, own = placed("nag")
    twin, its = placed(TWIN)
    x = stream(nag)
    ours = written(nag, opened(own), SITE, x, update)
    theirs = written(twin, its, SITE, x, update)
    torch.testing.assert_close(unit(ours), unit(theirs), rtol=1e-5, atol=1e-5)
    same(theirs.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(ours.norm(dim=-1), x.norm(dim=-1) * (1 + 1 / NUMBER) ** 0.5, rtol=1e-5, atol=0)


def test_the_norm_lane_is_the_length_of_the_token() -> None:
    """Direction and log-radius apart, as the paper writes them (Eq. 16, 17): d' = (d + a m n) / g, s' = s + log g,
    g = sqrt(1 + a^2 m^2), n of length sqrt(dim): a stack of steps ends where ours does."""
    rule = parse("nag")
    x = stream(rule)
    d, s = unit(x) * DIM**0.5, torch.log(x.norm(dim=-1, keepdim=True) / DIM**0.5)
    for number, site in enumerate([Site(n // 2, "mlp" if n % 2 else "attn", DEPTH) for n in range(2 * DEPTH)], 1):
        _, own = placed("nag", site)
        weight = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        u = torch.tanh(d @ weight)
        u = u - u.mean(-1, keepdim=True)
        v = u - (u * d).mean(-1, keepdim=True) * d
        am = own.get_parameter("step") * own.get_submodule("modulator")(d)
        g = (1 + am**2).sqrt()
        x = written(rule, own, site, x, lambda y, weight=weight: torch.tanh(y @ weight))
        d, s = (d + am * unit(v) * DIM**0.5) / g, s + g.log()
    torch.testing.assert_close(x, s.exp() * d, rtol=1e-4, atol=1e-4)  # eps of the norms: 1e-6 of a mean square
    assert (s > torch.log(stream(rule).norm(dim=-1, keepdim=True) / DIM**0.5)).all()


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
    for name in ("weight", "bias", "share"):
        own.get_parameter(f"modulator.{name}").data.normal_(0, 9, generator=torch.Generator().manual_seed(1))
    gate = rule.read(x, own(), SITE)[1]
    assert ((gate >= 0) & (gate <= 1)).all() and gate.std() > 0.1
    same(placed("nag(beta=3)")[0].read(x, own(), SITE)[1], gate**3)


def test_the_directions_of_the_gate_are_drawn_apart() -> None:
    """Weights that all schemes draw are the same draws, and a reset gives the gate back what it had."""
    drawn = {}
    for text in ("pre", "nag"):
        torch.manual_seed(3)
        drawn[text] = [weight.clone() for _, weight, _, _ in Decoder(DecoderConfig(text, layers=1, width=8)).weights()]
    assert all(map(torch.equal, *drawn.values()))
    _, own = placed("nag")
    first = own.get_parameter("modulator.weight").clone()
    own.get_parameter("modulator.weight").data.zero_()
    own.reset_parameters()
    assert torch.equal(own.get_parameter("modulator.weight"), first) and 0.015 < first.std() < 0.025


@pytest.mark.parametrize("text", ["geonorm(update=unit)", "geonorm(update=unit, learn=step)", TWIN, "nag"])
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
        factor = own.get_parameter("step") * gate * x.norm(dim=-1, keepdim=True) / (BIAS_SOFTNESS * DIM**0.5)
        expected = factor * (tangential - tangential.mean(-1, keepdim=True))
    else:
        angle = torch.tensor(NUMBER**-0.5).double().atan() if text == TWIN else pi / 4 / 3
        expected = angle / BIAS_SOFTNESS * tangential
    torch.testing.assert_close(grad, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("text", ["geonorm(update=unit)", "nag"])
def test_output_matrices_that_start_at_zero_leave_it_at_the_first_step(text: str) -> None:
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(text, layers=2, width=16, heads=2, hidden=24, vocab_size=11, context=8, init="zero"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.arange(16).view(2, 8) * 3 % 11
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model.loss(ids, ids.roll(-1, 1))
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    outputs = [weight for role, weight, _, _ in model.weights() if role in ("o", "down")]
    assert all(weight.abs().max() > 5e-4 for weight in outputs) and losses[-1] < losses[0]
