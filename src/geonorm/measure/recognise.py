"""The residual rule of a causal model of transformers, recognised by the structure of its layers, trusted by number.

One forward pass on random ids records what every block and every module inside it is handed and returns. From these
tensors alone each block is taken apart: which modules are norms, which of them read the stream, what is added to it and
with which factors. Every relation is a least-squares fit on the recorded numbers, and what does not fit is refused in
one line that says what was seen. No name of a family and no source text is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..modes import evaluating
from ..norms import Norm
from ..residual import Residual
from ..schemes import Scheme, Site, parse
from .anatomy import Branch, Stack, Sublayer

TOKENS = (2, 12)
"""Sequences and their length in the pass that is recorded."""
EPS = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)
"""What norms without an attribute of that name may add to the mean square."""
SCHEMES = {name: f"{name}(entry=embedding)" for name in ("pre", "peri", "olmo2", "post")}
"""The scheme of a layout of norms (`Sublayer.placement`)."""


@dataclass(eq=False)
class ModuleCall:
    """One call of a module inside a block, at the top of the block's own forward."""

    path: str
    module: nn.Module
    arguments: dict[str, Any]
    """By name, without the tensor that comes first."""
    x: Tensor
    y: Any = None
    """The first tensor that it returned, as it was then."""
    result: Any = None


@dataclass(eq=False)
class Pass:
    """One call of a block, with those of its modules in the order in which they began."""

    path: str
    block: nn.Module
    arguments: dict[str, Any]
    x: Tensor
    y: Any = None
    result: Any = None
    calls: list[ModuleCall] = field(default_factory=list)
    dropouts: dict[int, float] = field(default_factory=dict)
    """Probability of the functional dropout on a tensor, by the tensor's id."""


@dataclass(eq=False)
class BranchCalls:
    """Modules of a block that run one after the other, from the first that reads the stream or a norm of it."""

    norm: ModuleCall | None
    calls: list[ModuleCall]
    dropout: str | float | None = None

    @property
    def end(self) -> Tensor:
        out: Tensor = self.calls[-1].y
        return out


@dataclass(frozen=True)
class Gains:
    """What a norm computes: kind(x) with eps, times `weight + offset` plus `bias`, as far as it has them."""

    kind: str
    eps: float
    offset: float


class Refused(ConfigError):
    """A model whose rule is none that is known, with what was seen."""


def bind(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor | None, dict[str, Any]]:
    """The first tensor that a module is handed, and its other arguments by name."""
    names = [p.name for p in inspect.signature(module.forward).parameters.values()]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    first = names[0] if names and names[0] in arguments else "hidden_states"
    x = arguments.pop(first, None)
    return (x if isinstance(x, Tensor) else None), arguments


@contextmanager
def record_calls(blocks: Mapping[str, nn.Module]) -> Iterator[list[Pass]]:
    """Every call of the blocks inside, in order. Of calls within calls the outermost alone."""
    passes: list[Pass] = []
    running: list[Any] = []
    hooks = []

    def begin(path: str, is_block: bool) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            x, arguments = bind(module, args, kwargs)
            entry: Any = None
            if x is not None and is_block and not running:
                entry = Pass(path, module, arguments, x.detach().clone())
                passes.append(entry)
            elif x is not None and len(running) == 1:
                entry = ModuleCall(path, module, arguments, x.detach().clone())
                running[0].calls.append(entry)
            if running or entry is not None:
                running.append(entry)

        return hook

    def end(_: nn.Module, __: Any, result: Any) -> None:
        if running:
            entry = running.pop()
            if entry is not None:
                entry.result, entry.y = result, first_of(result)

    for path, block in blocks.items():
        for inner, module in block.named_modules():
            hooks.append(module.register_forward_pre_hook(begin(inner or path, not inner), with_kwargs=True))
            hooks.append(module.register_forward_hook(end))
    dropout = F.dropout

    def noted_dropout(x: Tensor, p: float = 0.5, *rest: Any, **more: Any) -> Tensor:
        if len(running) == 1 and p:
            running[0].dropouts[id(x)] = p
        return dropout(x, p, *rest, **more)

    F.dropout = noted_dropout  # type: ignore[assignment]
    try:
        yield passes
    finally:
        F.dropout = dropout
        for handle in hooks:
            handle.remove()


def first_of(result: Any) -> Any:
    """A copy of the first tensor that a module returned, since the block may change it in place."""
    first = result[0] if isinstance(result, tuple) else result
    return first.detach().clone() if isinstance(first, Tensor) else first


def tolerance(x: Tensor) -> float:
    """The largest relative difference that rounding explains, of many numbers together."""
    return torch.finfo(x.dtype).eps if x.dtype in (torch.float16, torch.bfloat16) else 2e-5


def same_size(a: Any, b: Tensor) -> bool:
    """True for a tensor of as many numbers with the same last dimension."""
    return isinstance(a, Tensor) and a.is_floating_point() and a.shape[-1:] == b.shape[-1:] and a.numel() == b.numel()


def close(a: Tensor, b: Tensor) -> bool:
    wide = b.double().flatten()
    return float((a.double().flatten() - wide).norm()) <= tolerance(b) * float(wide.norm())


def sum_factors(target: Tensor, atoms: Sequence[Tensor]) -> list[float] | None:
    """The factors with which tensors add up to the target; None if they do not."""
    for number, atom in enumerate(atoms):
        if torch.equal(atom.reshape(target.shape), target):
            return [float(number == place) for place in range(len(atoms))]
    wide = target.double().flatten().cpu()
    matrix = torch.stack([atom.double().flatten().cpu() for atom in atoms], -1)
    factors = torch.linalg.lstsq(matrix, wide[:, None], driver="gelsd").solution[:, 0]
    noise = (matrix @ factors - wide).norm() / wide.numel() ** 0.5  # in one number: what a factor cannot be told from
    used = factors.abs() * matrix.norm(dim=0) > 20 * noise + 1e-7 * wide.norm()
    if not used.any():
        return None
    solved = torch.zeros_like(factors)
    solved[used] = torch.linalg.lstsq(matrix[:, used], wide[:, None], driver="gelsd").solution[:, 0]
    return solved.tolist() if close(matrix @ solved, target) else None


def is_one(factor: float, x: Tensor) -> bool:
    return abs(factor - 1) <= (5e-3 if x.dtype in (torch.float16, torch.bfloat16) else 2e-4)


@torch.no_grad()
def read_norm(call: ModuleCall) -> Gains | None:
    """What the module computes if it is a norm; None if it is something else."""
    module, x = call.module, call.x
    parameters = dict(module.named_parameters())
    if (
        not same_size(call.y, x)
        or set(parameters) - {"weight", "bias"}
        or any(p.dim() > 1 for p in parameters.values())
    ):
        return None
    wide, out = x.double().flatten(0, -2), call.y.double().flatten(0, -2)
    weight, bias = (parameters.get(name) for name in ("weight", "bias"))
    if out.abs().max() == 0 or (weight is not None and weight.shape != x.shape[-1:]):
        return None
    listed = [getattr(module, name, None) for name in ("variance_epsilon", "eps", "epsilon", "norm_eps")]
    for eps in [value for value in (*listed, *EPS) if isinstance(value, float)]:
        for kind in ("rms", "layer"):
            centred = wide - wide.mean(-1, keepdim=True) if kind == "layer" else wide
            unit = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
            for offset in (0.0, 1.0):
                fitted = unit if weight is None else unit * (weight.double() + offset)
                if close(fitted if bias is None else fitted + bias.double(), call.y):
                    return Gains(kind, eps, offset)
                if weight is None:
                    break
    return None


def raw_of(call: ModuleCall) -> Any:
    return call.result[0] if isinstance(call.result, tuple) else call.result


def name_call(call: ModuleCall | None) -> str:
    return "its end" if call is None else f"{call.path} ({type(call.module).__name__})"


@dataclass(eq=False)
class LayerReader:
    """Takes one block apart. `sublayers` are what it is; `steps` the streams before and after each with its update."""

    run: Pass
    norms: dict[str, Gains] = field(default_factory=dict)
    sublayers: list[Sublayer] = field(default_factory=list)
    steps: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Of each sub-layer: the stream before it, the sum of its branches, the stream behind it."""
    chains: list[BranchCalls] = field(default_factory=list)
    readings: list[ModuleCall] = field(default_factory=list)
    """Norms that have read the stream as it is now."""

    def read(self) -> None:
        stream = self.run.x
        for call in [*self.run.calls, None]:
            target = self.run.y if call is None else call.x
            if call is not None and (chain := self.continued(call)) is not None:
                if isinstance(call.module, nn.Dropout) and same_size(call.y, self.run.x):
                    chain.dropout = call.path
                else:
                    chain.calls.append(call)
                continue
            if not same_size(target, self.run.x):
                if call is None:
                    self.refuse("it returns no stream")
                continue
            target = target.reshape(self.run.x.shape)
            stream = self.place(call, target, stream)
        if not self.sublayers:
            self.refuse("no module adds to the stream")
        if self.chains:
            self.refuse(f"{name_call(self.chains[0].calls[-1])} adds nothing to the stream")

    def continued(self, call: ModuleCall) -> BranchCalls | None:
        """The chain whose end is what a call is handed."""
        ends = [chain for chain in self.chains if isinstance(chain.end, Tensor) and chain.end.numel() == call.x.numel()]
        chain = next((chain for chain in ends if torch.equal(chain.end.flatten(), call.x.flatten())), None)
        if chain is not None and any(isinstance(value, Tensor) for value in call.arguments.values()):
            self.refuse(f"{name_call(call)} is handed more than what runs before it")
        return chain

    def place(self, call: ModuleCall | None, target: Tensor, stream: Tensor) -> Tensor:
        """Says what a call is handed, or the block returns, and gives the stream as it is then."""
        norms = [norm for norm in self.readings if not isinstance(norm.module, nn.Identity)]
        chains = [chain for chain in self.chains if same_size(chain.end, stream)]
        tensors = [stream, *(norm.y for norm in norms), *(chain.end for chain in chains)]
        factors = sum_factors(target, [tensor.reshape(target.shape) for tensor in tensors])
        if factors is None:
            self.refuse(f"what {name_call(call)} is handed is no sum of the stream and what was computed from it")
        base = [(at, factor) for at, factor in enumerate(factors[: 1 + len(norms)]) if factor]
        added = [(chain, factor) for chain, factor in zip(chains, factors[1 + len(norms) :], strict=True) if factor]
        if len(base) != 1:
            self.refuse(
                f"what {name_call(call)} is handed is a sum with {'two streams' if base else 'no stream'} in it"
            )
        ((at, factor),) = base
        if call is not None and not added and factor == 1.0:  # it reads
            identity = next((norm for norm in self.readings if norm not in norms), None)
            self.begin(norms[at - 1] if at else identity, call)
            return stream
        if not is_one(factor, target):
            terms = "".join(f" + {number:.4g} {chain.calls[-1].path}" for chain, number in added)
            self.refuse(f"the stream becomes {factor:.4g} x{terms}, and no scheme has that factor of x")
        if at:
            stream = self.normalised(norms[at - 1])
        if added:
            self.write(added, stream, target)
            stream = target
        if call is not None:
            self.begin(None, call)
        return stream

    def normalised(self, norm: ModuleCall) -> Tensor:
        """The stream goes on as a norm of it: Post-Norm, of the sub-layer before."""
        if not self.sublayers:
            self.refuse(f"the stream begins again as {name_call(norm)} of it")
        if self.sublayers[-1].after is not None:
            self.refuse(f"{name_call(norm)} normalises the stream once more")
        self.sublayers[-1] = replace(self.sublayers[-1], after=norm.path)
        before, update, _ = self.steps[-1]
        out: Tensor = norm.y.reshape(before.shape)
        self.steps[-1] = before, update, out
        for chain in self.chains:
            chain.norm = None if chain.norm is norm else chain.norm
        return out

    def begin(self, norm: ModuleCall | None, call: ModuleCall) -> None:
        gains = read_norm(call) if norm is None else None
        if gains is not None:
            self.norms[call.path] = gains
        if gains is not None or (norm is None and isinstance(call.module, nn.Identity)):
            self.readings.append(call)
        else:
            self.chains.append(BranchCalls(norm, [call]))

    def write(self, parts: Sequence[tuple[BranchCalls, float]], before: Tensor, after: Tensor) -> None:
        """A sub-layer ends: these chains are added to the stream."""
        branches, output = [], None
        for chain, factor in parts:
            calls = chain.calls
            gains = read_norm(calls[-1]) if len(calls) > 1 else None
            if gains is not None and len(parts) == 1:
                self.norms[calls[-1].path], output, calls = gains, calls[-1].path, calls[:-1]
            # a number of the block's own, as Granite's, belongs to the branch; one in the code alone is another rule
            numbers = [1.0, *(value for value in vars(self.run.block).values() if isinstance(value, float) and value)]
            scale = next((value for value in numbers if is_one(factor / value, after)), None)
            if scale is None or (output and scale != 1.0):
                self.refuse(f"{factor:.4g} times {name_call(chain.calls[-1])} is added to the stream")
            dropout = chain.dropout or self.run.dropouts.get(id(raw_of(chain.calls[-1])))
            norm = None if chain.norm is None else chain.norm.path
            arguments = self.arguments_of(calls[0])
            multiplier = None if scale == 1.0 else scale
            branches.append(Branch(tuple(call.path for call in calls), norm, dropout, multiplier, arguments))
        kinds = ["attn" if branch.arguments else "mlp" for branch in branches]
        kind = kinds[0] if len(kinds) == 1 else "parallel"
        if kind in (sublayer.kind for sublayer in self.sublayers):
            self.refuse(f"two sub-layers of the kind {kind}")
        total = torch.stack([factor * chain.end.reshape(before.shape) for chain, factor in parts]).sum(0)
        raw = parts[0][0].calls[-2].y.reshape(before.shape) if output else total
        self.sublayers.append(Sublayer(kind, tuple(branches), output))
        self.steps.append((before, raw, after))
        self.chains = [chain for chain in self.chains if all(chain is not part for part, _ in parts)]
        self.readings = []

    def arguments_of(self, call: ModuleCall) -> dict[str, str]:
        """Which arguments of the block a module is handed: the module's name of each, and the block's."""
        names: dict[str, str] = {}
        block = self.run.arguments
        for name, value in call.arguments.items():
            same = [theirs for theirs, other in block.items() if other is value]
            if value is None or isinstance(value, bool | int | float | str):
                same = [name] if name in block and block[name] == value else []
                if not same and value is not None and value is not False:
                    self.refuse(f"{name_call(call)} is handed {name}={value}, which is no argument of the block")
                names |= {name: name} if same else {}
            elif not same:
                self.refuse(f"{name_call(call)} is handed {name}, which the block makes itself")
            else:
                names[name] = name if name in same else same[0]
        return names

    def refuse(self, what: str) -> NoReturn:
        seen = ", ".join(sublayer.text for sublayer in self.sublayers) or "no sub-layer"
        raise Refused(f"{self.run.path} ({type(self.run.block).__name__}): {what}; seen before it: {seen}")


STACKS: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Stack]] = WeakKeyDictionary()
"""What was recognised, with the modules of the model that it was recognised of."""


def stack_of(model: nn.Module) -> Stack:
    """As `recognise`, once for as long as the model has the same modules."""
    modules = tuple(map(id, model.modules()))
    if model not in STACKS or STACKS[model][0] != modules:
        STACKS[model] = modules, recognise(model)
    return STACKS[model][1]


def block_lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Lists of modules that lie in no other list."""
    outer = ""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and not (outer and path.startswith(f"{outer}.")):
            outer = path
            yield path, module


@torch.no_grad()
def record_pass(model: nn.Module) -> tuple[list[Pass], list[ModuleCall]]:
    """The calls of blocks in one pass over random ids, and those of the modules outside of them."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise Refused(f"{type(model).__name__} reads no ids")
    device = next(model.parameters()).device
    ids = torch.randint(3, max(4, vocabulary - 4), TOKENS, generator=torch.Generator().manual_seed(0)).to(device)
    blocks = {f"{path}.{name}": block for path, blocks in block_lists(model) for name, block in blocks.named_children()}
    inside = {id(part) for block in blocks.values() for part in block.modules()}
    around: list[ModuleCall] = []

    def note(path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            x, arguments = bind(module, args, kwargs)
            if x is not None and x.is_floating_point():
                around.append(ModuleCall(path, module, arguments, x.detach().clone(), first_of(result), result))

        return hook

    outside = [(path, m) for path, m in model.named_modules() if id(m) not in inside and not list(m.children())]
    hooks = [module.register_forward_hook(note(path), with_kwargs=True) for path, module in outside]
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0  # so that modules are handed a mask
    try:
        with record_calls(blocks) as passes, evaluating(model):
            model(input_ids=ids, attention_mask=mask, use_cache=True)
    except Exception as error:
        raise Refused(
            f"{type(model).__name__} takes no ids alone ({type(error).__name__}: {str(error)[:100]})"
        ) from None
    finally:
        for handle in hooks:
            handle.remove()
    return passes, around


def recognise(model: nn.Module) -> Stack:
    """The stack of blocks of a causal model of transformers, each verified on numbers. Refused, one line, with what was
    seen, for a model whose layers follow another rule."""
    passes, around = record_pass(model)
    lists: dict[str, list[Pass]] = {}
    for run in passes:
        lists.setdefault(run.path.rpartition(".")[0], []).append(run)
    name = type(model).__name__
    if not lists:
        raise Refused(f"{name} has no list of blocks that its pass runs through")
    path, runs = max(lists.items(), key=lambda item: len(item[1]))
    blocks = list(model.get_submodule(path).children())
    if [run.block for run in runs] != blocks:
        raise Refused(f"{name} does not run the blocks of {path} once each, in their order")
    readers = [LayerReader(run) for run in runs]
    for reader, before in zip(readers, [None, *readers], strict=False):
        reader.read()
        if before is not None and not close(before.run.y, reader.run.x):
            raise Refused(f"{name} changes the stream between {before.run.path} and {reader.run.path}")
    norms = {norm for reader in readers for norm in reader.norms.values()}
    last = runs[-1].y.flatten()
    ends = [call for call in around if call.x.numel() == last.numel() and torch.equal(call.x.flatten(), last)]
    exits = [(call, gains) for call in ends if (gains := read_norm(call)) is not None]
    norms |= {gains for _, gains in exits[:1]}
    if not norms:
        raise Refused(f"{name} has no norms that are modules")
    if len(norms) > 1:
        seen = sorted(f"{norm.kind} eps={norm.eps:g} offset={norm.offset:g}" for norm in norms)
        raise Refused(f"{name} has norms of several kinds: {', '.join(seen)}")
    (gains,) = norms
    layers = tuple(tuple(reader.sublayers) for reader in readers)
    layers = layers if any(layer != layers[0] for layer in layers) else layers[:1]
    placements = {sublayer.placement for sublayers in layers for sublayer in sublayers}
    if len(placements) > 1:
        raise Refused(f"{name} has sub-layers of several kinds: {', '.join(sorted(placements))}")
    get_embedding = getattr(model, "get_input_embeddings", lambda: None)
    embedding = next((path for path, module in model.named_modules() if module is get_embedding()), None)
    paths: list[Any] = [path, embedding, exits[0][0].path if exits else None]
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    if all(each is None or each.startswith(prefix) for each in paths):
        paths = [each and each.removeprefix(prefix) for each in paths]
    tupled = not isinstance(runs[0].result, Tensor)
    returns = returned(runs[0], readers[0]) if tupled else ()
    more = layers if len(layers) > 1 else ()
    stack = Stack(
        "decoder",
        paths[0],
        layers[0],
        paths[1],
        None,
        paths[2],
        gains.kind,
        gains.offset,
        gains.eps,
        returns,
        more,
        tupled,
    )
    check_rebuilt(stack, readers)
    return stack


def returned(run: Pass, reader: LayerReader) -> tuple[str, ...]:
    """Kinds of sub-layers whose module returns what the block returns beside the stream, in that order."""
    kinds: list[str] = []
    for value in run.result[1:]:
        for sublayer in reader.sublayers:
            call = next(call for call in run.calls if call.path == sublayer.branches[0].modules[0])
            beside = call.result[1:] if isinstance(call.result, tuple) else ()
            if any(value is other for other in beside[:1]):
                kinds.append(sublayer.kind)
                break
        else:
            reader.refuse("it returns more than the stream and what its attention returns")
    return tuple(kinds)


@torch.no_grad()
def copy_gains(norm: nn.Module, target: nn.Module, offset: float) -> None:
    """Gains and biases of a stock norm to one of ours (or anything with such parameters) that has them; frozen ones
    stay so. offset: what is added to a stored gain."""
    for name, shift in (("weight", offset), ("bias", 0.0)):
        source, place = getattr(norm, name, None), getattr(target, name, None)
        if isinstance(source, Tensor) and isinstance(place, nn.Parameter):
            place.copy_(source.to(place.device) + shift)
            place.requires_grad_(source.requires_grad)


class Replay(nn.Module):
    """In the place of a branch: returns what it returned in the pass, and keeps what it is handed."""

    def __init__(self, update: Tensor) -> None:
        super().__init__()
        self.update = update

    def forward(self, y: Tensor) -> Tensor:
        self.reading = y
        return self.update


@torch.no_grad()
def check_rebuilt(stack: Stack, readers: Sequence[LayerReader]) -> None:
    """Rebuilds every sub-layer from its parts under the scheme and compares the stream behind it, and what its branch
    reads, with what the model computed."""
    scheme = scheme_of_stack(stack)
    for layer, reader in enumerate(readers):
        for sublayer, (before, update, after) in zip(reader.sublayers, reader.steps, strict=True):
            wide = before.float() if before.dtype != torch.float64 else before
            site = Site(layer, sublayer.kind, len(readers), max(2, len(reader.sublayers)))
            bias = any(
                getattr(reader.run.block.get_submodule(path), "bias", None) is not None for path in sublayer.norms
            )
            replay = Replay(update.to(wide.dtype))
            residual = Residual(replay, scheme, site, wide.shape[-1], stack.norm, True, stack.eps, bias)
            residual.to(wide)
            shared = len({branch.norm for branch in sublayer.branches}) == 1
            for path, role in sublayer.norms.items():
                norm = reader.run.block.get_submodule(path)
                if isinstance(norm, nn.Identity):
                    residual.own[role] = nn.Identity()
                    continue
                target = next(m for m in residual.own.get_submodule(role).modules() if isinstance(m, Norm))
                copy_gains(norm, target, stack.gain_offset)
            rebuilt = residual(wide)
            call = next(call for call in reader.run.calls if call.path == sublayer.branches[0].modules[0])
            if not close(rebuilt, after) or (shared and not close(replay.reading, call.x)):
                reader.refuse(f"{sublayer.text} rebuilt under {scheme} gives another stream")


def scheme_of_stack(stack: Stack) -> Scheme:
    """The scheme of blocks whose sub-layers all have one placement. Refused for one that is no scheme."""
    placement = stack.sublayers[0].placement
    if placement not in SCHEMES:
        raise Refused(f"norms {placement} ({stack.sublayers[0].text}) are no scheme")
    return parse(SCHEMES[placement])
