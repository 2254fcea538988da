"""A recorded function is the function, with fewer operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import sphere
from geonorm.dynamics import Attention, Flow, random_attention, recorded_velocity, uniform
from geonorm.dynamics.rates import motion
from geonorm.dynamics.recorded import Unrecordable, record_around
from geonorm.schemes import Scheme, Site

from ..rows import each
from .test_recorded_velocity import Choosy

F64 = torch.float64
X = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -2.0]], dtype=F64)
Y = torch.tensor([[1.0, 0.5], [2.0, 0.0], [0.0, 0.0]], dtype=F64)


def slope(write: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, u: Tensor) -> Tensor:
    """d/dh of write(x, u, h) at 0."""
    with torch.enable_grad():
        h = torch.zeros((), dtype=x.dtype, requires_grad=True)
        after = write(x, u, h)
        cotangent = torch.zeros_like(after, requires_grad=True)
        (backward,) = torch.autograd.grad(after, h, cotangent, create_graph=True)
    return torch.autograd.grad(backward, cotangent)[0]


FUNCTIONS: list[tuple[Callable[[Tensor, Tensor], Sequence[Tensor]], int]] = [
    (lambda x, y: [x + 0.0 * torch.zeros_like(y), x * torch.ones_like(y), x], 0),  # nothing is done
    (lambda x, y: [sphere.radius(x), sphere.safe_divide(sphere.radius(x), sphere.radius(y))], 9),
    (lambda x, y: [x * y + x * y, (x * y).sum()], 3),  # what was done is not done again
    (lambda x, y: [torch.cat((x[..., :1], y), -1)[..., 1:2] * 2.0], 4),
    (lambda x, y: [sphere.safe_divide(sphere.safe_divide(x, y) * y.square(), y)], 6),  # one guard is enough
    (lambda x, y: [x * y.sum(-1, keepdim=True).expand_as(x), x * y[0].view(1, 2)], 5),  # broadcasting does it
    (lambda x, y: [torch.where(torch.zeros_like(x) < 1, y, x), torch.zeros_like(x) + 2], 0),
    (lambda x, y: [slope(lambda x, u, h: x + h * u, x, y)], 0),
    (lambda x, y: [slope(lambda x, u, h: torch.cos(h * u) * x + torch.sin(h * u) * u, x, y)], 4),
    (lambda x, y: [a * b for a, b in zip(x.unbind(-1), y.unbind(-1), strict=True)], 8),
]


@each("function, most", FUNCTIONS)
def test_values_on_other_inputs(function: Any, most: int) -> None:
    graph = record_around(lambda ask, *inputs: function(*inputs), X, X, Y)
    for x, y in ((X, Y), (Y, X), (X * 1e-160, Y), (X.flip(0), torch.full_like(Y, float("nan")))):
        for found, wanted in zip(graph(None, x, y), function(x, y), strict=True):
            assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0)) and found.dtype == wanted.dtype
    assert sum(node.op == "call_function" for node in graph.graph.nodes) <= most


OUTSIDE = torch.ones(2)


@pytest.mark.parametrize(
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


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    monkeypatch.setattr(recorded_velocity, "GRAPHS", {})
    return recorded_velocity.GRAPHS


@each("scheme", ["pre", "post", "peri", "lns", "ngpt(alpha=1)", "geonorm", "siamese"])
def test_a_flow_records_what_it_is_asked_for_often(scheme: str, graphs: dict[Any, Any]) -> None:
    """The same velocities as the slow twin, `rates.motion`, at all times."""
    graphs.clear()
    flow = Flow(scheme, Attention(beta=2.0), 8)
    x = flow.start(uniform(7, 5, seeds=(1, 2)))
    for asked in range(recorded_velocity.RECORD_AFTER + 4):
        tau = 0.1 * asked
        rule, site = flow.rule(tau)
        u = flow.update(x, tau)
        slow = motion(rule, flow.own(rule, site, 2 if rule.planar else 5, x), x, u, site)[0]
        assert bool(graphs) == (asked >= recorded_velocity.RECORD_AFTER)
        torch.testing.assert_close(flow.velocity(x, tau), slow, rtol=1e-13, atol=1e-15)
    assert len(graphs) == 1


def test_numbers_do_not_depend_on_what_ran_before(graphs: dict[Any, Any]) -> None:
    def run() -> list[Tensor]:
        flow = Flow("post", Attention(beta=2.0), 8)
        x = flow.start(uniform(7, 5))
        return [flow.velocity(x, 0.1 * i) for i in range(recorded_velocity.RECORD_AFTER + 2)]

    first, second = run(), run()
    assert graphs and all(map(torch.equal, first, second))


@pytest.mark.parametrize("shared", [False, True])
def test_another_function_may_be_asked_in_between(shared: bool) -> None:
    """Whatever it does; also where what it said first is an input itself."""

    def function(ask: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
        return [ask(x * y) * x + y]

    graph = record_around(function, X if shared else Y, X, Y)
    for other in (torch.exp, torch.clone, lambda z: z if z.sum() > 0 else -z):
        assert torch.equal(graph(other, Y, X)[0], function(other, Y, X)[0])


OPERATIONS = {"pre": 7, "post": 16, "peri": 13, "sqrt": 20, "ngpt(alpha=1)": 26, "geonorm": 30, "lns": 10}


@each("scheme", OPERATIONS)
def test_few_operations_are_left(scheme: str) -> None:
    """Some hundred were done: what few particles cost is their number. The sub-layer counts as one."""
    flow = Flow(scheme, Attention(), 8)
    x = flow.start(uniform(7, 5))
    rule, site = flow.rule(1.5)
    graph = recorded_velocity.record_velocity(rule, flow.own(rule, site, 5, x), x, flow.update(x, 1.5), site)
    assert sum(node.op == "call_function" for node in graph.graph.nodes) <= OPERATIONS[scheme]


@dataclass(frozen=True)
class Stepped(Scheme):
    """It asks Python which layer it is, where a record has one layer for all."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: float | Tensor = 1.0) -> Tensor:
        return x + h * (1.0 if float(site.layer) < 3 else 2.0) * u


@pytest.mark.parametrize("scheme", [Choosy(), Stepped()], ids=["values", "layers"])
def test_schemes_that_cannot_be_recorded_stay_as_they_are(scheme: Scheme, graphs: dict[Any, Any]) -> None:
    flow = Flow(scheme, Attention(), 8)
    x = flow.start(uniform(6, 5))
    for asked in range(recorded_velocity.RECORD_AFTER + 40):
        tau = 0.05 * asked
        rule, site = flow.rule(tau)
        u = flow.update(x, tau)
        slow = motion(rule, flow.own(rule, site, 2, x), x, u, site)[0]
        assert torch.equal(flow.velocity(x, tau), slow)
    assert not graphs


def test_weights_of_a_field_get_their_gradient_also_of_what_is_recorded(graphs: dict[Any, Any]) -> None:
    field = random_attention(5, seed=1)
    flow = Flow("post", field, 8)
    x = flow.start(uniform(6, 5))
    for _ in range(recorded_velocity.RECORD_AFTER + 1):
        plain = flow.velocity(x, 0.5)
    assert graphs
    assert field.v is not None
    field.v.requires_grad_()
    (found,) = torch.autograd.grad(flow.velocity(x, 0.5).pow(3).sum(), field.v)
    assert found.norm() > 0.1 and not plain.requires_grad
