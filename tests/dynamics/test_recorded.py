"""A recorded function is the function, with fewer operations; the recorded motion of a scheme is its motion, whichever
layer or flow calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm.dynamics import Attention, Flow, random_attention, recorded, uniform
from geonorm.dynamics.rates import motion, unit_parts
from geonorm.dynamics.recorded import RECORD_AFTER, Unrecordable, as_scalar, record_around, record_velocity, tensors
from geonorm.norms import NormSpec
from geonorm.schemes import Scheme, Site

from ..rows import each
from .conftest import VECTORIAL

F64 = torch.float64
X = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -2.0]], dtype=F64)
DEPTH, DIM = 8, 5


def count(graph: Any) -> int:
    return sum(node.op == "call_function" for node in graph.graph.nodes)


OUTSIDE = torch.ones(2)


@each(
    "function",
    [
        lambda x: [x if x.sum() > 0 else -x],
        lambda x: [x.clone().add_(1)],
        lambda x: [x * float(x.sum())],
        lambda x: [x * OUTSIDE],
    ],
)
def test_what_no_list_of_operations_says_is_refused(function: Any) -> None:
    with pytest.raises(Unrecordable):
        record_around(lambda ask, x: function(x), X, X)


def test_a_choice_that_is_always_the_same_is_made_once() -> None:
    graph = record_around(lambda ask, x, y: [torch.where(torch.zeros_like(x) < 1, y, x)], X, X, -X)
    assert torch.equal(graph(None, X, 2 * X)[0], 2 * X) and count(graph) == 0


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
    """Traced at one layer, called at others: values of the plain path, which takes the layer as a Python number."""
    flow = Flow(vectorial, Attention(), DEPTH)
    x, u = states(flow)
    rule, site = flow.rule(3.0)
    first = unit_parts(rule, site, DIM, x)
    graph = record_velocity(rule, first, x, u, site)
    checked = 0
    for tau in (0.0, 2.5, 3.0, 6.75):
        at, there = flow.rule(tau)
        parts, flat = (unit_parts(at, there, dim, x) for dim in (DIM, 2 if at.planar else DIM))
        shapes, others = ({name: value.shape for name, value in tensors(p).items()} for p in (first, parts))
        # another scheme of a combinator, or other parts, have a graph of their own
        if at == rule and shapes == others:
            (velocity,) = graph(lambda y: u, x, as_scalar(tau, x), *tensors(parts).values())
            torch.testing.assert_close(velocity, motion(rule, flat, x, u, there)[0], rtol=1e-12, atol=1e-14)
            checked += 1
    assert checked >= 2


def test_a_graph_in_single_precision_and_a_token_that_is_no_number() -> None:
    flow = Flow("geonorm", Attention(), DEPTH)
    x, u = states(flow, torch.float32)
    u[2, 1] = float("nan")
    rule, site = flow.rule(1.0)
    graph = record_velocity(rule, unit_parts(rule, site, DIM, x), x, u, site)
    (velocity,) = graph(lambda y: u, x, as_scalar(4.5, x))
    expected, _ = motion(rule, unit_parts(rule, site, 2, x), x, u, Site(4.5, "attn", DEPTH))
    assert velocity.dtype == torch.float32
    torch.testing.assert_close(velocity, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
    assert velocity.isnan().any(-1).tolist() == [row == 2 for row in range(8)]


OPERATIONS = {"pre": 8, "post": 19, "peri": 15, "sqrt": 24, "ngpt(alpha=1)": 32, "geonorm": 34, "lns": 11}


@each("scheme", OPERATIONS)
def test_few_operations_are_left(scheme: str) -> None:
    """Some hundred were done: what few particles cost is their number. The sub-layer counts as one."""
    flow = Flow(scheme, Attention(), 8)
    x = flow.start(uniform(7, 5))
    rule, site = flow.rule(1.5)
    assert (
        count(record_velocity(rule, flow.parts_at(rule, site, 5, x), x, flow.update(x, 1.5), site))
        <= OPERATIONS[scheme]
    )


def slow(flow: Flow, x: Tensor, tau: float) -> Tensor:
    rule, site = flow.rule(tau)
    return motion(rule, flow.plane_parts(rule, site, x), x, flow.update(x, tau), site)[0]


def graphs(flow: Flow) -> int:
    return sum(record.graph is not None for record in flow.records.values())


@each("scheme", ["pre", "post", "peri", "lns", "ngpt(alpha=1)", "geonorm", "siamese"])
def test_a_flow_records_what_it_often_computes(scheme: str) -> None:
    """The same velocities as the slow twin, `rates.motion`, at all times; weights of a field get their gradient."""
    field = random_attention(5, beta=2.0, seed=1)
    flow = Flow(scheme, field, 8)
    x = flow.start(uniform(7, 5, seeds=(1, 2)))
    for calls in range(RECORD_AFTER + 4):
        assert graphs(flow) == (calls >= RECORD_AFTER)
        torch.testing.assert_close(flow.velocity(x, 0.1 * calls), slow(flow, x, 0.1 * calls), rtol=1e-13, atol=1e-15)
    assert field.v is not None
    field.v.requires_grad_()
    assert torch.autograd.grad(flow.velocity(x, 0.5).pow(3).sum(), field.v)[0].norm() > 1e-3


class Factor(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor


@dataclass(frozen=True)
class Counted(Scheme):
    """A scheme from elsewhere that keeps a number of its layer as a number, where a trace would freeze it."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, nn.Module]:
        return {"scale": Factor(1.0 + int(site.layer))}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: float | Tensor = 1.0) -> Tensor:
        return x + h * p.scale.factor * u


@dataclass(frozen=True)
class Choosy(Scheme):
    """One that looks at its numbers before it decides: nothing that a graph can do."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: float | Tensor = 1.0) -> Tensor:
        return x + h * u if u.sum() > 0 else x - h * u


@dataclass(frozen=True)
class Numeric(Scheme):
    """It takes a number out of a tensor behind PyTorch's back, which a record would freeze."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: float | Tensor = 1.0) -> Tensor:
        return x + h * float((u.detach().numpy() ** 2).sum()) * u


@each("scheme, expected", [("mix(share=0.5)", 2), ("ngpt", 1), (Counted(), 3), (Choosy(), 0), (Numeric(), 0)])
def test_parts_that_differ_have_graphs_of_their_own(
    scheme: Any, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of a combinator, and modules with a number of their own; layers that differ in tensors alone share one,
    and schemes that cannot be recorded stay as they are."""
    monkeypatch.setattr(recorded, "RECORD_AFTER", 2)
    flow = Flow(scheme, Attention(), DEPTH)
    x = flow.start(uniform(6, DIM, seeds=(1, 2)))
    for tau in (1.0, 2.25, 4.0) * 4:
        torch.testing.assert_close(flow.velocity(x, tau), slow(flow, x, tau), rtol=1e-12, atol=1e-14)
    assert graphs(flow) == expected
