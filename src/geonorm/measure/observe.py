"""Watches the stream before and after every sub-layer while a model runs, for every placement of norms.

The x of a `Residual` is its argument, and x' its result. In a stock block, whose modules `anatomy` knows, x is the
argument of the sub-layer's first module; x' is the x of the next sub-layer, and after the last one the block's result.
So whatever stands between (norms on the update or on the stream, dropout, scales) is included, and a module's output is
never taken for the change of the stream. Only the stream of the running sub-layer is in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..norms import upcast
from ..residual import Residual
from ..schemes import Scheme, Site, belongs_to_scheme, parse
from .anatomy import Stack, blocks_of, root_stacks, stacks_by_name
from .recognise import stack_of

Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class ModelSite:
    """A sub-layer of a model with its residual: where it stands, and which modules it is."""

    stack: str
    """The stream that it is on: decoder or encoder."""
    scheme: str
    site: Site
    home: nn.Module
    """The `Residual`, or the stock block."""
    reader: nn.Module
    """The module whose argument is the stream."""
    chains: tuple[tuple[nn.Module, ...], ...]
    """For each parallel branch, its modules in the order in which they run. The last returns the update."""
    rule: Scheme | None = None
    """The scheme of a stock block with several streams."""

    @property
    def key(self) -> tuple[str, Site]:
        return self.stack, self.site

    @property
    def about(self) -> dict[str, Any]:
        """The first columns of trace.jsonl."""
        layer, kind, depth = self.site.layer, self.site.kind, self.site.depth
        return {
            "stack": self.stack, "scheme": self.scheme, "layer": layer, "kind": kind, "t": self.site.t, "depth": depth,
        }  # fmt: skip

    @property
    def residual(self) -> Residual | None:
        return self.home if isinstance(self.home, Residual) else None

    def seen(self, x: Tensor) -> Tensor:
        """The stream that measurements are about, (..., dim)."""
        rule = self.rule if self.residual is None else self.residual.scheme
        if self.rule is not None and x.dim() < 4:  # Qwen4-Exp's stand one after the other
            x = x.unflatten(-1, (self.rule.streams, -1))
        return x if rule is None else rule.seen(x)


Look = Callable[[ModelSite, Tensor, Any, Tensor], None]
"""look(place, x, u, x'); u is None where the last module of a branch did not run."""

Gradients = Mapping[tuple[str, Site], Mapping[str, float]]
"""Gradient norms of sub-layers, by `ModelSite.key`."""


def stacks_of(model: Any) -> list[tuple[Stack, str]]:
    """The stacks of a model, each with the path that its paths start from. ConfigError for a model without a `Residual`
    that is of no family of `anatomy` and is not recognised."""
    config = getattr(model, "config", None)
    if not hasattr(config, "stock_stacks") and any(isinstance(module, Residual) for module in model.modules()):
        stacks: Iterable[Stack] = [Stack("decoder", "blocks" if hasattr(model, "blocks") else "", ())]
    else:
        stacks = stacks_by_name(config) or [stack_of(model)]
    return list(root_stacks(model, stacks))


def sites_of(model: Any) -> list[ModelSite]:
    """Every sub-layer of a model, from input to output. A `Residual` knows where it stands.

    >>> import geonorm
    >>> from geonorm.measure.observe import sites_of
    >>> model = geonorm.Decoder(geonorm.DecoderConfig(layers=1, width=8, heads=2, vocab_size=5, context=4))
    >>> [(place.site.layer, place.site.kind) for place in sites_of(model)]
    [(0, 'attn'), (0, 'mlp')]
    """
    places = []
    for stack, base in stacks_of(model):
        blocks = blocks_of(model, stack, base)
        rule = parse(stack.scheme) if stack.scheme and parse(stack.scheme).streams > 1 else None
        for layer, block in enumerate(blocks):
            residuals = [module for module in block.modules() if isinstance(module, Residual)]
            for residual in residuals:
                at = residual.place()
                places.append(
                    ModelSite(stack.name, str(residual.scheme), at, residual, residual, ((residual.branch,),))
                )
            for sublayer in () if residuals else stack.of(layer):
                first, *_ = sublayer.branches
                reader = block.get_submodule(first.norm or first.modules[0])
                chains = tuple(tuple(map(block.get_submodule, branch.modules)) for branch in sublayer.branches)
                site = Site(layer, sublayer.kind, len(blocks), stack.count)
                places.append(ModelSite(stack.name, str(stack.scheme), site, block, reader, chains, rule))
    return places


@contextmanager
def watch(
    model: nn.Module,
    look: Look,
    places: Iterable[ModelSite] | None = None,
) -> Iterator[None]:
    """Calls look(place, x, u, x') after every sub-layer of every forward pass inside, or those at `places` alone."""
    with ExitStack() as hooks:
        for home, inside in groupby(sites_of(model) if places is None else places, lambda place: place.home):
            running = RunningSublayer(look)
            hooks.callback(home.register_forward_pre_hook(running.enter, with_kwargs=True).remove)
            for place in inside:
                hooks.callback(place.reader.register_forward_pre_hook(running.begin(place), with_kwargs=True).remove)
                for chain in place.chains:
                    hooks.callback(chain[-1].register_forward_hook(running.update(place)).remove)
            hooks.callback(home.register_forward_hook(running.leave).remove)
        if any(module._compiled_call_impl is not None for module in model.modules()):  # they run no new hooks
            hooks.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def watch_calls(modules: Mapping[Key, nn.Module], look: Callable[[Key, Tensor, Tensor], None]) -> Iterator[None]:
    """Calls look(key, argument, result) for every call of these modules inside."""

    def hook_of(key: Key) -> Callable[..., None]:
        return lambda _, args, kwargs, out: look(key, stream_of(args, kwargs), tensor_of(out))

    with ExitStack() as hooks:
        for key, module in modules.items():
            hooks.callback(module.register_forward_hook(hook_of(key), with_kwargs=True).remove)
        yield


class RunningSublayer:
    """The sub-layer that runs inside a home: begun by its reader, ended by the next one or by the end of the home."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.shape = torch.Size()
        self.place: ModelSite | None = None
        self.x: Any = None
        self.u: Any = None

    def enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.shape, self.place = stream_of(args, kwargs).shape, None

    def begin(self, place: ModelSite) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            x = stream_of(args, kwargs)
            if x.dim() > len(self.shape):
                raise ConfigError(
                    f"a sub-layer reads {tuple(x.shape)} where its block is handed {tuple(self.shape)}: probe does not "
                    "follow what is handed from block to block beside the hidden state"
                )
            x = self.shaped(x)
            self.end(x)
            self.place, self.x, self.u = place, x, None

        return hook

    def update(self, place: ModelSite) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, out: Any) -> None:
            if self.place is place:
                u = self.shaped(tensor_of(out))
                self.u = u if self.u is None else self.u + u

        return hook

    def leave(self, _: nn.Module, __: Any, out: Any) -> None:
        self.end(tensor_of(out))
        self.place = self.x = self.u = None

    def end(self, after: Tensor) -> None:
        if self.place is not None:
            self.look(self.place, self.x, self.u, after)

    def shaped(self, x: Tensor) -> Tensor:
        """x in the shape of the home's argument: OPT's MLP sees (batch x tokens, dim)."""
        return x if x.shape == self.shape or x.numel() != self.shape.numel() else x.reshape(self.shape)


def length_of(gradients: Iterable[Tensor | None]) -> float:
    """Length of the gradients that are not None, as one vector."""
    squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
    return torch.stack(squares).sum().sqrt().item() if squares else 0.0


def gradient_norms(places: Iterable[ModelSite], length: Callable[[Iterable[nn.Parameter]], float]) -> Gradients:
    """Norms of gradients by sub-layer: grad_norm of all weights of its branches, and in an MLP grad_w1 and grad_w2.

    W2 is the last matrix of the branch, which writes to the stream; W1 are those before it (up and gate), together
    (Xiong et al., arXiv:2002.04745), in a mixture of experts those of all experts without the router. A scheme's own
    modules inside the branch are neither.
    length: the norm of the gradients of some parameters; it knows where these gradients are.
    """
    rows: dict[tuple[str, Site], Mapping[str, float]] = {}
    for place in places:
        modules = [module for chain in place.chains for module in chain]
        parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
        row = {"grad_norm": length(parameters)}
        if place.site.kind == "mlp":
            inside = [part for module in modules for part in module.modules() if belongs_to_scheme(part)]
            slots = {p for part in inside for p in part.parameters()}
            parameters = [p for p in parameters if p not in slots]
            stacked = [p for p in parameters if p.dim() == 3]  # (experts, out, in)
            matrices = stacked or [p for p in parameters if p.dim() == 2]
            row |= {"grad_w1": length(matrices[:-1]), "grad_w2": length(matrices[-1:])}
        rows[place.key] = row
    return rows


def end_kind(module: Any) -> str | None:
    """entry or exit for an end of a stream, wherever it stands; None for another module."""
    site = getattr(module, "site", None)
    return site.kind if isinstance(site, Site) and site.kind in ("entry", "exit") else None


def stream_past(block: nn.Module, x: Tensor) -> Tensor:
    """The stream after a block that is left out. Entry and exit, which `hf.apply` puts into the first and the last
    block, act all the same."""
    for end in (getattr(block, "entry", None), getattr(block, "exit", None)):
        if end is not None and end_kind(end):
            x = end(upcast(x))
    return x


def stream_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The first argument of a module, or the one called hidden_states. ConfigError unless it is a tensor."""
    value = args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()), None))
    if not isinstance(value, Tensor):
        raise ConfigError(f"a module that should read the stream reads {type(value).__name__}")
    return value


def tensor_of(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple | list) else value
