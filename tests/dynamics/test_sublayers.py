"""Attention and MLP in turn, of the definitions that train: against real decoders, and against docs/theory.md."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm import Decoder, parse
from geonorm.dynamics import Attention, Flow, Mlp, equiangular, gap, integrate, random_mlp, sublayers, uniform
from geonorm.dynamics.config import SimulateConfig
from geonorm.dynamics.fields import ACTIVATIONS, Fresh
from geonorm.errors import ConfigError
from geonorm.models.attention import rope

from ..rows import each

NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("pre", {"mlp": "swiglu", "causal": True, "heads": 2, "rope": 10000.0}),
    ("post", {"mlp": "gelu", "causal": False}),
    ("ngpt", {"mlp": "swiglu", "causal": True, "heads": 4, "rope": 500.0}),  # modules on q, k, up and gate
    ("hybrid", {"mlp": "relu2", "causal": True, "heads": 2}),  # one on v
    ("geonorm(decay=sqrt)", {"causal": True}),
    ("mix(share=0.5)", {"mlp": "gelu_tanh", "hidden": 24}),
    ("siamese", {"mlp": "swiglu"}),  # reads the sum of two streams
    ("siamese(sum=norm)", {"mlp": "gelu"}),
]


@each("scheme, changes", NETWORKS)
def test_a_network_of_particles_is_a_decoder(scheme: str, changes: dict[str, Any]) -> None:
    """The stream of a decoder with these very weights, in units of sqrt(width), block by block."""
    layers, n, width = 4, 5, 16
    settings: dict[str, Any] = {"weights": "network", "per": "layer", "method": "layers", "init": "uniform"}
    config = SimulateConfig(schemes=[scheme], tokens=n, dim=width, time=layers, **settings, **changes)
    rule = parse(scheme)
    fields = sublayers.build_sublayers(config, rule, seed=3)
    model = Decoder(sublayers.network(config, rule)).double()
    for layer, block in enumerate(model.blocks):
        for kind, field in fields:
            assert isinstance(field, Fresh)
            getattr(block, kind).branch.load_state_dict(field.make(layer).branch.state_dict())  # type: ignore
        if config.mlp is None:
            nn.init.zeros_(block.mlp.branch.down.weight)
    flow = Flow(rule, fields, layers)
    x = uniform(n, width, seeds=(7, 8))
    unit = sublayers.find_unit(rule, sublayers.network(config, rule))
    assert unit == pytest.approx(1.0 if scheme == "ngpt" else sqrt(width))
    stream: Tensor = model.entry(3.0 * x)
    positions = None if config.rope is None else rope(torch.arange(n), width // config.heads, config.rope)
    walk = integrate(flow, flow.enter(x), range(1, layers + 1), method="layers")
    with torch.no_grad():
        for block, (_, found) in zip(model.blocks, walk, strict=True):
            stream = block.attn(stream, positions=positions)
            stream = stream if config.mlp is None else block.mlp(stream)
            torch.testing.assert_close(found, stream / unit, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scheme", ["mix(ngpt, pre, share=0.5)", "per_kind(pre, angpt)", "mix(ngpt, pre, share=0)"])
def test_streams_of_two_radii_have_no_unit(scheme: str) -> None:
    rule = parse(scheme)
    model = sublayers.network(SimulateConfig(schemes=[scheme], dim=16, time=4, weights="network"), rule)
    if scheme.endswith("share=0)"):  # whose other part stands nowhere
        assert sublayers.find_unit(rule, model) == 4.0
        return
    with pytest.raises(ConfigError, match=r"radius \d \(.*\) and \d \(.*needs one: simulate"):
        sublayers.find_unit(rule, model)


@pytest.mark.parametrize(("scheme", "unit"), [("ngpt(entry=embedding)", 1), ("prores(ngpt)", 1), ("attnres", 4)])
def test_the_unit_is_that_of_one_stream(scheme: str, unit: float) -> None:
    model = sublayers.network(SimulateConfig(dim=16, time=4, weights="network"), parse(scheme))
    assert sublayers.find_unit(parse(scheme), model) == pytest.approx(unit)


@pytest.mark.parametrize("weights", ["identity", "kaiming", "network"])
def test_every_option_says_something_and_seeds_repeat(weights: str) -> None:
    """No option is passed over, and the same settings give the same numbers."""
    base: dict[str, Any] = {"schemes": ["pre"], "tokens": 4, "dim": 8, "time": 4.0, "method": "layers", "points": 8}
    base |= {"init": "uniform", "weights": weights, "seeds": 1}
    ends = []
    for changes in ({}, {"mlp": "gelu"}, {"mlp": "swiglu"}, {"heads": 2}, {"causal": True}, {"rope": 100.0}):
        one, two = (geonorm.simulate(**{**base, **changes}).trace for _ in range(2))
        assert one == two
        ends.append(one[-1]["gap"])
    assert len(set(ends)) == len(ends)


def test_attention_and_mlp_draw_apart() -> None:
    config = SimulateConfig(dim=16, tokens=4, weights="kaiming", mlp="relu", hidden=16)
    (_, attention), (_, mlp) = sublayers.build_sublayers(config, parse("pre"), 1)
    assert isinstance(attention, Attention) and isinstance(mlp, Mlp) and attention.q is not None and mlp.up is not None
    overlap = torch.corrcoef(torch.stack((attention.q.flatten(), mlp.up.flatten())))[0, 1]
    assert abs(overlap) < 0.2


def test_rope_turns_scores_by_distance_alone() -> None:
    """Equal tokens: a score depends on how far apart two are, and values do not turn."""
    y = uniform(1, 8).expand(1, 6, 8)
    torch.testing.assert_close(Attention(beta=3.0, rope=50.0)(y), y)
    q = torch.eye(8, dtype=torch.float64)[None, :, :]
    field = Attention(beta=5.0, rope=50.0, q=q, k=q)
    a = field(uniform(6, 8, seeds=(4,)))
    assert not torch.allclose(a, Attention(beta=5.0)(uniform(6, 8, seeds=(4,))), atol=1e-3)


def test_mlps_of_the_identity_and_gated_ones() -> None:
    y = uniform(3, 5)
    for name, act in ACTIVATIONS.items():
        assert torch.equal(Mlp(activation=name)(y), act(y))
        assert torch.equal(Mlp(activation=name, gated=True)(y), act(y) * y)
    drawn = random_mlp(5, seed=2, gated=True, activation="silu")
    assert drawn.up is not None and drawn.gate is not None and drawn.down is not None
    torch.testing.assert_close(drawn(y), (nn.functional.silu(y @ drawn.gate) * (y @ drawn.up)) @ drawn.down)
    assert torch.equal(drawn.up, random_mlp(5, seed=2).up)  # type: ignore[arg-type]  # drawn first, gate or not
    with pytest.raises(ConfigError, match="both up and down"):
        Mlp(up=torch.eye(5))


# docs/theory.md 4.4, 5: exponent of 1 - cos per block of whole layers, each with weights of its own
FORETOLD = [
    ("post", {"causal": True}, "exponential", log(2 / 1.25)),
    ("pre", {"causal": True}, "polynomial", 0.75),
    ("pre", {}, "polynomial", 1.0),
    ("pre", {"causal": True, "mlp": "gelu"}, "polynomial", 0.505),
    ("peri", {"causal": True, "mlp": "swiglu"}, "polynomial", -0.158),
    ("geonorm", {"causal": True, "mlp": "gelu"}, "none", None),
]


@each("scheme, changes, kind, exponent", FORETOLD)
def test_what_is_foretold_of_drawn_networks(scheme: str, changes: Any, kind: str, exponent: float | None) -> None:
    settings: dict[str, Any] = {"weights": "network", "per": "layer", "method": "layers", "init": "cone", "seeds": 1}
    settings |= {"tokens": 2, "dim": 8, "time": 3.0, "points": 8, "delta": 1e-4} | changes
    (row,) = geonorm.simulate(schemes=[scheme], **settings).summary["schemes"]
    assert row["terminal_law_predicted"] == kind
    assert row["terminal_exponent_predicted"] == (None if exponent is None else pytest.approx(exponent, abs=1e-3))
    for unsaid, why in (({"rope": 100.0}, "no positions"), ({"per": "run"}, "random"), ({"method": "rk4"}, "random")):
        (row,) = geonorm.simulate(schemes=[scheme], **{**settings, **unsaid}).summary["schemes"]
        assert row["terminal_law_predicted"] is None and why in row["terminal_law_unpredicted"]


def test_a_network_that_changes_its_values_is_simulated_without_a_theory() -> None:
    settings: dict[str, Any] = {"weights": "network", "per": "layer", "method": "layers", "init": "cone", "seeds": 1}
    found = geonorm.simulate(schemes=["hybrid"], tokens=2, dim=8, time=3.0, points=8, delta=1e-4, **settings)
    (row,) = found.summary["schemes"]
    assert row["terminal_law_unpredicted"] == "hybrid changes v inside attention" and not found.theory


@each("scheme", ["post", "pre", "geonorm(decay=sqrt)"])
@each("mlp", [None, "gelu"])
def test_causal_networks_follow_the_curve_of_the_theory(scheme: str, mlp: str | None) -> None:
    """1 - cos of docs/theory.md 4.4 at all layers, mean over seeds, within the draws; what the page draws as theory."""
    seeds, layers, width = 8, 10, 128
    found = geonorm.simulate(
        schemes=[scheme], tokens=4, dim=width, init="cone", delta=1e-6, weights="network", per="layer", mlp=mlp,
        causal=True, method="layers", time=layers, points=layers + 1, log_time=False, seeds=seeds,
    )  # fmt: skip
    said = found.theory[scheme]
    assert said["times"] == list(range(layers + 1))
    for layer in (3, 6, layers):
        logs = torch.tensor([log(row["gap"]) for row in found.trace if row["time"] == layer], dtype=torch.float64)
        assert len(logs) == seeds
        shrunk = log(said["gap"][layer] / said["gap"][0])
        error = logs.std().item() / sqrt(seeds)
        assert logs.mean().item() == pytest.approx(log(said["gap"][layer]), abs=0.05 * abs(shrunk) + 3 * error)
        assert error < 0.05 * abs(shrunk) + 0.12
    radii = [row["radius"] for row in found.trace if row["time"] == layers]
    assert sum(radii) / seeds == pytest.approx(said["radius"][-1], rel=0.08)


def test_the_closed_equation_is_not_of_mlps_or_positions() -> None:
    base: dict[str, Any] = {"schemes": ["post"], "tokens": 4, "dim": 8, "time": 2.0, "points": 8, "seeds": 1}
    assert geonorm.simulate(**base).theory
    for changes, why in (({"mlp": "gelu"}, "attention alone"), ({"rope": 10.0}, "no positions")):
        found = geonorm.simulate(**base, **changes)
        assert not found.theory and why in found.summary["schemes"][0]["terminal_law_unpredicted"]


def test_a_causal_mask_leaves_the_second_token_at_half_the_rate() -> None:
    """Proposition 3: deviations from the first token shrink at (m/s)(1 - 1/j)."""
    flow = Flow("post", Attention(beta=0.0, causal=True))
    x = flow.start(equiangular(3, 8, 1 - 1e-6))
    (_, a), (_, b) = integrate(flow, x, [8.0, 12.0])
    theta, later = flow.tokens(a)[0], flow.tokens(b)[0]
    torch.testing.assert_close(theta[0], later[0], rtol=0, atol=1e-15)
    rate = -log((later[1] - later[0]).norm().item() / (theta[1] - theta[0]).norm().item()) / 4
    assert rate == pytest.approx(0.5, rel=1e-3) and gap(later[None]).item() < exp(-8) * 1e-6 * 30
