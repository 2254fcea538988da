"""A function of tensors as a short list of operations: recorded once, without what is known beforehand.

The velocity of a scheme is a derivative at h = 0, and autograd takes it through operations most of whose results are
then 0 or 1; on few particles calling them is all that costs. What is recorded is what reaches PyTorch's kernels,
behind autograd, and it is shortened on the way: a tensor of one repeated number that does not depend on the inputs is
that number, an operation that changes nothing is left out, one that was done before is not done again, and guards are
left out behind which another stands. What remains gives the same numbers, but for the sign of a zero, and a NaN where
a zero met an infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import call, getitem
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
"""Operations number by number that take one in place of a tensor of it, if others have the shape of the result."""
ALONE = set("neg abs sqrt rsqrt reciprocal cos sin tan atan tanh exp log clamp clamp_min clamp_max".split())
"""Operations on each number of one tensor."""
SAME = {"expand", "clone", "_to_copy"}
"""Operations that leave the numbers as they are, where shape and dtype stay."""


class Unrecordable(GeonormError):
    """A function that looks at its numbers, or changes a tensor in place."""


@dataclass(frozen=True)
class Level:
    """A tensor of one number."""

    value: float


Known = Node | Level


def record_around(function: Callable[..., Sequence[Tensor]], answer: Tensor, *inputs: Tensor) -> GraphModule:
    """The function as a graph of `ask` and its inputs that returns a tuple, for tensors of their shapes, dtypes and
    device and of any values. function(ask, *inputs) may ask another function in between, once, with ask(y) a tensor
    like `answer`: the graph calls that one, whatever it does. No gradients. Raises Unrecordable for a function whose
    own operations depend on values."""
    recorder, answer = Recorder(), answer.detach().clone()  # a tensor of its own, also where it is an input
    other = recorder.graph.placeholder("ask")

    def ask(y: Tensor) -> Tensor:
        asked = recorder.graph.call_function(call, (other, recorder.spell(recorder.of(y), y, False)))
        recorder.learn(answer, asked)
        return answer

    recorder.take(inputs)
    with recorder:
        found = function(ask, *inputs)
    return recorder.finish(found)


class Recorder(TorchDispatchMode):
    """Writes down what is done while it is entered. A tensor is known by where it lies in memory, because autograd
    hands what it has kept on as a new object; all are kept alive, so that none takes another's place."""

    def __init__(self) -> None:
        super().__init__()
        self.graph, self.root = Graph(), torch.nn.Module()
        self.alive: list[Tensor] = []
        self.known: dict[object, Known] = {}
        self.done: dict[object, Node] = {}
        self.like: dict[Node, Tensor] = {}
        self.value: dict[Node, float] = {}

    def take(self, inputs: Sequence[Tensor]) -> None:
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
        level = not nodes and operation_name(func) in LEVEL
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
        a, nodes = self.look(args)
        name = operation_name(func)
        if name in NEW or (name in LEVEL | SPREAD | ALONE and not nodes):
            return Level(out.reshape(-1)[0].item())
        found = None if kwargs.get("alpha", 1) != 1 else self.simple(name, a, out)
        if isinstance(found, Level):
            return found
        if found is not None and self.like[found].dtype == out.dtype:
            if self.like[found].shape == out.shape:
                return found
            return self.call(torch.ops.aten.expand.default, [found, list(out.shape)], {}, out)
        single = False
        if name in SPREAD:
            small = [self.narrow(v) for v in a]
            a = small if self.reach(small, out) else a
            single = self.reach(a, out)
        return self.call(func, [self.spell(v, given, single) for v, given in zip(a, args, strict=True)], kwargs, out)

    def narrow(self, value: Any) -> Any:
        """What broadcasting makes of less: the tensor that was expanded, or given leading axes of 1."""
        if isinstance(value, Node) and value.meta.get("name") in ("expand", "view"):
            source, shape = value.args[0], self.like[value].shape
            if isinstance(source, Node):
                added = len(shape) - self.like[source].dim()
                if value.meta["name"] == "expand" or shape == (*(1,) * added, *self.like[source].shape):
                    return self.narrow(source)
        return value

    def reach(self, a: list[Any], out: Tensor) -> bool:
        """Whether the shapes of what is no number among these make that of the result."""
        return torch.broadcast_shapes(*(self.like[v].shape for v in a if isinstance(v, Node))) == out.shape

    def simple(self, name: str, a: list[Any], out: Tensor) -> Node | Level | None:
        """What an operation comes to by algebra, up to its shape and dtype; None for no such thing."""
        match name, a:
            case "mul", [Level(0), _] | [_, Level(0)]:
                return Level(0.0)
            case ("mul", [Level(1), Node() as x] | [Node() as x, Level(1) | 1]) | ("div", [Node() as x, Level(1) | 1]):
                return x
            case ("add", [Level(0), Node() as x] | [Node() as x, Level(0) | 0]) | ("sub", [Node() as x, Level(0) | 0]):
                return x
            case "eq", [Node() as x, 0] if x.meta.get("name") == "sqrt":  # where its square is
                return self.call(torch.ops.aten.eq.Scalar, [x.args[0], 0], {}, out)
            case "addcmul", [Node() as x, Level(0), _] | [Node() as x, _, Level(0)]:
                return x
            case "where", [Level(chosen), x, y]:
                return x if chosen else y
            case "where", [_, x, y] if x == y:
                return x
            case "where", [Node() as zero, Level(value), Node() as guarded]:
                return self.unguard(zero, value, guarded, out)
            case _, [Node() as x, *_] if name in SAME and self.like[x].shape == out.shape:
                return x
        return None

    def unguard(self, zero: Node, value: float, guarded: Node, out: Tensor) -> Node | None:
        """where(zero, value, f(where(zero, 1, s))) is where(zero, value, f(s)): a gradient asked for the guard. And
        where(s == 0, 0, sqrt(s)) is sqrt(s)."""
        free = self.behind(zero, guarded, {})
        of_root = free.meta.get("name") == "sqrt" and zero.meta.get("name") == "eq"
        if of_root and value == 0 and zero.args == (free.args[0], 0):
            return free
        if free is guarded:
            return None
        return self.call(torch.ops.aten.where.self, [zero, self.spell(Level(value), out, True), free], {}, out)

    def behind(self, zero: Node, node: Any, done: dict[Node, Any]) -> Any:
        """The same where `zero` is false, without guards against it: of operations number by number alone."""
        name = node.meta.get("name") if isinstance(node, Node) else None
        if name not in SPREAD | ALONE:
            return node
        if node not in done:
            if name == "where" and node.args[0] is zero and self.reach([node.args[2]], self.like[node]):
                done[node] = self.behind(zero, node.args[2], done)
            else:
                given = [self.behind(zero, v, done) for v in node.args]
                same = all(a is b for a, b in zip(given, node.args, strict=True))
                done[node] = node if same else self.call(node.meta["func"], given, node.kwargs, self.like[node])
        return done[node]

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
        if operation_name(func) in ("eq", "ne", "lt", "le", "gt", "ge") and out.dtype == torch.bool:
            # a whole number beside fractions makes PyTorch convert, which takes ten times as long
            floating = isinstance(args[0], Node) and self.like[args[0]].is_floating_point()
            args = [float(v) if floating and type(v) is int else v for v in args]
        key = (func, repr(args), repr(kwargs))
        if key not in self.done:
            # torch's own function is called faster than the operator behind it
            name = operation_name(func)
            node = self.done[key] = self.graph.call_function(getattr(torch, name, func), tuple(args), kwargs)
            node.meta.update(name=name, func=func)
            self.like[node] = out
        return self.done[key]

    def finish(self, found: Sequence[Tensor]) -> GraphModule:
        self.graph.output(tuple(self.spell(self.of(end), end, False) for end in found))
        self.graph.eliminate_dead_code()
        return GraphModule(self.root, self.graph)


def place(tensor: Tensor) -> object:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def operation_name(func: Any) -> str:
    name: str = "getitem" if func is getitem else func._schema.name.removeprefix("aten::")
    return name
