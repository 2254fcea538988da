"""Recognises the residual rule of a causal model of transformers by the structure of its layers, and verifies it.

One forward pass on random ids records the inputs and outputs of every block and every module inside it. From these
tensors alone each block is taken apart: which modules are norms, which of them read the stream, what is added to it and
with which factors. Every relation is a least-squares fit on the recorded numbers, and what does not fit is refused in
one line that says what was seen. No name of a family and no source text is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import require
from ..norms import NormSpec, upcast
from ..residual import Residual, StreamEnd
from ..schemes import Scheme, Site, enter_as, parse
from .anatomy import Stack, Sublayer, extra_results
from .fits import close, read_norm, same_size
from .rebuild import CARRIED, carry, has_several_norms, rebuild
from .record import TOKENS, BlockCall, ModuleCall, Refused, record_pass
from .take_apart import ADDED, HistoryReader, LayerReader, Step, StreamsReader, same_tensor, sums_handed

Carried = Mapping[str, tuple[str, str]]
"""As `Sublayer.carried`."""
SCHEMES = {
    **{(name, "plain"): [name] for name in ("pre", "peri", "olmo2", "post")},
    ("peri", "weighted"): ["beam", "peri(layer_scalar=learned)"],
    ("peri", "joined"): ["muse"],
    ("pre", "joined"): ["affine"],
}
"""The schemes that a placement of norms and a way of adding may be."""
HEADS = ("mean", "sum", "learned")
"""The ways in which several streams may leave."""
STACKS: WeakKeyDictionary[nn.Module, tuple[tuple[float, ...], Stack]] = WeakKeyDictionary()
"""Recognised stacks by model, each with what the model was then: the ids of its modules and their numbers."""


def stack_of(model: nn.Module) -> Stack:
    """The result of `recognise`, from STACKS while the model has the same modules with the same numbers."""
    modules = (
        *map(id, model.modules()),
        *(value for part in model.modules() for value in vars(part).values() if type(value) in (int, float)),
    )
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
    if not lists or getattr(model.config, "is_encoder_decoder", False):
        raise Refused(f"{name} has no list of blocks that its pass runs through, or two stacks of them")
    path, runs = max(lists.items(), key=lambda item: len(item[1]))
    blocks = list(model.get_submodule(path).children())
    if [run.module for run in runs] != blocks:
        raise Refused(f"{name} does not run the blocks of {path} once each, in their order")
    text = model.config.get_text_config()  # type: ignore[union-attr, operator]
    streams = runs[0].x.numel() // (TOKENS[0] * TOKENS[1] * getattr(text, "hidden_size", runs[0].x.shape[-1]))
    sums = [each for call in runs[-1].calls if (each := sums_handed(call, runs[-1].x)) is not None]
    if sums:
        streams = sums[-1].shape[-2] + 1
    kind_of: Any = HistoryReader if sums else StreamsReader
    readers = [LayerReader(run) if streams < 2 else kind_of(run, streams=streams) for run in runs]
    for reader, before in zip(readers, [None, *readers], strict=False):
        reader.read()
        if before is not None and not close(before.steps[-1][3], reader.steps[0][0]):
            raise Refused(f"{name} changes the stream between {before.run.path} and {reader.run.path}")
    ends = [call for call in around if same_tensor(call.x, runs[-1].y)]
    exits = [(call, gains) for call in ends if (gains := read_norm(call)) is not None][:1]
    inside = {gains for reader in readers for gains in reader.norms.values()}
    norms = [*inside, *(gains for _, gains in exits)]
    require(norms or streams > 1, f"{name} has no norms that are modules", Refused)
    offsets = {gains.offset for gains in inside} - {None}
    if len(offsets) > 1 or len({gains.kind for gains in norms}) > 1:
        seen = sorted(f"{gains.kind} eps={gains.eps:g} offset={gains.offset}" for gains in norms)
        raise Refused(f"{name} has norms of several kinds: {', '.join(seen)}")
    layers = tuple(tuple(reader.sublayers) for reader in readers)
    layers = layers if any(layer != layers[0] for layer in layers) else layers[:1]
    placements = {sublayer.placement for sublayers in layers for sublayer in sublayers}
    require(len(placements) == 1, f"{name} has sub-layers of several kinds: {', '.join(sorted(placements))}", Refused)
    kind = (
        placements.pop(),
        max((how for reader in readers for how in reader.added), key=ADDED.index, default="streams"),
    )
    rules = SCHEMES.get(kind, []) if streams < 2 else readers[0].rules
    if sums:
        every = next((layer + 1 for layer, reader in enumerate(readers) if len(reader.norms) > 2), 0)
        queries = f"queries=qkv, every={every}" if every else "queries=one"
        rules = [f"attnres(blocks={streams - 1}, values={values}, {queries})" for values in ("norm", "raw")]
    require(rules, f"norms {kind[0]} ({layers[0][0].text}) are no scheme", Refused)
    table = getattr(model, "get_input_embeddings", lambda: None)()
    embedding = next((path for path, module in model.named_modules() if module is table), None)
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
        returns=returned(runs, readers) if tupled and streams < 2 else (),
        tupled=tupled,
    )
    refusals = []
    for rule in rules:
        try:
            stacked = verified(stack, enter_as(parse(rule), "embedding"), readers)
            return stacked if streams < 2 else with_head(stacked, model, readers[-1].steps[-1][3], len(runs), around)
        except Refused as refused:
            refusals.append(refused)
    raise refusals[0]


def returned(runs: Sequence[BlockCall], readers: Sequence[LayerReader]) -> tuple[str, ...]:
    """What a block returns beside the stream, each by its name in what its sub-layers return; of the block that has
    most: one without attention returns None in its place."""
    every: list[list[str]] = []
    for run, reader in zip(runs, readers, strict=True):
        beside: list[tuple[str, Any]] = []
        for sublayer in reader.sublayers:
            beside += extra_results(sublayer.kind, reader.call_of(sublayer).result).items()
        names = [next((name for name, other in beside if other is value), None) for value in run.result[1:]]
        every.append([name for name in names if name is not None])
    most = max(every, key=len)
    if len(most) < len(runs[0].result) - 1:
        readers[0].refuse("it returns more than the stream and what its sub-layers return")
    return tuple(most)


class Replay(nn.Module):
    """Takes the place of a branch: returns what that returned in the recorded pass, and stores its own input."""

    def __init__(self, update: Tensor) -> None:
        super().__init__()
        self.update = update

    def forward(self, *inputs: Tensor) -> Tensor:
        """Several inputs are stored as one, side by side."""
        self.reading = torch.cat(inputs, -1)
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
    sub-layer, rebuilt from its parts, gives the stream after it and what its branch reads. None where no choice does.
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
        same = close(build(choice)(wide), after.to(update.dtype))
        if same and (has_several_norms(sublayer) or close(replay.reading, reading)):
            return choice
    return None


@torch.no_grad()
def with_head(stack: Stack, model: nn.Module, end: Tensor, depth: int, around: Sequence[ModuleCall]) -> Stack:
    """The stack of several streams with the way in which they leave: what the head reads, or the last norm returns. Of
    several ways that rounding explains, in bf16, the nearest."""
    scheme = parse(stack.scheme or "")
    streams = upcast(end)
    tensors = {name: p for name, p in model.named_parameters() if f".{stack.blocks}." not in f".{name}"}
    fits: list[tuple[float, str]] = []
    for rule in [replace(scheme, head=way) for way in HEADS] if hasattr(scheme, "head") else [scheme]:  # type: ignore[call-arg]
        exit = StreamEnd(rule, Site(depth - 1, "exit", depth), NormSpec(stack.norm, streams.shape[-1], True, stack.eps))
        for choice in assignments(tensors, exit.own):
            if len(choice) + 1 < len(list(exit.own.parameters())):
                continue  # it learns all; the last norm may have no gains
            for name, (path, how) in choice.items():
                carry(exit.own.get_parameter(name), model.get_parameter(path), how)
            out = exit.to(streams)(streams)
            for x in [side for call in around for side in (call.x, call.y)]:
                if same_size(x, out) and close(out, x):
                    fits.append((float((x.reshape(out.shape) - out).norm()), str(rule)))
    require(fits, f"the streams of {type(model).__name__} leave in another way than under {scheme}", Refused)
    return replace(stack, scheme=min(fits, key=lambda fit: fit[0])[1])


def ways_to_carry(their: Tensor | None, mine: Tensor) -> list[str]:
    """How a tensor can stand for one that a scheme learns, as far as their shapes fit."""
    if their is None:
        return []
    alike = their.shape == mine.shape
    spare = 1 if mine.dim() == 1 else 0  # a vector may lack its first number
    vector = their.dim() == 1 and 0 <= mine.numel() - their.numel() <= spare
    square = alike and (len(their) + 1) ** 0.5 % 1 == 0
    ways = {"same": alike or vector, "plus 1": vector, "transposed": square}
    return [how for how, fits in ways.items() if fits]


def assignments(tensors: Mapping[str, Any], parts: nn.Module) -> Iterator[Carried]:
    """Every choice of tensors for those that a scheme learns beside gains, as far as their shapes fit."""
    options: dict[str, list[tuple[str, str]]] = {}
    for name, mine in parts.named_parameters():
        if hasattr(mine, CARRIED):
            continue
        for path, their in tensors.items():
            for how in ways_to_carry(their, mine):
                options.setdefault(name, []).append((path, how))
    for chosen in product(*options.values()):
        if len({path for path, _ in chosen}) == len(chosen):
            yield dict(zip(options, chosen, strict=True))
