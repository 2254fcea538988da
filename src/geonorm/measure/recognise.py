"""The residual rule of a causal model of transformers, recognised by the structure of its layers, trusted by number.

One forward pass on random ids records what every block and every module inside it is handed and returns. From these
tensors alone each block is taken apart: which modules are norms, which of them read the stream, what is added to it and
with which factors. Every relation is a least-squares fit on the recorded numbers, and what does not fit is refused in
one line that says what was seen. No name of a family and no source text is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..norms import NormSpec, upcast
from ..residual import Residual, StreamEnd
from ..schemes import Scheme, Site, enter_as, parse
from .anatomy import Branch, Stack, Sublayer
from .norms import weights_in_memory
from .rebuild import CARRIED, carry, has_several_norms, rebuild
from .record import TOKENS, BlockCall, ModuleCall, Refused, record_pass

EPS = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)
"""What norms without an attribute of that name may add to the mean square."""
ADDED = ("plain", "weighted", "joined")
"""How an update is added to the stream: as it is; to a multiple of the stream; by a module with learned factors."""
SCHEMES = {
    **{(name, "plain"): [name] for name in ("pre", "peri", "olmo2", "post")},
    ("peri", "weighted"): ["beam", "peri(layer_scalar=learned)"],
    ("peri", "joined"): ["muse"],
    ("pre", "joined"): ["affine"],
}
"""The schemes that a placement of norms and a way of adding may be."""


Step = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of a sub-layer: the stream before it, what its first branch reads, the sum of its branches, the stream behind it."""
Carried = Mapping[str, tuple[str, str]]
"""As `Sublayer.carried`."""


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
    """What a norm computes: kind(x) with eps, times `weight + offset` plus `bias`, as far as it has them. offset is
    None where it has no weight or multiplies by it before it normalises."""

    kind: str
    eps: float
    offset: float | None


def tolerance(x: Tensor) -> float:
    """The largest relative difference that rounding explains, of many numbers together."""
    return torch.finfo(x.dtype).eps if x.dtype in (torch.float16, torch.bfloat16) else 2e-5


def same_size(a: Any, b: Tensor) -> bool:
    """True for a tensor of as many numbers with the same last dimension."""
    return isinstance(a, Tensor) and a.is_floating_point() and a.shape[-1:] == b.shape[-1:] and a.numel() == b.numel()


def same_object(a: Any, b: Any) -> bool:
    """True for one object, or tuples of the same objects: accelerate makes tuples anew."""
    tuples = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
    return a is b or (tuples and all(one is other for one, other in zip(a, b, strict=True)))


def close(a: Tensor, b: Tensor) -> bool:
    wide = b.double().flatten()
    return float((a.double().flatten() - wide).norm()) <= tolerance(b) * float(wide.norm())


def sum_factors(target: Tensor, atoms: Sequence[Tensor]) -> list[float] | None:
    """The factors with which tensors add up to the target; None if they do not."""
    for number, atom in enumerate(atoms):
        if torch.equal(atom.reshape(target.shape), target):
            return [float(number == place) for place in range(len(atoms))]
    wide = target.double().flatten().cpu()
    first, *others = atoms  # a norm of a stream that is normalised is the stream again
    apart = [first, *(0 * atom if close(atom, first) else atom for atom in others)]
    matrix = torch.stack([atom.double().flatten().cpu() for atom in apart], -1)
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
    shapes = {parameter.shape for parameter in parameters.values()}
    if not same_size(call.y, x) or set(parameters) - {"weight", "bias"} or shapes - {x.shape[-1:]}:
        return None
    if call.y.abs().max() == 0:
        return None
    with weights_in_memory(module):
        weight, bias = (getattr(module, name).double() if name in parameters else None for name in ("weight", "bias"))
    wide, shift = x.double().flatten(0, -2), 0.0 if bias is None else bias
    gains = {None: 1.0} if weight is None else {0.0: weight, 1.0: weight + 1}
    listed = [getattr(module, name, None) for name in ("variance_epsilon", "eps", "epsilon", "norm_eps")]
    for eps in [value for value in (*listed, *EPS) if isinstance(value, float)]:
        for offset, gain in gains.items():
            if close(gain * unit_rms(wide, eps) + shift, call.y):
                return Gains("rms", eps, offset)
            if close(gain * unit_rms(wide - wide.mean(-1, keepdim=True), eps) + shift, call.y):
                return Gains("layer", eps, offset)
            if close(unit_rms(gain * wide, eps), call.y):
                return Gains("rms", eps, None)
    return None


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps)."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def name_call(call: ModuleCall | None) -> str:
    return "its end" if call is None else f"{call.path} ({type(call.module).__name__})"


@dataclass(eq=False)
class LayerReader:
    """Takes one block apart. `sublayers` are what it is; `steps` the streams before and after each with its update."""

    run: BlockCall
    norms: dict[str, Gains] = field(default_factory=dict)
    sublayers: list[Sublayer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    chains: list[BranchCalls] = field(default_factory=list)
    readings: list[ModuleCall] = field(default_factory=list)
    """Norms that have read the stream as it is now."""
    rules: list[str] = field(default_factory=list)
    """Of several streams: the schemes that its connections may be, by the shapes of their matrices."""
    added: set[str] = field(default_factory=set)
    """How updates are added to the stream: words of `ADDED`."""

    def read(self) -> None:
        stream = self.run.x
        for call in [*self.run.calls, None]:
            target = self.run.y if call is None else call.x
            if call is not None and (chain := self.joined(call, stream)) is not None:
                self.write([(chain, 1.0)], "joined", stream, call.y, call.path)
                stream = call.y
                continue
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

    def joined(self, call: ModuleCall, stream: Tensor) -> BranchCalls | None:
        """The chain whose end a call is handed beside the stream, of which it makes a stream."""
        tensors = [x.flatten() for x in (call.x, *call.arguments.values()) if same_size(x, stream)]
        if len(tensors) != 2 or not any(torch.equal(x, stream.flatten()) for x in tensors):
            return None
        ends = [chain for chain in self.chains if same_size(chain.end, stream)]
        return next((chain for chain in ends if any(torch.equal(x, chain.end.flatten()) for x in tensors)), None)

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
        norms.sort(key=lambda norm: call is None or norm.result is not call.handed)  # new norms have equal outputs
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
        weighted = not is_one(factor, target)
        if weighted and (at or len(added) != 1):
            self.refuse(f"the stream becomes {factor:.4g} x, and no scheme has that factor of x")
        if at:
            stream = self.normalised(norms[at - 1])
        if added:
            self.write(added, "weighted" if weighted else "plain", stream, target)
            stream = target
        if call is not None:
            self.begin(None, call)
        return stream

    def normalised(self, norm: ModuleCall) -> Tensor:
        """The stream goes on as a norm of it: Post-Norm, of the sub-layer before."""
        if not self.sublayers or self.sublayers[-1].after is not None:
            self.refuse(f"the stream begins again as {name_call(norm)} of it")
        self.sublayers[-1] = replace(self.sublayers[-1], after=norm.path)
        out: Tensor = norm.y.reshape(self.run.x.shape)
        self.steps[-1] = (*self.steps[-1][:3], out)
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

    def write(
        self,
        parts: Sequence[tuple[BranchCalls, float]],
        how: str,
        before: Tensor,
        after: Tensor,
        joined: str | None = None,
    ) -> None:
        """A sub-layer ends: these chains are added to the stream, or to a multiple of it, or by a module."""
        branches, output = [], None
        self.added.add(how)
        for chain, factor in parts:
            calls = chain.calls
            gains = read_norm(calls[-1]) if len(calls) > 1 else None
            if gains is not None and len(parts) == 1:
                self.norms[calls[-1].path], output, calls = gains, calls[-1].path, calls[:-1]
            # a number of the block's own, as Granite's, belongs to the branch; one in the code alone is another rule
            numbers = [1.0, *(value for value in vars(self.run.module).values() if isinstance(value, float) and value)]
            scale = 1.0 if how != "plain" else next((n for n in numbers if is_one(factor / n, after)), None)
            if scale is None or (output and scale != 1.0) or (how == "weighted" and not output):
                self.refuse(f"the stream becomes x + {factor:.4g} {name_call(chain.calls[-1])}")
            last = chain.calls[-1].result
            dropout = chain.dropout or self.run.dropouts.get(id(last[0] if isinstance(last, tuple) else last))
            norm = None if chain.norm is None else chain.norm.path
            arguments = self.arguments_of(calls[0])
            multiplier = None if scale == 1.0 else scale
            branches.append(Branch(tuple(call.path for call in calls), norm, dropout, multiplier, arguments))
        known = [sublayer.kind for sublayer in self.sublayers]  # Zaya's experts are handed what those before chose
        kinds = ["attn" if branch.arguments and "attn" not in known else "mlp" for branch in branches]
        kind = kinds[0] if len(kinds) == 1 else "parallel"
        if kind in known:
            self.refuse(f"two sub-layers of the kind {kind}")
        total = torch.stack([factor * chain.end.reshape(before.shape) for chain, factor in parts]).sum(0)
        raw = parts[0][0].calls[-2].y.reshape(before.shape) if output else total
        self.sublayers.append(Sublayer(kind, tuple(branches), output, joined=joined))
        self.steps.append((before, parts[0][0].calls[0].x, raw, after))
        self.chains = [chain for chain in self.chains if all(chain is not part for part, _ in parts)]
        self.readings = []

    def arguments_of(self, call: ModuleCall) -> dict[str, str]:
        """Which arguments of the block a module is handed: the module's name of each, and the block's."""
        names: dict[str, str] = {}
        block = self.run.arguments
        for name, value in call.arguments.items():
            same = [theirs for theirs, other in block.items() if same_object(other, value)]
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

    def call_of(self, sublayer: Sublayer) -> ModuleCall:
        """Of the module with which a sub-layer's first branch begins."""
        return next(call for call in self.run.calls if call.path == sublayer.branches[0].modules[0])

    def refuse(self, what: str) -> NoReturn:
        seen = ", ".join(sublayer.text for sublayer in self.sublayers) or "no sub-layer"
        raise Refused(f"{self.run.path} ({type(self.run.module).__name__}): {what}; seen before it: {seen}")


@dataclass(eq=False)
class StreamsReader(LayerReader):
    """The same for a block over several streams: a sub-layer begins with a module that is handed all of them."""

    streams: int = field(default=2, kw_only=True)

    def read(self) -> None:
        running: list[ModuleCall] = []
        size = self.run.x.numel()
        for call in [*self.run.calls, None]:
            target = self.run.y if call is None else call.x
            if isinstance(target, Tensor) and target.numel() == size:
                if running:
                    self.end(running, target)
                running = [] if call is None else [call]
            elif call is None or not running or not any(same_tensor(call.x, y) for y in outputs(running[-1])):
                self.refuse(f"what {name_call(call)} is handed is not computed from the streams by a module before it")
            else:
                running.append(call)
        if not self.sublayers:
            self.refuse("no module adds to the streams")

    def end(self, calls: list[ModuleCall], after: Tensor) -> None:
        """A sub-layer ends."""
        if len(calls) < 2 or not isinstance(calls[-1].y, Tensor):
            self.refuse(f"{name_call(calls[-1])} adds nothing to the streams")
        if (gains := read_norm(calls[1])) is not None:
            self.norms[calls[1].path] = gains
        first = calls[1 if gains is None else 2]
        arguments = self.arguments_of(first)
        kind = "attn" if arguments and not self.sublayers else "mlp"
        self.sublayers.append(Sublayer(kind, (Branch(tuple(call.path for call in calls), arguments=arguments),)))
        before, behind = (x.unflatten(-1, (self.streams, -1)) if x.dim() < 4 else x for x in (calls[0].x, after))
        self.steps.append((before, first.x, calls[-1].y.reshape(first.x.shape), behind))
        n, width = before.shape[-2:]
        sizes = {len(p) for p in calls[0].module.parameters() if p.shape[1:] == (n * width,)}
        ranks = ["width" if size == 5 * width // 32 else size for size in sizes]
        self.rules = [f"mhc(n={n})", f"mhc(n={n}, mix=identity)", *(f"gated_streams(n={n}, rank={r})" for r in ranks)]


def outputs(call: ModuleCall) -> list[Tensor]:
    """The tensors that a module returned."""
    return [x for x in (call.y, *(call.result if isinstance(call.result, tuple) else ())) if isinstance(x, Tensor)]


def same_tensor(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.flatten(), b.flatten())


STACKS: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Stack]] = WeakKeyDictionary()
"""What was recognised, with the modules of the model that it was recognised of."""


def stack_of(model: nn.Module) -> Stack:
    """As `recognise`, once for as long as the model has the same modules."""
    modules = tuple(map(id, model.modules()))
    if model not in STACKS or STACKS[model][0] != modules:
        STACKS[model] = modules, recognise(model)
    return STACKS[model][1]


def recognise(model: nn.Module) -> Stack:
    """The stack of blocks of a causal model of transformers, each verified on numbers. Refused, one line, with what was
    seen, for a model whose layers follow another rule."""
    passes, around = record_pass(model)
    lists: dict[str, list[BlockCall]] = {}
    for run in passes:
        lists.setdefault(run.path.rpartition(".")[0], []).append(run)
    name = type(model).__name__
    if not lists:
        raise Refused(f"{name} has no list of blocks that its pass runs through")
    path, runs = max(lists.items(), key=lambda item: len(item[1]))
    blocks = list(model.get_submodule(path).children())
    if [run.module for run in runs] != blocks:
        raise Refused(f"{name} does not run the blocks of {path} once each, in their order")
    text = model.config.get_text_config()  # type: ignore[union-attr, operator]
    streams = runs[0].x.numel() // (TOKENS[0] * TOKENS[1] * getattr(text, "hidden_size", runs[0].x.shape[-1]))
    readers = [LayerReader(run) if streams < 2 else StreamsReader(run, streams=streams) for run in runs]
    for reader, before in zip(readers, [None, *readers], strict=False):
        reader.read()
        if before is not None and not close(before.run.y, reader.run.x):
            raise Refused(f"{name} changes the stream between {before.run.path} and {reader.run.path}")
    last = runs[-1].y.flatten()
    ends = [call for call in around if call.x.numel() == last.numel() and torch.equal(call.x.flatten(), last)]
    exits = [(call, gains) for call in ends if (gains := read_norm(call)) is not None][:1]
    inside = {gains for reader in readers for gains in reader.norms.values()}
    norms = [*inside, *(gains for _, gains in exits)]
    if not norms and streams < 2:
        raise Refused(f"{name} has no norms that are modules")
    offsets = {gains.offset for gains in inside} - {None}
    if len(offsets) > 1 or len({gains.kind for gains in norms}) > 1:
        seen = sorted(f"{gains.kind} eps={gains.eps:g} offset={gains.offset}" for gains in norms)
        raise Refused(f"{name} has norms of several kinds: {', '.join(seen)}")
    layers = tuple(tuple(reader.sublayers) for reader in readers)
    layers = layers if any(layer != layers[0] for layer in layers) else layers[:1]
    placements = {sublayer.placement for sublayers in layers for sublayer in sublayers}
    if len(placements) > 1:
        raise Refused(f"{name} has sub-layers of several kinds: {', '.join(sorted(placements))}")
    kind = (
        placements.pop(),
        max((how for reader in readers for how in reader.added), key=ADDED.index, default="streams"),
    )
    rules = SCHEMES.get(kind, []) if streams < 2 else readers[0].rules
    if not rules:
        raise Refused(f"norms {kind[0]} ({layers[0][0].text}) are no scheme")
    get_embedding = getattr(model, "get_input_embeddings", lambda: None)
    embedding = next((path for path, module in model.named_modules() if module is get_embedding()), None)
    paths: list[Any] = [path, embedding, exits[0][0].path if exits else None]
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    if all(each is None or each.startswith(prefix) for each in paths):
        paths = [each and each.removeprefix(prefix) for each in paths]
    tupled = not isinstance(runs[0].result, Tensor)
    stack = Stack(
        "decoder",
        paths[0],
        layers[0],
        paths[1],
        exit=paths[2],
        norm=norms[0].kind if norms else "rms",
        gain_offset=next(iter(offsets), 0.0) or 0.0,
        exit_offset=(exits[0][1].offset or 0.0) if exits else 0.0,
        eps=norms[0].eps if norms else 1e-6,
        returns=returned(runs[0], readers[0]) if tupled and streams < 2 else (),
        tupled=tupled,
    )
    refusals = []
    for rule in rules:
        try:
            stacked = verified(stack, enter_as(parse(rule), "embedding"), readers)
            return stacked if streams < 2 else with_head(stacked, model, runs[-1], around[-1])
        except Refused as refused:
            refusals.append(refused)
    raise refusals[0]


def returned(run: BlockCall, reader: LayerReader) -> tuple[str, ...]:
    """Kinds of sub-layers whose module returns what the block returns beside the stream, in that order."""
    results = {sublayer.kind: reader.call_of(sublayer).result for sublayer in reader.sublayers}
    seconds = {kind: result[1] for kind, result in results.items() if isinstance(result, tuple) and len(result) > 1}
    kinds = [kind for value in run.result[1:] for kind, second in seconds.items() if value is second]
    if len(kinds) < len(run.result) - 1:
        reader.refuse("it returns more than the stream and what its attention returns")
    return tuple(kinds)


class Replay(nn.Module):
    """In the place of a branch: returns what it returned in the pass, and holds what it is handed."""

    def __init__(self, update: Tensor) -> None:
        super().__init__()
        self.update = update

    def forward(self, y: Tensor) -> Tensor:
        self.reading = y
        return self.update


def verified(stack: Stack, scheme: Scheme, readers: Sequence[LayerReader]) -> Stack:
    """The stack with its scheme, and with the tensors of each block that the scheme learns. Refused where the numbers
    of a sub-layer are not those of the scheme."""
    layers: list[tuple[Sublayer, ...]] = []
    latest: dict[str, Any] = {}
    for layer, reader in reversed(list(enumerate(readers))):  # streams that are copies yet do not tell mixings apart
        sublayers = []
        for sublayer, step in zip(reader.sublayers, reader.steps, strict=True):
            site = Site(layer, sublayer.kind, len(readers), max(2, len(reader.sublayers)))
            learned = find_learned(reader.run.module, sublayer, step, stack, scheme, site, latest.get(sublayer.kind))
            if learned is None:
                reader.refuse(f"{sublayer.text} rebuilt under {scheme} gives another stream")
            latest[sublayer.kind] = learned
            sublayers.append(replace(sublayer, carried=learned))
        layers.insert(0, tuple(sublayers))
    different = any(sublayers != layers[0] for sublayers in layers)
    return replace(stack, scheme=str(scheme), sublayers=layers[0], layers=tuple(layers) if different else ())


@torch.no_grad()
def find_learned(
    block: nn.Module, sublayer: Sublayer, step: Step, stack: Stack, scheme: Scheme, site: Site, first: Carried | None
) -> Carried | None:
    """The tensors of a block that a scheme learns at a sub-layer: those, of all whose shapes fit, with which the
    sub-layer, rebuilt from its parts, gives the stream behind it and what its branch reads. None where no choice does.
    first: the choice to try first."""
    before, reading, update, after = step
    wide, replay = upcast(before), Replay(upcast(update))

    def build(carried: Carried) -> Residual:
        one = replace(sublayer, carried=carried)
        return rebuild(block, one, stack, scheme, site, wide.shape[-1], replay).to(wide)

    tensors: dict[str, Any] = {**block._parameters, **block._buffers}
    for path in {sublayer.joined, sublayer.output, *sublayer.branches[0].modules[:-1]} - {None}:
        tensors |= {f"{path}.{name}": p for name, p in block.get_submodule(str(path)).named_parameters()}
    choices = list(assignments(tensors, build({}).own))
    for choice in [choice for choice in choices if choice == first] + choices:
        same = close(build(choice)(wide), after)
        if same and (has_several_norms(sublayer) or close(replay.reading, reading)):
            return choice
    return None


@torch.no_grad()
def with_head(stack: Stack, model: nn.Module, last: BlockCall, head: ModuleCall) -> Stack:
    """The stack of several streams with the way in which they leave: what the head reads, or the last norm returns."""
    scheme = parse(stack.scheme or "")
    streams = upcast(last.y if last.y.dim() > 3 else last.y.unflatten(-1, (scheme.streams, -1)))
    spec = NormSpec(stack.norm, streams.shape[-1], True, stack.eps)
    tensors = {name: p for name, p in model.named_parameters() if f".{stack.blocks}." not in f".{name}"}
    depth = int(last.path.rpartition(".")[2]) + 1
    heads = ("mean", "sum", "learned") if hasattr(scheme, "head") else ("",)
    for rule in [replace(scheme, head=way) if way else scheme for way in heads]:  # type: ignore[call-arg]
        end = StreamEnd(rule, Site(depth - 1, "exit", depth), spec).to(streams)
        for choice in assignments(tensors, end.own):
            for name, (path, how) in choice.items():
                carry(end.own.get_parameter(name), model.get_parameter(path), how)
            if any(same_size(x, out) and close(out, x) for out in [end(streams)] for x in (head.x, head.y)):
                return replace(stack, scheme=str(rule))
    raise Refused(f"the streams of {type(model).__name__} leave in another way than under {scheme}")


def assignments(tensors: Mapping[str, Any], parts: nn.Module) -> Iterator[Carried]:
    """Every choice of tensors for those that a scheme learns beside gains, as far as their shapes fit."""
    options: dict[str, list[tuple[str, str]]] = {}
    for name, mine in parts.named_parameters():
        for path, their in () if hasattr(mine, CARRIED) else tensors.items():
            alike = their is not None and their.shape == mine.shape
            vector = their is not None and their.dim() == 1 and 0 <= mine.numel() - their.numel() <= (mine.dim() == 1)
            square = alike and (len(their) + 1) ** 0.5 % 1 == 0
            ways = {"same": alike or vector, "plus 1": vector, "transposed": square}
            options.setdefault(name, []).extend((path, how) for how, fits in ways.items() if fits)
    options = {name: choices for name, choices in options.items() if choices}
    for chosen in product(*options.values()):
        if len({path for path, _ in chosen}) == len(chosen):
            yield dict(zip(options, chosen, strict=True))
