"""A scheme's motion as one compiled graph: `rates.motion` traced once, with its derivative taken, for torch.compile.

The derivative of a write is a few hundred small operations, and calling them costs more than their work. Traced they
are a flat list without autograd, which the compiler turns into one or two loops over the particles. Layer, norms and
scalars are inputs of the graph: one serves all times at which the same scheme acts, and values agree with the plain
path to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ..errors import ConfigError
from ..schemes import Parts, Scheme, Site
from .rates import motion

Motion = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor | None]]
"""(x, u, layer) to what `rates.motion` returns."""
Graph = Callable[..., tuple[Tensor, Tensor | None]]

GRAPHS: dict[tuple[object, ...], Graph] = {}
"""Compiled graphs of this process: seeds, flows and layers that differ in numbers alone share them."""


class Motions(nn.Module):
    """`rates.motion` as a module, so that the parameters of the site can be given from outside."""

    def __init__(self, rule: Scheme, own: Parts, site: Site) -> None:
        super().__init__()
        self.rule, self.own, self.kind, self.depth = rule, own, site.kind, site.depth

    def forward(self, x: Tensor, u: Tensor, layer: Tensor) -> tuple[Tensor, Tensor | None]:
        return motion(self.rule, self.own, x, u, Site(layer, self.kind, self.depth))


def tensors(own: Parts) -> dict[str, Tensor]:
    return {**dict(own.named_parameters()), **dict(own.named_buffers())}


def record_graph(rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> GraphModule:
    """The graph of (x, u, layer, *tensors(own)) for these shapes: layer a 0-d tensor in fp64, as Python's numbers are.

    It is right for every layer at which `rule` acts with parameters of the same shapes.
    """
    module, names = Motions(rule, own, site), [f"own.{name}" for name in tensors(own)]

    def flat(x: Tensor, u: Tensor, layer: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, u, layer))

    with torch.no_grad():
        return make_fx(flat)(x, u, number(site.layer, x), *tensors(own).values())


def number(layer: float, like: Tensor) -> Tensor:
    return torch.tensor(float(layer), dtype=torch.float64, device=like.device)


def compile_motion(rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> Motion:
    """The motion of a rule for tensors like x and u and the parameters of a site; compiles where no other flow, seed
    or layer has done so, which takes seconds. No gradients. Raises ConfigError where the compiler fails."""
    key = (rule, site.kind, site.depth, constants(own), x.shape, u.shape, x.dtype, x.device)
    values = list(tensors(own).values())
    if key not in GRAPHS:
        x, u = x.detach().contiguous(), u.detach().contiguous()
        try:
            with torch.no_grad():
                made: Graph = torch.compile(record_graph(rule, own, x, u, site).forward, dynamic=False)
                made(x, u, number(site.layer, x), *values)  # compiles
        except Exception as error:  # a compiler may fail in any way
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(f"{rule} cannot be compiled here, simulate without compile: {why[0]}") from error
        GRAPHS[key] = made
    graph = GRAPHS[key]

    @torch.no_grad()
    def run(x: Tensor, u: Tensor, layer: float) -> tuple[Tensor, Tensor | None]:
        return graph(x.contiguous(), u.contiguous(), number(layer, x), *values)

    return run


def constants(own: Parts) -> tuple[object, ...]:
    """What a trace freezes of a site's modules: everything but the values of their tensors."""
    plain = (bool, int, float, str)
    kinds = [
        (name, type(module), *(pair for pair in vars(module).items() if isinstance(pair[1], plain)))
        for name, module in own.named_modules()
    ]
    return *kinds, *((name, value.shape) for name, value in tensors(own).items())
