"""The traced motion of a scheme is the motion of the scheme, whichever layer, seed or flow asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm import Site, parse
from geonorm.dynamics import Attention, Flow, compiled, integrate, random_attention, random_mlp, uniform
from geonorm.dynamics.rates import motion, parameters
from geonorm.errors import ConfigError
from geonorm.norms import NormSpec
from geonorm.schemes import Scheme

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


def test_the_graph_is_the_motion_at_every_layer(vectorial: str) -> None:
    """Traced at one layer, asked at others: values of the plain path, which takes the layer as a Python number."""
    flow = Flow(vectorial, Attention(), DEPTH)
    x, u = states(flow)
    rule, site = flow.rule(3.0)
    own = parameters(rule, site, DIM, x)
    graph = compiled.record_motion(rule, own, x, u, site)
    parts = {name: value.shape for name, value in compiled.tensors(own).items()}
    checked = 0
    for tau in (0.0, 2.5, 3.0, 6.75):
        at, there = flow.rule(tau)
        own, flat = (parameters(at, there, dim, x) for dim in (DIM, 2 if at.planar else DIM))
        tensors = compiled.tensors(own)
        # another scheme of a combinator, or other parts, have a graph of their own
        if at == rule and {name: value.shape for name, value in tensors.items()} == parts:
            values = tensors.values()
            (found,) = graph(x, u, compiled.number(tau, x), *values)
            expected = motion(rule, flat, x, u, there)[0]
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
            checked += 1
    assert checked >= 2


def test_a_graph_in_single_precision_and_a_token_that_is_no_number() -> None:
    flow = Flow("geonorm", Attention(), DEPTH)
    x, u = states(flow, torch.float32)
    u[2, 1] = float("nan")
    rule, site = flow.rule(1.0)
    graph = compiled.record_motion(rule, parameters(rule, site, DIM, x), x, u, site)
    found = graph(x, u, compiled.number(4.5, x))
    expected = motion(rule, parameters(rule, site, 2, x), x, u, Site(4.5, "attn", DEPTH))[:1]
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
    assert found[0].isnan().any(-1).tolist() == [row == 2 for row in range(8)]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Graphs of this test alone, run as they are: a compiler takes seconds and changes rounding only."""

    def keep(graph: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        return graph

    monkeypatch.setattr(torch, "compile", keep)
    monkeypatch.setattr(compiled, "GRAPHS", {})
    return compiled.GRAPHS


def both(scheme: str | Scheme, *rest: Any) -> tuple[Flow, Flow]:
    return Flow(scheme, *rest), Flow(scheme, *rest, compile=True)


def test_a_combinator_takes_a_graph_per_scheme_and_seeds_share_it(graphs: dict[Any, Any]) -> None:
    sublayers = [("attn", random_attention(DIM, seed=1)), ("mlp", random_mlp(DIM, seed=2))]
    plain, fast = both("mix(share=0.5)", sublayers, DEPTH)
    x = plain.start(uniform(6, DIM, seeds=(1, 2)))
    for tau in (0.0, 2.25, 3.5, 4.0, 7.0, 12.5):
        torch.testing.assert_close(fast.velocity(x, tau), plain.velocity(x, tau), rtol=1e-12, atol=1e-14)
    assert len(graphs) == 4  # two schemes at two kinds of site
    again = Flow("mix(share=0.5)", sublayers, DEPTH, compile=True)
    again.velocity(plain.start(uniform(6, DIM, seeds=(3, 4))), 1.0)
    assert len(graphs) == 4
    again.velocity(x[:1], 1.0)
    assert len(graphs) == 6


def test_a_gradient_takes_the_plain_path(graphs: dict[Any, Any]) -> None:
    plain, fast = both("geonorm", Attention(beta=2.0), DEPTH)
    x = plain.start(uniform(4, DIM)).requires_grad_()
    ends = (next(integrate(flow, x, [1.0], method="rk4", step=0.5))[1] for flow in (plain, fast))
    slopes = [torch.autograd.grad(end.pow(3).sum(), x)[0] for end in ends]
    assert slopes[0].norm() > 0.1 and torch.equal(*slopes) and not graphs


def test_a_schedule_that_has_run_out_is_refused(graphs: dict[Any, Any]) -> None:
    for flow in both("geonorm(decay=linear)", Attention(), 4):
        x = flow.start(uniform(4, 6))
        assert flow.velocity(x, 3.9).isfinite().all() and bool(graphs) == flow.compile
        with pytest.raises(ConfigError, match="backwards after its last layer"):
            flow.velocity(x, 5.5)


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


def test_schemes_from_elsewhere(graphs: dict[Any, Any]) -> None:
    plain, fast = both(Counted(), Attention(), DEPTH)
    x = plain.start(uniform(4, DIM))
    for tau in (0.0, 0.5, 3.0):
        torch.testing.assert_close(fast.velocity(x, tau), plain.velocity(x, tau), rtol=1e-12, atol=1e-14)
    assert len(graphs) == 2
    with pytest.raises(ConfigError, match=r"cannot be compiled here.*without compile"):
        Flow(Choosy(), Attention(), DEPTH, compile=True).velocity(x, 0.0)


def test_a_compiler_that_fails_is_named_in_one_line(graphs: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            raise RuntimeError("no C++ compiler\nand twenty lines about it")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    flow = Flow("pre", Attention(), DEPTH, compile=True)
    with pytest.raises(ConfigError) as caught:
        flow.velocity(flow.start(uniform(4, DIM)), 0.0)
    assert str(caught.value) == "pre cannot be compiled here, simulate without compile: no C++ compiler"
    assert not graphs and not flow.graphs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own compiler uses TorchScript
@pytest.mark.parametrize("scheme", ["geonorm", "ngpt", "siamese"])
def test_a_compiler_keeps_the_numbers(scheme: str) -> None:
    plain, fast = both(scheme, Attention(beta=2.0), DEPTH)
    x = plain.start(uniform(33, 17))
    for tau in (0.0, 3.25):
        torch.testing.assert_close(fast.velocity(x, tau), plain.velocity(x, tau), rtol=1e-12, atol=1e-14)
    if parse(scheme).planar:
        settings: dict[str, Any] = {"schemes": [scheme], "tokens": 4, "dim": 4, "time": 3.0, "points": 8}
        a, b = (geonorm.simulate(**settings, compile=compile) for compile in (False, True))
        old, new = ([row[key] for row in found.trace for key in ("gap", "radius", "speed")] for found in (a, b))
        assert new == pytest.approx(old, rel=1e-9, abs=1e-12)
