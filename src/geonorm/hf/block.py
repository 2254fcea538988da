"""Stock blocks under a scheme: the block keeps its attention and MLP, its residual connections are `Residual`s."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..measure.anatomy import Branch, Stack, Sublayer, blocks_of, extra_results, join_path
from ..measure.rebuild import copy_gains, has_several_norms, norm_in, norm_spec, rebuild
from ..norms import Norm, NormSpec, upcast
from ..residual import Residual, StreamEnd
from ..schemes import Scheme, Site
from ..schemes.scales import Times

Stacks = Sequence[tuple[Stack, str]]
"""Stacks of a model, each with the path that its paths start from."""
Handover = tuple[Mapping[str, str], frozenset[str] | None]
"""Arguments that the first module of a branch gets from its block: {its name: the block's name}, and the names of
further ones that it takes from the block's **kwargs; None where it takes them all."""


class Affine(Norm):
    """y times a vector, plus a vector: gains and biases of the norm that stood before one of several branches."""

    biased = True

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return x * weight if bias is None else x * weight + bias  # type: ignore[operator]


class Chain(nn.Module):
    """Stock modules one after the other. The first gets the arguments; what it returns beside its output is returned
    too."""

    gains: Affine | None

    def __init__(self, steps: Iterable[nn.Module]) -> None:
        super().__init__()
        self.gains = None
        self.steps = nn.ModuleList(steps)

    def forward(self, y: Tensor, **arguments: Any) -> tuple[Tensor, ...]:
        beside: tuple[Any, ...] = ()
        u = y if self.gains is None else self.gains(y)
        for place, step in enumerate(self.steps):
            out = step(u, **arguments) if place == 0 else step(u)
            if isinstance(out, tuple | list):
                u, beside = out[0], beside or tuple(out[1:])
            else:
                u = out
        return u, *beside


class StockBranch(nn.Module):
    """What a stock block does between reading the stream and adding to it, dropout included; chains side by side are
    summed, as in GPT-J."""

    def __init__(self, chains: Iterable[Chain]) -> None:
        super().__init__()
        self.chains = nn.ModuleList(chains)

    def forward(self, y: Tensor, arguments: Sequence[dict[str, Any]]) -> Any:
        """arguments: what the first module of each chain gets beside y."""
        u, *beside = self.chains[0](y, **arguments[0])
        u = u.reshape(y.shape)  # experts of Llama 4 return (batch x tokens, width)
        for chain, more in zip(self.chains[1:], arguments[1:], strict=True):
            u = u + chain(y, **more)[0]
        return (u, *beside) if beside else u


class Exit(StreamEnd):
    """The end of the stream, cast to the dtype of the model around it, which an empty `weight` holds: Zaya's code asks
    the last norm of a stock model for `weight.dtype`."""

    weight: Tensor

    def __init__(self, scheme: Scheme, site: Site, norm: NormSpec, dtype: torch.dtype) -> None:
        super().__init__(scheme, site, norm)
        self.register_buffer("weight", torch.empty(0, dtype=dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(self.weight.dtype)


@dataclass(frozen=True)
class Call:
    """How a block is called: names of its stock forward's parameters, the stream first; what each branch of a sub-layer
    gets of them; what the block returns beside the stream."""

    names: tuple[str, ...]
    handovers: dict[str, list[Handover]]
    returns: tuple[str, ...]
    tupled: bool

    def select(self, arguments: dict[str, Any], handover: Handover) -> dict[str, Any]:
        """What a branch gets of the arguments of its block."""
        names, more = handover
        others = {name: value for name, value in arguments.items() if name not in self.names}
        chosen = {name: value for name, value in others.items() if more is None or name in more}
        return chosen | {name: arguments.get(theirs) for name, theirs in names.items()}


class AppliedBlock:
    """Mixed into a stock block's class: the same call, the same results, our residuals."""

    call: Call
    residuals: nn.ModuleDict
    entry: StreamEnd | None
    exit: Exit | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call
        arguments = {**dict(zip(call.names, args, strict=False)), **kwargs}
        x = arguments.pop(call.names[0])
        if self.entry is not None:
            x = self.entry(upcast(x))
        beside: dict[str, Any] = {}
        for kind, residual in self.residuals.items():
            if kind == "cross" and arguments.get("encoder_hidden_states") is None:
                continue
            out = residual(x, arguments=[call.select(arguments, handover) for handover in call.handovers[kind]])
            x, beside = out[0] if isinstance(out, tuple) else out, beside | extra_results(kind, out)
        if self.exit is not None:
            x = self.exit(x)
        return (x, *map(beside.get, call.returns)) if call.returns or call.tupled else x

    def __setattr__(self, name: str, value: Any) -> None:
        """`block.mlp = other` puts the other module into the branch, where the stock one stands under a longer path."""
        old = vars(self).get(name)
        if isinstance(old, nn.Module):
            for holder in self.residuals.modules():
                for key in [key for key, module in holder._modules.items() if module is old]:
                    setattr(holder, key, value)
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)


@cache
def block_class(stock: Any) -> Any:
    """The class of a stock block with our residuals. It keeps its name, because transformers splits models between
    devices by the names of block classes."""
    return type(stock.__name__, (AppliedBlock, stock), {"__module__": __name__})


def build_residual(
    block: nn.Module, sublayer: Sublayer, stack: Stack, scheme: Scheme, site: Site, dim: int
) -> Residual:
    """One residual connection of a block under the scheme, built from the stock modules; gains of stock norms are
    carried to the norms that play their part."""
    chains = [Chain(branch_modules(block, branch)) for branch in sublayer.branches]
    residual = rebuild(block, sublayer, stack, scheme, site, dim, StockBranch(chains))
    parts = residual.own
    if has_several_norms(sublayer) and getattr(norm_in(parts, "input"), "weight", None) is not None:
        # one N for all branches, the gains of each on its own chain (GPT-NeoX)
        stock = [block.get_submodule(branch.norm or "") for branch in sublayer.branches]
        parts["input"] = replace(norm_spec(stack, dim, stock), gains=False, bias=False)()
        for chain, norm in zip(chains, stock, strict=True):
            chain.gains = Affine(dim, bias=getattr(norm, "bias", None) is not None)
            copy_gains(norm, chain.gains, stack.gain_offset)
    like = next(p for chain in chains for p in chain.steps.parameters() if p.is_floating_point() and p.dim() > 1)
    for part in (parts, *(chain.gains for chain in chains)):
        if isinstance(part, nn.Module):
            part.to(device=like.device, dtype=like.dtype)
    residual.layer = residual.layer.to(like.device)
    return residual.train(block.training)


def branch_modules(block: nn.Module, branch: Branch) -> list[nn.Module]:
    """The modules of a branch in the order of the computation, then its dropout and its scale."""
    modules = [block.get_submodule(path) for path in branch.modules]
    if branch.dropout is not None:
        path = branch.dropout
        modules.append(block.get_submodule(path) if isinstance(path, str) else nn.Dropout(path))
    if branch.scale is not None:
        modules.append(Times(branch.scale))
    return modules


def call_of(block: nn.Module, sublayers: Iterable[Sublayer], stack: Stack) -> Call:
    stock = inspect.signature(type(block).forward)
    names = tuple(p.name for p in stock.parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD)
    handovers = {s.kind: [handover(block, branch, names) for branch in s.branches] for s in sublayers}
    return Call(names, handovers, stack.returns, stack.tupled)


def handover(block: nn.Module, branch: Branch, names: tuple[str, ...]) -> Handover:
    parameters = inspect.signature(block.get_submodule(branch.modules[0]).forward).parameters.values()
    anything = bool(branch.arguments) and any(p.kind is p.VAR_KEYWORD for p in parameters)
    more = None if anything else frozenset(p.name for p in parameters if branch.arguments)
    arguments = {name: theirs for name, theirs in branch.arguments.items() if theirs in names}
    return arguments, more


def replace_sites(model: Any, scheme: Scheme, stacks: Stacks) -> None:
    """Gives every block of the model residual connections under the scheme, and the stream an entry and an exit."""
    for stack, base in stacks:
        blocks = blocks_of(model, stack, base)
        depth, dim = len(blocks), int(model.config.hidden_size)
        like = next(p for block in blocks for p in block.parameters() if p.is_floating_point() and p.dim() > 1)
        last = None if stack.exit is None else model.get_submodule(join_path(base, stack.exit))
        inside = [blocks[0].get_submodule(path) for place in stack.of(0) for path in place.norms]
        spec = norm_spec(stack, dim, inside if last is None else [last])
        for layer, block in enumerate(blocks):
            replace_block(block, layer, depth, scheme, stack, dim)
        count = len(stack.sublayers)  # 1 where sites are parallel
        entry = StreamEnd(scheme, Site(0, "entry", depth, count), spec).to(device=like.device, dtype=like.dtype)
        exit = Exit(scheme, Site(depth - 1, "exit", depth, count), spec, like.dtype)
        exit.own.to(device=like.device, dtype=like.dtype)
        blocks[0].entry = entry
        if last is None:
            blocks[-1].exit = exit
            continue
        if (target := norm_in(exit.own, "norm")) is not None:
            copy_gains(last, target, stack.exit_offset)
        model.set_submodule(join_path(base, stack.exit or ""), exit)


def replace_block(block: Any, layer: int, depth: int, scheme: Scheme, stack: Stack, dim: int) -> None:
    """The same for one block. ConfigError if a parameter of it is in no branch and in no norm."""
    norms = [p for sub in stack.of(layer) for path in sub.norms for p in block.get_submodule(path).parameters()]
    residuals = nn.ModuleDict()
    for sublayer in stack.of(layer):
        site = Site(layer, sublayer.kind, depth, stack.count)
        residuals[sublayer.kind] = build_residual(block, sublayer, stack, scheme, site, dim)
    learned = [attrgetter(path)(block) for sub in stack.of(layer) for path, _ in sub.carried.values()]
    known = {id(p) for p in (*residuals.parameters(), *norms, *learned)}
    lost = [name for name, p in block.named_parameters() if id(p) not in known]
    if lost:
        raise ConfigError(f"blocks of this model have parameters that apply does not know: {', '.join(lost[:3])}")
    block.call = call_of(block, stack.of(layer), stack)
    branches = set(residuals.modules())  # RecurrentGemma's model asks its blocks for them
    vars(block).update({name: module for name, module in block._modules.items() if module in branches})
    block._modules = {"residuals": residuals, "entry": None, "exit": None}
    stock: Any = type(block)
    block.__class__ = block_class(stock)
