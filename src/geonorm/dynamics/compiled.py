"""A scheme's motion as one graph: `rates.motion` recorded once, with its derivative taken, and compiled if asked for.

The derivative of a write is a few hundred small operations, and calling them costs more than their work where particles
are few. Recorded they are a few dozen without autograd (`recorded`), which torch.compile turns into one or two loops
over the particles. Layer, norms and scalars are inputs of the graph: one serves all times at which the same scheme
acts, and values agree with the plain path to rounding: that the layer is a tensor there changes the last digit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule

from ..errors import ConfigError
from ..schemes import Parts, Scheme, Site
from .rates import motion
from .recorded import Unrecordable, record

Motion = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor | None]]
"""(x, u, layer) to what `rates.motion` returns."""
Graph = Callable[..., tuple[Tensor, Tensor | None]]

GRAPHS: dict[tuple[object, ...], Graph] = {}
"""Graphs of this process, compiled or not: seeds, flows and layers that differ in numbers alone share them."""
ASKED: dict[tuple[object, ...], int] = {}
"""How often a motion was asked for that is not recorded yet."""
RECORD_AFTER = 32
"""So often: recording costs as much as some twenty calls."""


def tensors(own: Parts) -> dict[str, Tensor]:
    return {**dict(own.named_parameters()), **dict(own.named_buffers())}


@torch.no_grad()
def record_graph(rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> GraphModule:
    """The graph of (x, u, layer, *tensors(own)) for these shapes: layer a 0-d tensor in fp64, as Python's numbers are.

    It is right for every layer at which `rule` acts with parameters of the same shapes. Raises Unrecordable.
    """

    def flat(x: Tensor, u: Tensor, layer: Tensor, *values: Tensor) -> tuple[Tensor, Tensor | None]:
        return motion(rule, own, x, u, Site(layer, site.kind, site.depth))  # values: the parameters that own has

    return record(flat, x.detach(), u.detach(), number(site.layer, x), *tensors(own).values())


def number(layer: float, like: Tensor) -> Tensor:
    return torch.tensor(float(layer), dtype=torch.float64, device=like.device)


def quicken_motion(rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> Motion:
    """The motion of a rule for tensors like x and u and the parameters of a site. It is `rates.motion` at first, and
    recorded once that was asked for often; for ever so where it cannot be recorded. No gradients."""
    key = ("recorded", *of_graph(rule, own, x, u, site))
    values = list(tensors(own).values())

    def run(x: Tensor, u: Tensor, layer: float) -> tuple[Tensor, Tensor | None]:
        if (graph := GRAPHS.get(key)) is not None:
            return graph(x, u, number(layer, x), *values)
        at = Site(layer, site.kind, site.depth)
        ASKED[key] = ASKED.get(key, 0) + 1
        if ASKED[key] == RECORD_AFTER:
            try:
                made = record_graph(rule, own, x, u, at)
                if says_the_same(made, rule, own, x, u, at):
                    GRAPHS[key] = made.forward
            except Unrecordable:
                pass
        return motion(rule, own, x, u, at)

    return run


def says_the_same(graph: Graph, rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> bool:
    """Whether a graph is the motion also at another time and of other tokens: a scheme may do what no graph shows, such
    as asking Python about its numbers."""
    x, u, layer = x.flip(-2), 0.5 * u, 0.5 * site.layer + 0.25
    found = graph(x, u, number(layer, x), *tensors(own).values())
    wanted = motion(rule, own, x, u, Site(layer, site.kind, site.depth))
    near = 1e-3 * torch.finfo(x.dtype).eps ** 0.5
    return all(
        a is b or (a is not None and b is not None and torch.allclose(a, b, rtol=near, atol=near, equal_nan=True))
        for a, b in zip(found, wanted, strict=True)
    )


def compile_motion(rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> Motion:
    """The motion of a rule for tensors like x and u and the parameters of a site; compiles where no other flow, seed
    or layer has done so, which takes seconds. No gradients. Raises ConfigError where the compiler fails."""
    key = of_graph(rule, own, x, u, site)
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


def of_graph(rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> tuple[object, ...]:
    """What two motions must have in common to share a graph."""
    return rule, site.kind, site.depth, constants(own), x.shape, u.shape, x.dtype, x.device


def constants(own: Parts) -> tuple[object, ...]:
    """What a record freezes of a site's modules: everything but the values of their tensors."""
    plain = (bool, int, float, str)
    kinds = [
        (name, type(module), *(pair for pair in vars(module).items() if isinstance(pair[1], plain)))
        for name, module in own.named_modules()
    ]
    return *kinds, *((name, value.shape) for name, value in tensors(own).items())
