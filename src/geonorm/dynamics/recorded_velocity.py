"""A scheme's velocity as a short list of operations: recorded once, with its derivative taken.

The derivative of a write is a few hundred small operations, and calling them costs more than their work where particles
are few. Recorded they are one or two dozen without autograd (`recorded`), the read among them. Layer, norms and scalars
are inputs of the graph: one serves all times at which the same scheme acts, and values agree with the slow twin,
`rates.motion`, to rounding: that one works in the plane of x and u, a record in all dimensions at once, which are fewer
operations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule

from ..schemes import Parts, Scheme, Site, read_at
from .rates import derivative, motion
from .recorded import Unrecordable, record_around

Propose = Callable[[Tensor], Tensor]
"""What the sub-layer reads to what it proposes."""
Velocity = Callable[[Tensor, float, Propose], Tensor]
"""(x, layer, propose) to dx/dh at h = 0."""
Graph = Callable[..., tuple[Tensor, ...]]

GRAPHS: dict[tuple[object, ...], Graph] = {}
"""Graphs of this process: seeds, flows and layers that differ in numbers alone share them."""
Asked = dict[tuple[object, ...], list[int]]
"""How often a flow was asked for each of its velocities: a list of one number."""
RECORD_AFTER = 32
"""From the next time on it is recorded: that costs as much as some twenty calls. A flow counts for itself, so that its
numbers do not depend, in their last digit, on what ran before it in the same process."""


def tensors(own: Parts) -> dict[str, Tensor]:
    return {**dict(own.named_parameters()), **dict(own.named_buffers())}


@torch.no_grad()
def record_velocity(rule: Scheme, own: Parts, x: Tensor, u: Tensor, site: Site) -> GraphModule:
    """The graph of (propose, x, layer, *tensors(own)) to (dx/dh,) for these shapes: layer a 0-d tensor in fp64, as
    Python's numbers are; own the parts at dim = x.shape[-1].

    It is right for every layer at which `rule` acts with parameters of the same shapes. Raises Unrecordable.
    """

    def flat(propose: Propose, x: Tensor, layer: Tensor, *values: Tensor) -> list[Tensor]:
        at = Site(layer, site.kind, site.depth)  # values: the parameters that own has
        y, _ = read_at(rule, x, own(), at)
        return [derivative(rule, own, x, propose(y), at)]

    return record_around(flat, u, x.detach(), number(site.layer, x), *tensors(own).values())


def number(layer: float, like: Tensor) -> Tensor:
    return torch.full((), float(layer), dtype=torch.float64, device=like.device)


def quicken_velocity(rule: Scheme, own: Parts, flat: Parts, x: Tensor, site: Site, asked: Asked) -> Velocity:
    """The velocity of a rule for states like x and the parameters of a site, at all dimensions and, `flat`, as
    `rates.motion` wants them. It is the slow one at first, and recorded once a flow asked for it often; for ever so
    where it cannot be recorded. No gradients."""
    key = of_graph(rule, own, x, site)
    values, count = list(tensors(own).values()), asked.setdefault(key, [0])
    graph: Graph | None = None

    def run(x: Tensor, layer: float, propose: Propose) -> Tensor:
        nonlocal graph
        if graph is None:
            count[0] += 1
            graph = GRAPHS.get(key) if count[0] > RECORD_AFTER else None
        if graph is not None:
            return graph(propose, x, number(layer, x), *values)[0]
        at = Site(layer, site.kind, site.depth)
        u = propose(read_at(rule, x, own(), at)[0])
        if count[0] == RECORD_AFTER and key not in GRAPHS:
            try:
                made = record_velocity(rule, own, x, u, at)
                if says_the_same(made, rule, own, flat, x, u, at):
                    GRAPHS[key] = made.forward
            except Unrecordable:
                pass
        return motion(rule, flat, x, u, at)[0]

    return run


def says_the_same(graph: Graph, rule: Scheme, own: Parts, flat: Parts, x: Tensor, u: Tensor, site: Site) -> bool:
    """Whether a graph is the velocity also at another time and of other tokens: a scheme may do what no graph shows,
    such as asking Python about its numbers."""
    x, u, at = x.flip(-2), 0.5 * u, Site(0.5 * site.layer + 0.25, site.kind, site.depth)
    read: list[Tensor] = []

    def propose(y: Tensor) -> Tensor:
        read.append(y)
        return u

    found = (*graph(propose, x, number(at.layer, x), *tensors(own).values()), *read)
    wanted = motion(rule, flat, x, u, at)[0], read_at(rule, x, own(), at)[0]
    near = torch.finfo(x.dtype).eps ** 0.75
    return all(torch.allclose(a, b, rtol=near, atol=near, equal_nan=True) for a, b in zip(found, wanted, strict=True))


def of_graph(rule: Scheme, own: Parts, x: Tensor, site: Site) -> tuple[object, ...]:
    """What two velocities must have in common to share a graph."""
    return rule, site.kind, site.depth, constants(own), x.shape, x.dtype, x.device


def constants(own: Parts) -> tuple[object, ...]:
    """What a record freezes of a site's modules: everything but the values of their tensors."""
    plain = (bool, int, float, str)
    kinds = [
        (name, type(module), *(pair for pair in vars(module).items() if isinstance(pair[1], plain)))
        for name, module in own.named_modules()
    ]
    return *kinds, *((name, value.shape) for name, value in tensors(own).items())
