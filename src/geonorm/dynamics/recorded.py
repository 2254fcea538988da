"""A scheme's velocity as a short list of operations: recorded once, with its derivative taken.

The velocity is a derivative at h = 0, and autograd takes it through a few hundred small operations, most of whose
results are then 0 or 1; on few particles calling them is all that costs. What is recorded is what reaches PyTorch's
kernels, behind autograd, and it is shortened on the way: a tensor of one repeated number that does not depend on the
inputs is that number, an operation that changes nothing is left out, and one that was done before is not done again.
One or two dozen remain. They give the numbers of `rates.motion` to rounding (that one works in the plane of x and u, a
record in all dimensions at once), but for the sign of a zero, and a NaN where a zero met an infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import call, getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import GeonormError
from ..schemes import Parts, Scheme, Site, read_at
from .rates import derivative, motion

Propose = Callable[[Tensor], Tensor]
"""What the sub-layer reads to the update that it proposes."""
RECORD_AFTER = 32
"""Calls of a velocity until it is recorded, which costs as much as some twenty calls."""
NEW = {"zeros", "ones", "full", "scalar_tensor", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones"}
"""Operations whose result is one number, whatever their argument is."""
SAME = {"expand", "clone", "_to_copy"}
"""Operations that leave the numbers as they are, where shape and dtype stay."""


class Unrecordable(GeonormError):
    """A function that looks at its numbers, or changes a tensor in place."""


@dataclass
class RecordedVelocity:
    """Velocities that may share a graph: how often they were called, and the graph, once there is one."""

    calls: int = 0
    graph: Callable[..., tuple[Tensor, ...]] | None = None


class Velocity:
    """dx/dtau of one rule at the parts of one site, for states of one shape; no gradients. Slow at first, recorded
    after RECORD_AFTER calls; slow for ever where the rule cannot be recorded.

    parts: of the site, at all dimensions; flat_parts: those that `rates.motion` wants; record: of all sites of one flow
    that `structure` calls alike."""

    def __init__(self, rule: Scheme, parts: Parts, flat_parts: Parts, site: Site, record: RecordedVelocity) -> None:
        self.rule, self.parts, self.flat_parts, self.site, self.record = rule, parts, flat_parts, site, record
        self.values = list(tensors(parts).values())

    def __call__(self, x: Tensor, layer: float, propose: Propose) -> Tensor:
        record = self.record
        if record.graph is not None:
            return record.graph(propose, x, as_scalar(layer, x), *self.values)[0]
        site = replace(self.site, layer=layer)
        u = propose(read_at(self.rule, x, self.parts(), site)[0])
        record.calls += 1
        if record.calls == RECORD_AFTER:
            try:
                graph = record_velocity(self.rule, self.parts, x, u, site)
                record.graph = graph.forward if self.agrees(graph, x, u, site) else None
            except Unrecordable:
                pass
        return motion(self.rule, self.flat_parts, x, u, site)[0]

    def agrees(self, graph: Callable[..., tuple[Tensor, ...]], x: Tensor, u: Tensor, site: Site) -> bool:
        """True if a graph is the velocity also at another time and of other tokens: a scheme may do what no graph
        shows, such as asking Python about its numbers."""
        x, u, at = x.flip(-2), 0.5 * u, replace(site, layer=0.5 * site.layer + 0.25)
        read: list[Tensor] = []

        def propose(y: Tensor) -> Tensor:
            read.append(y)
            return u

        (velocity,) = graph(propose, x, as_scalar(at.layer, x), *self.values)
        near = {"rtol": torch.finfo(x.dtype).eps ** 0.75, "atol": torch.finfo(x.dtype).eps ** 0.75, "equal_nan": True}
        expected = motion(self.rule, self.flat_parts, x, u, at)[0], read_at(self.rule, x, self.parts(), at)[0]
        return torch.allclose(velocity, expected[0], **near) and torch.allclose(read[0], expected[1], **near)


def tensors(parts: Parts) -> dict[str, Tensor]:
    return {**dict(parts.named_parameters()), **dict(parts.named_buffers())}


def structure(rule: Scheme, parts: Parts, x: Tensor, site: Site) -> tuple[object, ...]:
    """What two velocities must have in common to share a graph: all that a record freezes, which of the modules of a
    site is everything but the values of their tensors."""
    modules = [
        (name, type(module), *(pair for pair in vars(module).items() if isinstance(pair[1], (bool, int, float, str))))
        for name, module in parts.named_modules()
    ]
    shapes = [(name, value.shape) for name, value in tensors(parts).items()]
    return rule, site.kind, site.depth, *modules, *shapes, x.shape, x.dtype, x.device


def as_scalar(layer: float, like: Tensor) -> Tensor:
    return torch.full((), float(layer), dtype=torch.float64, device=like.device)


@torch.no_grad()
def record_velocity(rule: Scheme, parts: Parts, x: Tensor, u: Tensor, site: Site) -> GraphModule:
    """The graph of (propose, x, layer, *tensors(parts)) to (dx/dh,) for these shapes: layer a 0-d tensor in fp64, as
    Python's numbers are; parts: those at dim = x.shape[-1].

    It is right for every layer at which `rule` acts with parameters of the same shapes. Raises Unrecordable.
    """

    def velocity(propose: Propose, x: Tensor, layer: Tensor, *values: Tensor) -> list[Tensor]:
        at = Site(layer, site.kind, site.depth)  # values: the parameters that the parts have
        y, _ = read_at(rule, x, parts(), at)
        return [derivative(rule, parts, x, propose(y), at)]

    return record_around(velocity, u, x.detach(), as_scalar(site.layer, x), *tensors(parts).values())


def record_around(function: Callable[..., Sequence[Tensor]], answer: Tensor, *inputs: Tensor) -> GraphModule:
    """The function as a graph of `ask` and its inputs that returns a tuple, for tensors of their shapes, dtypes and
    device and of any values. function(ask, *inputs) may ask another function in between, once, with ask(y) a tensor
    like `answer`: the graph calls that one, whatever it does. No gradients. Raises Unrecordable for a function whose
    own operations depend on values."""
    recorder, answer = OperationRecorder(), answer.detach().clone()  # a tensor of its own, also where it is an input
    other = recorder.graph.placeholder("ask")

    def ask(y: Tensor) -> Tensor:
        recorder.learn(answer, recorder.graph.call_function(call, (other, recorder.spell(recorder.look_up(y), y))))
        return answer

    for index, tensor in enumerate(inputs):
        recorder.learn(tensor, recorder.graph.placeholder(f"x{index}"))
    with recorder:
        results = function(ask, *inputs)
    recorder.graph.output(tuple(recorder.spell(recorder.look_up(end), end) for end in results))
    recorder.graph.eliminate_dead_code()
    return GraphModule(recorder.root, recorder.graph)


@dataclass(frozen=True)
class Level:
    """A tensor of one number."""

    value: float


class OperationRecorder(TorchDispatchMode):
    """Writes down what is done while it is entered. A tensor is known by where it lies in memory, because autograd
    hands what it has stored on as a new object; all are held alive, so that none takes another's place."""

    def __init__(self) -> None:
        super().__init__()
        self.graph, self.root = Graph(), torch.nn.Module()
        self.alive: list[Tensor] = []
        self.known: dict[object, Node | Level] = {}
        self.done: dict[object, Node] = {}
        self.like: dict[Node, Tensor] = {}

    def learn(self, tensor: Tensor, meaning: Node | Level) -> None:
        self.alive.append(tensor)
        self.known[place(tensor)] = meaning
        if isinstance(meaning, Node):
            self.like.setdefault(meaning, tensor)

    def look_up(self, value: Any) -> Any:
        """An argument as it is known."""
        if isinstance(value, (list, tuple)):
            return [self.look_up(each) for each in value]
        if not isinstance(value, Tensor):
            return value
        known = self.known.get(place(value))
        if known is None and value.dim():
            raise Unrecordable("a tensor that is neither an input nor made of them")
        return Level(value.item()) if known is None else known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        several = isinstance(out, (list, tuple)) and all(isinstance(each, Tensor) for each in out)
        if not isinstance(out, Tensor) and not any(isinstance(v, Tensor) for v in args):
            return out  # of dtypes
        if func._schema.is_mutable or not (several or isinstance(out, Tensor)):
            raise Unrecordable(f"{func} cannot be recorded")
        if not several and place(out) in self.known:
            return out  # a view of what it is
        name, known = operation_name(func), self.look_up(args)
        constant = name in NEW or not any(isinstance(v, Node) for v in flatten_values(known))
        if several:
            whole = self.call(func, self.spell(known, args), kwargs, out[0])
            for index, each in enumerate(out):
                item = self.call(getitem, [whole, index], {}, each)
                self.learn(each, (constant and level_of(each)) or item)
        else:
            self.learn(out, (constant and level_of(out)) or self.shorten(func, known, args, kwargs, out))
        return out

    def shorten(self, func: Any, known: list[Any], args: Any, kwargs: Any, out: Tensor) -> Node | Level:
        """What an operation comes to: a number, something that is known, or its node."""
        simple = None if kwargs.get("alpha", 1) != 1 else self.simplify(operation_name(func), known, out)
        if isinstance(simple, Level):
            return simple
        if simple is not None and self.like[simple].dtype == out.dtype:
            if self.like[simple].shape == out.shape:
                return simple
            return self.call(torch.ops.aten.expand.default, [simple, list(out.shape)], {}, out)
        return self.call(func, self.spell(known, args), kwargs, out)

    def simplify(self, name: str, known: list[Any], out: Tensor) -> Node | Level | None:
        """What an operation comes to by algebra, up to its shape and dtype; None for no such thing."""
        match name, known:
            case "mul", [Level(0), _] | [_, Level(0)]:
                return Level(0.0)
            case ("mul", [Level(1), Node() as x] | [Node() as x, Level(1) | 1]) | ("div", [Node() as x, Level(1) | 1]):
                return x
            case ("add", [Level(0), Node() as x] | [Node() as x, Level(0) | 0]) | ("sub", [Node() as x, Level(0) | 0]):
                return x
            case "where", [Level(chosen), x, y]:
                return x if chosen else y
            case _, [Node() as x, *_] if name in SAME and self.like[x].shape == out.shape:
                return x
        return None

    def spell(self, known: Any, value: Any) -> Any:
        """An argument as the graph has it: a number is a tensor of it."""
        if isinstance(known, list):
            return [self.spell(k, v) for k, v in zip(known, value, strict=True)]
        if not isinstance(known, Level):
            return known
        key = ("constant", value.shape, value.dtype, known.value)
        if key not in self.done:
            constant = torch.full(value.shape, known.value, dtype=value.dtype, device=value.device)
            setattr(self.root, name := f"constant{len(self.done)}", constant)
            node = self.done[key] = self.graph.get_attr(name)
            self.like[node] = constant
        return self.done[key]

    def call(self, func: Any, args: list[Any], kwargs: Any, out: Tensor) -> Node:
        """The node of an operation; the one that is there if it was done before."""
        key = (func, repr(args), repr(kwargs))
        if key not in self.done:
            # torch's own function is called faster than the operator behind it
            node = self.graph.call_function(getattr(torch, operation_name(func), func), tuple(args), kwargs)
            self.done[key], self.like[node] = node, out
        return self.done[key]


def place(tensor: Tensor) -> object:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def flatten_values(known: list[Any]) -> list[Any]:
    return [v for each in known for v in (each if isinstance(each, list) else [each])]


def level_of(tensor: Tensor) -> Level | None:
    """The number that a tensor repeats; None where its numbers differ, or are none."""
    first = tensor.reshape(-1)[0]
    return Level(first.item()) if bool((tensor == first).all()) else None


def operation_name(func: Any) -> str:
    name: str = "getitem" if func is getitem else func._schema.name.removeprefix("aten::")
    return name
