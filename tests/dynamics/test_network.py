"""Blocks of a decoder as particles: against real decoders, and against docs/theory-random-weights.md."""

from math import log, sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import geonorm
from geonorm import Decoder, parse
from geonorm.dynamics import Flow, Fresh, fields, integrate, uniform
from geonorm.dynamics.config import SimulateConfig
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
DRAWN: dict[str, Any] = {"weights": "network", "per": "layer", "method": "layers"}


@each("scheme, changes", NETWORKS)
def test_a_network_of_particles_is_a_decoder(scheme: str, changes: dict[str, Any]) -> None:
    """The stream of a decoder with these very weights, in units of sqrt(width), block by block."""
    layers, n, width = 4, 5, 16
    config = SimulateConfig(schemes=[scheme], tokens=n, dim=width, time=layers, init="uniform", **DRAWN, **changes)
    rule = parse(scheme)
    sublayers = fields.build_sublayers(config, rule, 3, torch.device("cpu"))
    model = Decoder(fields.describe_network(config, rule)).double()
    first = [next(iter(field.make(0).branch.children())).weight[0] for _, field in sublayers]  # type: ignore
    assert config.mlp is None or F.cosine_similarity(*first, dim=0) < 0.99, "drawn apart"
    for layer, block in enumerate(model.blocks):
        for kind, field in sublayers:
            assert isinstance(field, Fresh)
            getattr(block, kind).branch.load_state_dict(field.make(layer).branch.state_dict())  # type: ignore
        if config.mlp is None:
            nn.init.zeros_(block.mlp.branch.down.weight)
    flow = Flow(rule, sublayers, layers)
    x = uniform(n, width, seeds=(7, 8))
    unit = fields.find_unit(rule, fields.describe_network(config, rule))
    assert unit == pytest.approx(1.0 if scheme == "ngpt" else sqrt(width))
    stream: Tensor = model.entry(3.0 * x)
    positions = None if config.rope is None else rope(torch.arange(n), width // config.heads, config.rope)
    walk = integrate(flow, flow.enter(x), range(1, layers + 1), method="layers")
    with torch.no_grad():
        for block, (_, state) in zip(model.blocks, walk, strict=True):
            stream = block.attn(stream, positions=positions)
            stream = stream if config.mlp is None else block.mlp(stream)
            torch.testing.assert_close(state, stream / unit, rtol=1e-9, atol=1e-9)


UNITS = [
    ("ngpt(entry=embedding)", 1.0), ("prores(ngpt)", 1.0), ("attnres", 4.0),
    ("mix(ngpt, pre, share=0)", 4.0),  # whose other part stands nowhere
    ("mix(ngpt, pre, share=0.5)", None), ("per_kind(pre, angpt)", None),
]  # fmt: skip


@each("scheme, unit", UNITS)
def test_the_unit_is_that_of_one_stream(scheme: str, unit: float | None) -> None:
    model = fields.describe_network(SimulateConfig(dim=16, time=4, weights="network"), parse(scheme))
    if unit is None:  # streams of two radii have none
        with pytest.raises(ConfigError, match=r"radius \d \(.*\) and \d \(.*needs one: simulate"):
            fields.find_unit(parse(scheme), model)
    else:
        assert fields.find_unit(parse(scheme), model) == pytest.approx(unit)


def test_what_is_predicted_of_drawn_networks() -> None:
    """Exponents of other networks: test_drawn.py."""
    settings = DRAWN | {"tokens": 2, "dim": 8, "time": 3.0, "points": 8, "init": "cone", "delta": 1e-4, "seeds": 1}
    (row,) = geonorm.simulate(schemes=["pre"], **settings).summary["schemes"]
    assert row["terminal_law_predicted"] == "polynomial"
    assert row["terminal_exponent_predicted"] == pytest.approx(1.0, abs=1e-3)
    for other, why in (("rope", 100.0), "no positions"), (("per", "run"), "random"), (("method", "adaptive"), "random"):
        (row,) = geonorm.simulate(schemes=["pre"], **{**settings, **dict([other])}).summary["schemes"]
        assert row["terminal_law_predicted"] is None and why in row["terminal_law_unpredicted"]
    simulation = geonorm.simulate(schemes=["hybrid"], **settings)
    (row,) = simulation.summary["schemes"]
    assert row["terminal_law_unpredicted"] == "hybrid changes v inside attention" and not simulation.theory


@each("scheme, mlp", [("post", None), ("pre", "gelu"), ("geonorm(decay=sqrt)", "gelu")])
def test_causal_networks_follow_the_curve_of_the_theory(scheme: str, mlp: str | None) -> None:
    """1 - cos of docs/theory-random-weights.md at all layers, mean over seeds, within the draws."""
    seeds, layers, width = 8, 10, 128
    simulation = geonorm.simulate(
        schemes=[scheme], tokens=4, dim=width, init="cone", delta=1e-6, mlp=mlp, causal=True, time=layers,
        points=layers + 1, log_time=False, seeds=seeds, **DRAWN,
    )  # fmt: skip
    curve = simulation.theory[scheme]
    assert curve["times"] == list(range(layers + 1))
    for layer in (3, 6, layers):
        logs = torch.tensor([log(row["gap"]) for row in simulation.trace if row["time"] == layer], dtype=torch.float64)
        assert len(logs) == seeds
        shrunk = log(curve["gap"][layer] / curve["gap"][0])
        error = logs.std().item() / sqrt(seeds)
        assert logs.mean().item() == pytest.approx(log(curve["gap"][layer]), abs=0.05 * abs(shrunk) + 3 * error)
        assert error < 0.05 * abs(shrunk) + 0.12
    radii = [row["radius"] for row in simulation.trace if row["time"] == layers]
    assert sum(radii) / seeds == pytest.approx(curve["radius"][-1], rel=0.08)
