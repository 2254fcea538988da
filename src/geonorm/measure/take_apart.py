"""Takes a block of a recorded pass apart into its sub-layers: which modules are norms, which of them read the stream,
what is added to it and with which factors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .anatomy import Branch, Sublayer
from .fits import Gains, is_one, read_norm, same_size, sum_factors
from .record import BlockCall, ModuleCall, Refused

ADDED = ("plain", "weighted", "joined")
"""How an update is added to the stream: as it is; to a multiple of the stream; by a module with learned factors."""
Step = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of a sub-layer: the stream before it, what its first branch reads, the sum of its branches, the stream after it."""


@dataclass(eq=False)
class BranchCalls:
    """Modules of a block that run one after the other, from the first that reads the stream or a norm of it."""

    norm: ModuleCall | None
    calls: list[ModuleCall]
    dropout: str | float | None = None

    @property
    def end(self) -> Tensor:
        return self.calls[-1].y


def same_object(a: Any, b: Any) -> bool:
    """True for one object, or tuples of the same objects: accelerate makes tuples anew."""
    tuples = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
    return a is b or (tuples and all(one is other for one, other in zip(a, b, strict=True)))


def name_call(call: ModuleCall | None) -> str:
    return "its end" if call is None else f"{call.path} ({type(call.module).__name__})"


@dataclass(eq=False)
class LayerReader:
    """Takes one block apart: `sublayers` are the result; `steps` has the stream before and after each, and its
    update."""

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
            stream = self.follow(call, target, stream)
        if not self.sublayers:
            self.refuse("no module adds to the stream")
        if self.chains:
            self.refuse(f"{name_call(self.chains[0].calls[-1])} adds nothing to the stream")
        if self.run.dropouts:
            self.refuse("its code has dropout elsewhere than on one update (set that rate to 0)")

    def joined(self, call: ModuleCall, stream: Tensor) -> BranchCalls | None:
        """The chain whose output a call gets together with the stream, if it returns the next stream."""
        tensors = [x for x in (call.x, *call.arguments.values()) if same_size(x, stream)]
        if len(tensors) != 2 or not any(same_tensor(x, stream) for x in tensors):
            return None
        return next((chain for chain in self.chains if any(same_tensor(x, chain.end) for x in tensors)), None)

    def continued(self, call: ModuleCall) -> BranchCalls | None:
        """The chain whose output is the input of a call."""
        chain = next((chain for chain in self.chains if same_tensor(call.x, chain.end)), None)
        if chain is not None and any(isinstance(value, Tensor) for value in call.arguments.values()):
            self.refuse(f"{name_call(call)} is handed more than what runs before it")
        return chain

    def follow(self, call: ModuleCall | None, target: Tensor, stream: Tensor) -> Tensor:
        """Explains the input of a call, or the result of the block, and returns the stream at that moment."""
        if not target.isfinite().all():
            self.refuse(f"what {name_call(call)} is handed holds NaN or infinity")
        norms = [norm for norm in self.readings if not isinstance(norm.module, nn.Identity)]
        norms.sort(key=lambda norm: call is None or norm.result is not call.handed)  # new norms have equal outputs
        if call is not None and norms and norms[0].result is call.handed and same_tensor(norms[0].y, call.x):
            self.begin(norms[0], call)  # also where rounding makes a norm of a norm the same
            return stream
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
        """The stream goes on as a norm of itself: this is Post-Norm, and belongs to the sub-layer before."""
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
            result = chain.calls[-1].result
            last = id(result[0] if isinstance(result, tuple) else result)
            dropout = chain.dropout or self.run.dropouts.pop(last if len(parts) == 1 else 0, None)
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
        """The arguments of the block that a module gets: {the module's name: the block's name}."""
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
        """The call of the module with which a sub-layer's first branch begins."""
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
        before, after = (x.unflatten(-1, (self.streams, -1)) if x.dim() < 4 else x for x in (calls[0].x, after))
        self.steps.append((before, first.x, calls[-1].y.reshape(first.x.shape), after))
        n, width = before.shape[-2:]
        sizes = {len(p) for p in calls[0].module.parameters() if p.shape[1:] == (n * width,)}
        ranks = ["width" if size == 5 * width // 32 else size for size in sizes]
        self.rules = [f"mhc(n={n})", f"mhc(n={n}, mix=identity)", *(f"gated_streams(n={n}, rank={r})" for r in ranks)]


@dataclass(eq=False)
class HistoryReader(LayerReader):
    """The same for a block that is handed the sums of earlier ones beside the one that grows. Each sub-layer but the
    first of all begins with a module that reads them. As streams: one slot for each sum, 0 until it is begun."""

    streams: int = field(default=2, kw_only=True)

    def read(self) -> None:
        reading = [at for at, call in enumerate(self.run.calls) if at and sums_handed(call, self.run.x) is not None]
        if len(reading) != 1:
            self.refuse(f"after its first sub-layer {len(reading)} modules read the sums of earlier blocks, not one")
        mlp = self.run.calls[reading[0]]
        partial = next(x for x in mlp.arguments.values() if same_size(x, self.run.x))
        before, between, after = (
            torch.cat((sums_handed(call, self.run.x), x.unsqueeze(-2)), -2)  # type: ignore[arg-type]
            for call, x in ((self.run, self.run.x), (mlp, partial), (mlp, self.run.y))
        )
        self.end("attn", self.run.calls[: reading[0]], before, between)
        self.end("mlp", self.run.calls[reading[0] :], between, after)

    def end(self, kind: str, calls: list[ModuleCall], before: Tensor, after: Tensor) -> None:
        """A sub-layer ends."""
        norms = [(call, gains) for call in calls if (gains := read_norm(call)) is not None]
        self.norms |= {call.path: gains for call, gains in norms}
        chain = calls[calls.index(norms[-1][0]) + 1 :] if norms else []
        if not chain or not same_tensor(chain[0].x, norms[0][0].y):
            self.refuse(f"what {name_call(calls[-1])} is handed is not computed from a norm of the sums")
        self.sublayers.append(Sublayer(kind, (Branch(tuple(call.path for call in calls)),)))
        slots = (F.pad(x, (0, 0, 0, self.streams - x.shape[-2])) for x in (before, after))
        reading = torch.cat([call.y for call, _ in norms], -1)
        self.steps.append((next(slots), reading, chain[-1].y, next(slots)))


def sums_handed(call: ModuleCall, x: Tensor) -> Tensor | None:
    """The tensor (..., n, dim) among those that a module is handed, for x (..., dim)."""
    tensors = [each for each in (call.x, *call.arguments.values()) if isinstance(each, Tensor) and each.dim() > x.dim()]
    return next((each for each in tensors if (*each.shape[:-2], each.shape[-1]) == x.shape), None)


def outputs(call: ModuleCall) -> list[Tensor]:
    """The tensors that a module returned."""
    return [x for x in (call.y, *(call.result if isinstance(call.result, tuple) else ())) if isinstance(x, Tensor)]


def same_tensor(a: Tensor, b: Any) -> bool:
    """True for a tensor of the same numbers, in whatever shape."""
    return isinstance(b, Tensor) and a.numel() == b.numel() and torch.equal(a.flatten(), b.flatten())
