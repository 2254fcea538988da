"""The recorded motion of a scheme is the motion of the scheme, whichever layer, seed or flow asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import Site
from geonorm.dynamics import Attention, Flow, recorded_velocity, uniform
from geonorm.dynamics.rates import motion, parameters
from geonorm.norms import NormSpec
from geonorm.schemes import Scheme

from ..rows import each
from .conftest import VECTORIAL

F64 = torch.float64
DEPTH, DIM = 8, 5


def states(flow: Flow, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    """Tokens of different radii; updates small, large, along the token, and none."""
    generator = torch.Generator().manual_seed(2)
    x = flow.enter(torch.randn(8, DIM, generator=generator, dtype=F64).to(dtype))
    u = torch.randn(8, DIM, generator=generator, dtype=F64).to(dtype)
    u = u * torch.tensor([1e-3, 1e-3, 0.3, 1.0, 3.0, 100.0, 1.0, 0.0], dtype=dtype).unsqueeze(-1)
    if flow.streams == 1:
        u[6] = -2 * x[6]
    return x, u


@each("vectorial", VECTORIAL)
def test_the_graph_is_the_motion_at_every_layer(vectorial: str) -> None:
    """Traced at one layer, asked at others: values of the plain path, which takes the layer as a Python number."""
    flow = Flow(vectorial, Attention(), DEPTH)
    x, u = states(flow)
    rule, site = flow.rule(3.0)
    own = parameters(rule, site, DIM, x)
    graph = recorded_velocity.record_velocity(rule, own, x, u, site)
    parts = {name: value.shape for name, value in recorded_velocity.tensors(own).items()}
    checked = 0
    for tau in (0.0, 2.5, 3.0, 6.75):
        at, there = flow.rule(tau)
        own, flat = (parameters(at, there, dim, x) for dim in (DIM, 2 if at.planar else DIM))
        tensors = recorded_velocity.tensors(own)
        # another scheme of a combinator, or other parts, have a graph of their own
        if at == rule and {name: value.shape for name, value in tensors.items()} == parts:
            values = tensors.values()
            (found,) = graph(lambda y: u, x, recorded_velocity.number(tau, x), *values)
            expected = motion(rule, flat, x, u, there)[0]
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
            checked += 1
    assert checked >= 2


def test_a_graph_in_single_precision_and_a_token_that_is_no_number() -> None:
    flow = Flow("geonorm", Attention(), DEPTH)
    x, u = states(flow, torch.float32)
    u[2, 1] = float("nan")
    rule, site = flow.rule(1.0)
    graph = recorded_velocity.record_velocity(rule, parameters(rule, site, DIM, x), x, u, site)
    found = graph(lambda y: u, x, recorded_velocity.number(4.5, x))
    expected = motion(rule, parameters(rule, site, 2, x), x, u, Site(4.5, "attn", DEPTH))[:1]
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
    assert found[0].isnan().any(-1).tolist() == [row == 2 for row in range(8)]


class Factor(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor


@dataclass(frozen=True)
class Counted(Scheme):
    """A scheme from elsewhere that keeps a number of its layer as a number, where a trace would freeze it."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"kept": Factor(1.0 + int(site.layer))}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: float | Tensor = 1.0) -> Tensor:
        return x + h * p.kept.factor * u


@dataclass(frozen=True)
class Choosy(Scheme):
    """One that looks at its numbers before it decides: nothing that a graph can do."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: float | Tensor = 1.0) -> Tensor:
        return x + h * u if u.sum() > 0 else x - h * u


def test_parts_that_differ_have_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of a combinator, and modules with a number of their own; seeds share a graph."""
    monkeypatch.setattr(recorded_velocity, "GRAPHS", {})
    monkeypatch.setattr(recorded_velocity, "RECORD_AFTER", 2)
    for scheme, expected in (("mix(share=0.5)", 2), (Counted(), 3)):
        flow = Flow(scheme, Attention(), DEPTH)
        x = flow.start(uniform(6, DIM, seeds=(1, 2)))
        for tau in (1.0, 2.25, 4.0) * 4:
            rule, site = flow.rule(tau)
            slow = motion(rule, flow.own_flat(rule, site, x), x, flow.update(x, tau), site)[0]
            torch.testing.assert_close(flow.velocity(x, tau), slow, rtol=1e-12, atol=1e-14)
        assert len(recorded_velocity.GRAPHS) == expected
        recorded_velocity.GRAPHS.clear()
