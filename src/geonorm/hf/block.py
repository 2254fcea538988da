"""Stock blocks under a scheme: the block keeps its attention and MLP, its residual sites are `Residual`s."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..measure.anatomy import Branch as Where, Stack, Sublayer
from ..norms import Norm, NormSpec, upcast
from ..residual import Residual, StreamEnd
from ..schemes import Scheme, Site
from ..schemes.scales import Times


class Derived:
    """Mixed into a class that is made from a stock one and stands in no module under its name, so that its objects are
    pickled and copied by the function that makes the class."""

    made_by: ClassVar[tuple[Any, ...]]
    """A function, by its module and name, and the stock classes from which it makes the class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if "made_by" not in vars(type(self)):  # of somebody's subclass, which Python finds by its name
            return super().__reduce_ex__(protocol)
        return make_bare, self.made_by, self.__getstate__()


def make_bare(make: Any, *stock: Any) -> Any:
    """An object without its state yet."""
    made = make(*stock)
    return made.__new__(made)


class Affine(nn.Module):
    """y times a vector, plus a vector: the gains of a norm that stood before one of several branches."""

    def __init__(self, dim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, y: Tensor) -> Tensor:
        out = upcast(y) * self.weight
        return (out if self.bias is None else out + self.bias).to(y.dtype)


class Chain(nn.Module):
    """Stock modules one after the other. The first gets the arguments; what it returns beside its output is handed
    back."""

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
            if isinstance(out, tuple):
                u, beside = out[0], beside or out[1:]
            else:
                u = out
        return u, *beside


class StockBranch(nn.Module):
    """What a stock block does between reading the stream and adding to it, dropout included; chains side by side are
    summed, as in GPT-J."""

    def __init__(self, chains: Iterable[Chain]) -> None:
        super().__init__()
        self.chains = nn.ModuleList(chains)

    def forward(self, y: Tensor, **arguments: Any) -> Any:
        u, *beside = self.chains[0](y, **arguments)
        for chain in self.chains[1:]:
            u = u + chain(y)[0]
        return (u, *beside) if beside else u


class Exit(StreamEnd):
    """The end of the stream, in the dtype of the model around it."""

    like: Tensor

    def __init__(self, scheme: Scheme, site: Site, norm: NormSpec, dtype: torch.dtype) -> None:
        super().__init__(scheme, site, norm)
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(self.like.dtype)


@dataclass(frozen=True)
class Call:
    """How a block is called: names of its stock forward's parameters, the stream first; which of them, under which
    names, each kind of branch gets (`accepts` is None where it takes anything); the kinds whose branch returns what the
    block returns beside the stream."""

    names: tuple[str, ...]
    renames: dict[str, Mapping[str, str]]
    accepts: dict[str, frozenset[str] | None]
    returns: tuple[str, ...]

    def arguments(self, kind: str, given: dict[str, Any]) -> dict[str, Any]:
        if kind == "mlp":
            return {}
        renames = self.renames[kind]
        taken = set(renames.values()) | ({"attention_mask"} if kind == "cross" else set())
        found = {k: v for k, v in given.items() if not k.startswith("encoder_") and k not in taken}
        found |= {mine: given.get(theirs) for mine, theirs in renames.items()}
        accepts = self.accepts[kind]
        return found if accepts is None else {k: v for k, v in found.items() if k in accepts}


class AppliedBlock(Derived):
    """Mixed into a stock block's class: the same call, the same results, our residuals."""

    call: Call
    residuals: nn.ModuleDict
    entry: StreamEnd | None
    exit: Exit | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call
        given = dict(zip(call.names, args, strict=False))
        given.update(kwargs)
        x = given.pop(call.names[0])
        if self.entry is not None:
            x = self.entry(upcast(x))
        beside: dict[str, Any] = {}
        for kind, residual in self.residuals.items():
            if kind == "cross" and given.get("encoder_hidden_states") is None:
                continue
            out = residual(x, **call.arguments(kind, given))
            if isinstance(out, tuple):
                x, beside[kind] = out[0], out[1]
            else:
                x = out
        if self.exit is not None:
            x = self.exit(x)
        return (x, *map(beside.get, call.returns)) if call.returns else x


@cache
def block_class(stock: Any) -> Any:
    """The class of a stock block with our residuals, under its own name, by which transformers splits models."""
    body = {"__module__": __name__, "made_by": (block_class, stock)}
    return type(stock.__name__, (AppliedBlock, stock), body)


def site_of(block: nn.Module, sublayer: Sublayer, stack: Stack, scheme: Scheme, site: Site, dim: int) -> Residual:
    """One residual site of a block under the scheme, built from the stock modules; gains of stock norms are carried to
    the norms that play their part."""
    norms = {path: block.get_submodule(path) for path in sublayer.norms}
    spec = norm_spec(stack, dim, norms.values())
    chains = [Chain(branch_modules(block, branch)) for branch in sublayer.branches]
    residual = Residual(StockBranch(chains), scheme, site, dim, spec.kind, spec.gains, spec.eps, spec.bias)
    own = residual.own
    several = len({branch.norm for branch in sublayer.branches}) > 1
    for path, role in sublayer.norms.items():
        if isinstance(norms[path], nn.Identity) and role in own:
            own[role] = nn.Identity()  # ModernBERT's first block reads what the entry has normalised
        target = norm_in(own, role)
        if target is not None and not (role == "input" and several):
            carry(norms[path], target, stack.gain_offset)
    if several and getattr(norm_in(own, "input"), "weight", None) is not None:
        # one N for all branches, the gains of each on its own chain (GPT-NeoX)
        own["input"] = NormSpec(spec.kind, dim, gains=False, eps=spec.eps)()
        for chain, branch in zip(chains, sublayer.branches, strict=True):
            stock = norms.get(branch.norm) if branch.norm else None
            if stock is not None:
                chain.gains = Affine(dim, getattr(stock, "bias", None) is not None)
                carry(stock, chain.gains, stack.gain_offset)
    like = next(p for chain in chains for p in chain.steps.parameters() if p.is_floating_point())
    for part in (own, *(chain.gains for chain in chains)):
        if isinstance(part, nn.Module):
            part.to(device=like.device, dtype=like.dtype)
    residual.layer = residual.layer.to(like.device)
    return residual.train(block.training)


def branch_modules(block: nn.Module, branch: Where) -> list[nn.Module]:
    """The modules of a branch in the order of the computation, then its dropout and its scale."""
    found = [block.get_submodule(path) for path in branch.modules]
    if branch.dropout is not None:
        drop = attrgetter(branch.dropout)(block)
        found.append(drop if isinstance(drop, nn.Module) else nn.Dropout(float(drop)))
    if branch.scale is not None:
        found.append(Times(float(attrgetter(branch.scale)(block))))
    return found


def norm_spec(stack: Stack, dim: int, stock: Iterable[nn.Module]) -> NormSpec:
    """What N is at a site, after the stock norms there."""
    for norm in stock:
        if isinstance(norm, nn.Identity):
            continue
        eps = getattr(norm, "variance_epsilon", None)
        eps = getattr(norm, "eps", None) if eps is None else eps
        gains = getattr(norm, "weight", None) is not None
        bias = getattr(norm, "bias", None) is not None
        return NormSpec(stack.norm, dim, gains, stack.eps if eps is None else float(eps), bias)
    return NormSpec(stack.norm, dim, eps=stack.eps)


def norm_in(own: nn.Module, role: str) -> Norm | None:
    """The norm of a scheme's parameters that plays a part: input, output, stream, norm (of an end). The identity in the
    place of one is none."""
    part = own[role] if isinstance(own, nn.ModuleDict) and role in own else None
    if not isinstance(part, nn.Module):
        return None
    return next((m for m in part.modules() if isinstance(m, Norm)), None)


@torch.no_grad()
def carry(stock: nn.Module, target: nn.Module, offset: float) -> None:
    """Gains and biases of a stock norm to one of ours (or an Affine), of which both have them; frozen ones stay so."""
    for name, shift in (("weight", offset), ("bias", 0.0)):
        source, place = getattr(stock, name, None), getattr(target, name, None)
        if isinstance(source, Tensor) and isinstance(place, nn.Parameter):
            place.copy_(source.to(place.device) + shift)
            place.requires_grad_(source.requires_grad)


def call_of(block: nn.Module, stack: Stack) -> Call:
    stock = inspect.signature(type(block).forward)
    names = tuple(p.name for p in stock.parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD)
    returns = () if stock.return_annotation is Tensor else stack.returns  # GPT-J since transformers 5.24
    accepts = {}
    for sublayer in stack.sublayers:
        parameters = inspect.signature(block.get_submodule(sublayer.branches[0].modules[0]).forward).parameters.values()
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        accepts[sublayer.kind] = None if anything else frozenset(p.name for p in parameters)
    renames = {sublayer.kind: sublayer.arguments for sublayer in stack.sublayers}
    return Call(names, renames, accepts, returns)
