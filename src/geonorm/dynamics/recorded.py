"""A function of tensors as a short list of operations: recorded once, without what is known beforehand.

The velocity of a scheme is a derivative at h = 0, and autograd takes it through operations most of whose results are
then 0 or 1; on few particles calling them is all that costs. What is recorded is what reaches PyTorch's kernels,
behind autograd, and it is shortened on the way: a tensor of one repeated number that does not depend on the inputs is
that number, an operation that changes nothing is left out, one that was done before is not done again. What remains
gives the same numbers, but for the sign of a zero, and a NaN where a zero met an infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import GeonormError

NEW = {"zeros", "ones", "full", "scalar_tensor", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones"}
"""Operations whose result is one number, whatever their argument is."""
LEVEL = set(
    """add sub mul div neg abs sqrt rsqrt reciprocal cos sin tan atan tanh exp log pow where eq ne lt le gt ge
    logical_not logical_and logical_or bitwise_or bitwise_and unbind split permute transpose t minimum maximum clamp
    clamp_min clamp_max sum mean expand slice detach view unsqueeze squeeze addcmul clone alias select
    _to_copy""".split()
)
"""Operations that make one number of tensors of one number each."""
SPREAD = set("add sub mul div where eq ne lt le gt ge minimum maximum addcmul pow".split())
"""Operations that take one number in place of a tensor of it, as long as others have the shape of the result."""
GUARDED = {"div", "sqrt", "rsqrt", "reciprocal", "log", "pow"}
"""Operations in front of which stands a guard against 0."""
SAME = {"expand", "clone", "_to_copy"}
"""Operations that leave the numbers as they are, where shape and dtype stay."""


class Unrecordable(GeonormError):
    """A function that looks at its numbers, or changes a tensor in place."""


@dataclass(frozen=True)
class Level:
    """A tensor of one number."""

    value: float


Known = Node | Level


def record(function: Callable[..., Sequence[Tensor | None]], *inputs: Tensor) -> GraphModule:
    """The function as a graph of its inputs that returns a tuple, for tensors of their shapes, dtypes and device and of
    any values. No gradients. Raises Unrecordable for a function whose operations depend on values."""
    recorder = Recorder(inputs)
    with recorder:
        found = function(*inputs)
    return recorder.finish(found)


class Recorder(TorchDispatchMode):
    """Writes down what is done while it is entered. A tensor is known by where it lies in memory, because autograd
    hands what it has kept on as a new object; all are kept alive, so that none takes another's place."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph, self.root = Graph(), torch.nn.Module()
        self.alive: list[Tensor] = []
        self.known: dict[object, Known] = {}
        self.done: dict[object, Node] = {}
        self.like: dict[Node, Tensor] = {}
        self.value: dict[Node, float] = {}
        for number, tensor in enumerate(inputs):
            self.learn(tensor, self.graph.placeholder(f"x{number}"))

    def learn(self, tensor: Tensor, what: Known) -> None:
        self.alive.append(tensor)
        self.known[place(tensor)] = what
        if isinstance(what, Node):
            self.like.setdefault(what, tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        several = isinstance(out, (list, tuple)) and all(isinstance(each, Tensor) for each in out)
        if not isinstance(out, Tensor) and not any(isinstance(v, Tensor) for v in args):
            return out  # of dtypes
        if func._schema.is_mutable or not (several or isinstance(out, Tensor)):
            raise Unrecordable(f"{func} cannot be recorded")
        if several:
            self.take_apart(func, args, kwargs or {}, out)
        elif place(out) not in self.known:  # else a view of what it is
            self.learn(out, self.shorten(func, args, kwargs or {}, out))
        return out

    def take_apart(self, func: Any, args: Any, kwargs: Any, out: Sequence[Tensor]) -> None:
        """An operation with several results: whole, and an item of it for each."""
        a, nodes = self.look(args)
        whole = self.call(func, [self.spell(v, given, False) for v, given in zip(a, args, strict=True)], kwargs, out[0])
        level = not nodes and name_of(func) in LEVEL
        for number, each in enumerate(out):
            item = Level(each.reshape(-1)[0].item()) if level else self.call(getitem, [whole, number], {}, each)
            self.learn(each, item)

    def look(self, args: Any) -> tuple[list[Any], list[Node]]:
        """The arguments as they are known, and those among them that are not numbers."""
        a = [list(map(self.of, v)) if isinstance(v, (list, tuple)) else self.of(v) for v in args]
        tensors = [v for each in a for v in (each if isinstance(each, list) else [each])]
        return a, [v for v in tensors if isinstance(v, Node)]

    def of(self, value: Any) -> Any:
        """What is known of an argument."""
        if not isinstance(value, Tensor):
            return value
        found = self.known.get(place(value))
        if found is None and value.dim():
            raise Unrecordable("a tensor that is neither an input nor made of them")
        return Level(value.item()) if found is None else found

    def shorten(self, func: Any, args: Any, kwargs: Any, out: Tensor) -> Known:
        """What an operation comes to: a number, something that is known, or its node."""
        name = name_of(func)
        a, nodes = self.look(args)
        if name in NEW or (name in LEVEL and not nodes):
            return Level(out.reshape(-1)[0].item())
        found = None if kwargs.get("alpha", 1) != 1 else self.simple(name, a, out)
        if isinstance(found, Level):
            return found
        if found is not None and self.like[found].dtype == out.dtype:
            if self.like[found].shape == out.shape:
                return found
            return self.call(torch.ops.aten.expand.default, [found, list(out.shape)], {}, out)
        shapes = [self.like[node].shape for node in nodes]
        single = name in SPREAD and torch.broadcast_shapes(*shapes) == out.shape
        return self.call(func, [self.spell(v, given, single) for v, given in zip(a, args, strict=True)], kwargs, out)

    def simple(self, name: str, a: list[Any], out: Tensor) -> Known | None:
        """What an operation comes to by algebra, up to its shape and dtype; None for no such thing."""
        match name, a:
            case "mul", [Level(0), _] | [_, Level(0)]:
                return Level(0.0)
            case ("mul", [Level(1), Node() as x] | [Node() as x, Level(1) | 1]) | ("div", [Node() as x, Level(1) | 1]):
                return x
            case ("add", [Level(0), Node() as x] | [Node() as x, Level(0) | 0]) | ("sub", [Node() as x, Level(0) | 0]):
                return x
            case "addcmul", [Node() as x, Level(0), _] | [Node() as x, _, Level(0)]:
                return x
            case "where", [Level(chosen), x, y]:
                return x if chosen else y
            case "where", [_, x, y] if x == y:
                return x
            case "where", [Node() as zero, Level(value), Node() as guarded]:
                return self.unguard(zero, value, guarded, out)
            case "slice", [Node() as whole, int(dim), int(first), int()] if dim % out.dim() == out.dim() - 1:
                return self.part(whole, first, out)
            case _, [Node() as x, *_] if name in SAME and self.like[x].shape == out.shape:
                return x
        return None

    def unguard(self, zero: Node, value: float, guarded: Node, out: Tensor) -> Known | None:
        """where(zero, value, f(where(zero, 1, s))) is where(zero, value, f(s)): a gradient asked for the guard. And
        where(s == 0, 0, sqrt(s)) is sqrt(s)."""
        if guarded.meta.get("name") not in GUARDED:
            return None
        given = [self.behind(zero, v) for v in guarded.args]
        free = self.call(guarded.meta["func"], given, guarded.kwargs, self.like[guarded])
        if free.meta["name"] == "sqrt" and value == 0 and zero.meta.get("name") == "eq" and zero.args == (given[0], 0):
            return free
        return (
            None
            if free is guarded
            else self.call(torch.ops.aten.where.self, [zero, self.spell(Level(value), out, True), free], {}, out)
        )

    def behind(self, zero: Node, value: Any) -> Any:
        """s of where(zero, 1, s), and anything else as it is."""
        guard = isinstance(value, Node) and value.meta.get("name") == "where" and value.args[0] is zero
        return value.args[2] if guard and self.like[value.args[2]].shape == self.like[value].shape else value

    def part(self, whole: Node, first: int, out: Tensor) -> Known | None:
        """The piece that stands just there in what was put together."""
        at = 0
        for piece in whole.args[0] if whole.meta.get("name") == "cat" else ():  # type: ignore[union-attr]
            if at == first and self.like[piece].shape == out.shape:  # type: ignore[index]
                return Level(self.value[piece]) if piece in self.value else piece  # type: ignore
            at += self.like[piece].shape[-1]  # type: ignore[index]
        return None

    def spell(self, value: Any, given: Any, single: bool) -> Any:
        """An argument as the graph has it: one number, or a tensor of it where the shape counts."""
        if isinstance(value, list):
            return [self.spell(v, g, single) for v, g in zip(value, given, strict=True)]
        if not isinstance(value, Level):
            return value
        shape = () if single else given.shape
        key = ("constant", shape, given.dtype, value.value)
        if key not in self.done:
            number = torch.full(shape, value.value, dtype=given.dtype, device=given.device)
            setattr(self.root, name := f"constant{len(self.done)}", number)
            node = self.done[key] = self.graph.get_attr(name)
            node.meta["name"], self.like[node], self.value[node] = "constant", number, value.value
        return self.done[key]

    def call(self, func: Any, args: list[Any], kwargs: Any, out: Tensor) -> Node:
        """The node of an operation; the one that is there if it was done before."""
        key = (func, repr(args), repr(kwargs))
        if key not in self.done:
            # torch's own function is called faster than the operator behind it
            name = name_of(func)
            node = self.done[key] = self.graph.call_function(getattr(torch, name, func), tuple(args), kwargs)
            node.meta.update(name=name, func=func)
            self.like[node] = out
        return self.done[key]

    def finish(self, found: Sequence[Tensor | None]) -> GraphModule:
        ends = [None if end is None else self.spell(self.of(end), end, False) for end in found]
        self.graph.output(tuple(ends))
        self.graph.eliminate_dead_code()
        return GraphModule(self.root, self.graph)


def place(tensor: Tensor) -> object:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def name_of(func: Any) -> str:
    name: str = "getitem" if func is getitem else func._schema.name.removeprefix("aten::")
    return name
