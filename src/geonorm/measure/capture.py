"""Measures of every residual site and every norm of a model while it runs: `sites.watch` sees, here is what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .accumulate import NormMeasure, SiteMeasure, filled, flat
from .anatomy import BY_HAND, Stack, blocks_of, join_path
from .attention import AttentionMeasure, WatchAttention, counted_queries, first_places
from .layers import likeness
from .norms import NormFacts, channels_first, examine, norms_of
from .observe import ModelSite, end_kind, module_at, sites_of, stacks_of, watch, watch_calls
from .sample import SAMPLE
from .streaming import Sample

Masks = Mapping[str, Tensor | None]


class WatchedNorm:
    """A norm with its measure: what it is, is asked on its first input. Left out where its tokens cannot be told from
    padding."""

    def __init__(
        self, name: str, module: nn.Module, stack: str, role: str, layer: int | None, kind: str | None
    ) -> None:
        self.module, self.stack = module, stack
        self.about = {"norm": name, "stack": stack, "role": role, "layer": layer, "kind": kind}
        self.of_scheme = ".own." in name
        """Whether it may be handed all streams of a token at once."""
        self.measure: NormMeasure | None = None
        self.facts: NormFacts | None = None

    def see(self, x: Tensor, y: Tensor, mask: Tensor | None) -> None:
        if channels_first(self.module):
            x, y = x.movedim(1, -1), y.movedim(1, -1)
        if mask is not None and not mask.all():
            axis = 1 if self.of_scheme or x.dim() != 4 else token_axis(mask, x)
            if axis is None:
                return
            x, y = x.transpose(1, axis), y.transpose(1, axis)
            if not fits(mask, x):
                return
        if self.facts is None or self.measure is None:
            self.facts = examine(self.module, x)
            self.measure = NormMeasure(self.facts.centred)
        mask = fit_mask(mask, x)
        mask = filled(x, mask) if self.of_scheme else mask
        self.measure.update(x, y, self.facts.gain, self.facts.bias, mask)

    def row(self) -> dict[str, Any]:
        """In the columns of norms.jsonl, for a norm that ran."""
        assert self.facts is not None and self.measure is not None
        return {**self.about, "norm_kind": self.facts.kind, **self.measure.row()}


def fits(mask: Tensor, x: Tensor) -> bool:
    """Whether x is (batch, tokens, ...) as the mask is, or (batch x tokens, features)."""
    return mask.shape == x.shape[: mask.dim()] or (x.dim() == 2 and x.shape[0] == mask.numel())


def token_axis(mask: Tensor, x: Tensor) -> int | None:
    """Which axis of the queries or keys x, (batch, tokens, heads, features) or with heads in front, the tokens of the
    mask (batch, tokens) lie along; None where that is not certain.

    The shape says it but where there are as many heads as tokens. Memory says it where x is a view of what a matrix
    gave: the heads of a token lie within one row of it.
    """
    found = [axis for axis in (1, 2) if mask.shape == (x.shape[0], x.shape[axis])]
    base = x._base
    if base is not None and base.is_contiguous() and base.shape[-1] > x.shape[-1] and min(x.shape[1:3]) > 1:
        rows = [axis for axis in (1, 2) if x.stride(axis) >= base.shape[-1]]
        found = [axis for axis in found if axis in rows] if len(rows) == 1 else found
    return found[0] if len(found) == 1 else None


def fit_mask(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """The mask in the shape of the tokens of x: (batch, tokens), or flat where x is. ConfigError for others."""
    if mask is None or bool(mask.all()):
        return None
    if not fits(mask, x):
        raise ConfigError(
            f"padding of shape {tuple(mask.shape)} does not fit the stream {tuple(x.shape)}; probe without padding"
        )
    mask = mask.to(x.device).bool()
    return mask if mask.shape == x.shape[: mask.dim()] else mask.flatten()


def mask_of(masks: Masks, stack: str) -> Tensor | None:
    """The mask of a stack; that of a model with one stream may be given under any name."""
    return masks.get(stack) if stack in masks or len(masks) != 1 else next(iter(masks.values()))


def clamped_tokens(place: ModelSite, x: Tensor, u: Tensor | None) -> Tensor | None:
    """Which tokens (batch, tokens) a scheme's ceiling stops; None for a site without one."""
    residual = place.residual
    if residual is None or u is None:
        return None
    with torch.no_grad():
        return residual.scheme.clamped(x, u, residual.own(), residual.site(x))


class SiteRecord:
    """All that is measured of one site beside its SiteMeasure."""

    def __init__(self) -> None:
        self.attention = AttentionMeasure()
        self.clamped, self.tokens = 0.0, 0
        self.end = Sample(SAMPLE)
        """Of the stream behind the site: the same tokens as the measure's sample in front of it."""

    def row(self) -> dict[str, Any]:
        clamped = self.clamped / self.tokens if self.tokens else None
        return {**self.attention.row(), "clamped": clamped}


class Capture:
    """Sites and norms of a model, found once, with their measures; `watching` measures what runs inside it.

    stacks: for a model that is in no table, `anatomy.Stack.by_hand(...)`; those of the table, and whatever has
    `Residual`s, need none. sites=False: norms alone, on any nn.Module. Raises ConfigError where no residual site, or no
    norm, is found.
    """

    def __init__(self, model: nn.Module, stacks: Sequence[Stack] | None = None, *, sites: bool = True) -> None:
        self.model = model
        self.stacks = stacks_of(model, stacks) if sites else []
        self.sites = {place: SiteMeasure() for place in (sites_of(model, stacks) if sites else ())}
        self.records = {place: SiteRecord() for place in self.sites}
        self.last = {place.stack: place for place in self.sites}
        self.attended: list[tuple[Tensor, Tensor, Tensor]] = []
        """What `WatchAttention` has found since the last site."""
        self.norms: dict[str, WatchedNorm] = {}
        self.masks: Masks = {}
        self.running = ""
        """The stack whose site runs, or ran last."""
        self.asking = False
        """Whether norms run because a site is asked about its ceiling: those calls are none of the model's."""
        self.find_norms()
        if not self.sites and (sites or not self.norms):
            wanted = "residual site" if sites else "LayerNorm or RMSNorm"
            raise ConfigError(f"no {wanted} found in {type(model).__name__}" + (f": {BY_HAND}" if sites else ""))

    def find_norms(self) -> None:
        """Norms of ends and sites first, then all others."""
        homes = {place.home: place for place in self.sites if place.residual is not None}
        for stack, base in () if homes else self.stacks:
            depth = len(blocks_of(self.model, stack, base))
            for end, role, layer in ((stack.entry, "entry", 0), (stack.exit, "exit", depth - 1)):
                if end is not None:
                    self.add_norm(join_path(base, end), stack.name, role, layer, None)
            for layer in range(depth):
                for sublayer in stack.sublayers:
                    for path, role in sublayer.norms.items():
                        name = join_path(base, stack.blocks, str(layer), path)
                        self.add_norm(name, stack.name, role, layer, sublayer.kind)
        known = {norm.module for norm in self.norms.values()}
        for name, module in norms_of(self.model).items():
            path, _, role = name.partition(".own.")
            home = self.model.get_submodule(path)
            place = homes.get(home)
            if place is not None:
                self.add_norm(name, place.stack, role, place.site.layer, place.site.kind)
            elif homes:
                stacks = [stack.name for stack, _ in self.stacks]
                stack_name = next((each for each in stacks if each in path.split(".")), stacks[-1])
                self.add_norm(name, stack_name, end_kind(home) or "other", None, None)
            elif module not in known:
                self.norms[name] = WatchedNorm(name, module, "", "other", None, None)

    def add_norm(self, name: str, stack: str, role: str, layer: int | None, kind: str | None) -> None:
        module = module_at(self.model, name, "the model")
        if not isinstance(module, nn.Identity):  # ModernBERT's first block reads what the norm at the entry gave
            self.norms.setdefault(name, WatchedNorm(name, module, stack, role, layer, kind))

    @contextmanager
    def watching(self, **masks: Tensor | None) -> Iterator[None]:
        """Measures every forward pass inside. masks by stack (decoder=, encoder=): (batch, tokens), 0 is padding."""
        several = [stack.name for stack, _ in self.stacks] if len(self.stacks) > 1 else []
        self.masks, self.asking = {**dict.fromkeys(several), **masks}, False
        norms = {name: norm.module for name, norm in self.norms.items()}
        attention = WatchAttention(lambda *found: self.attended.append(found), self.first_tokens)
        with ExitStack() as hooks:
            for home, stack in {place.home: place.stack for place in self.sites}.items():
                hooks.callback(home.register_forward_pre_hook(partial(self.enter, stack)).remove)
            hooks.enter_context(watch(self.model, self.see_site, self.sites))
            hooks.enter_context(watch_calls(norms, self.see_norm))
            if self.sites:  # they take what attention has found
                hooks.enter_context(attention)
            yield

    def enter(self, stack: str, *_: Any) -> None:
        self.running = stack

    def first_tokens(self, batch: int, keys: int) -> Tensor:
        """Where the sequences begin of the stream whose attention runs."""
        return first_places(mask_of(self.masks, self.running), batch, keys)

    def see_site(self, place: ModelSite, x: Tensor, u: Tensor | None, after: Tensor) -> None:
        record, given = self.records[place], mask_of(self.masks, place.stack)
        self.asking = True
        clamped = clamped_tokens(place, x, u)
        self.asking = False
        x, after = place.seen(x), place.seen(after)
        mask = fit_mask(given, x)
        counts = self.sites[place].update(x, after, u, mask)
        if clamped is not None and counts:
            chosen = clamped.flatten() if mask is None else clamped[mask]
            record.clamped, record.tokens = record.clamped + chosen.sum().item(), record.tokens + chosen.numel()
        if counts and self.last[place.stack] is place:
            record.end.update(flat(after, mask))
        for mass, seen, peak in self.attended if place.site.kind in ("attn", "parallel") else ():
            counted = counted_queries(given, first_places(given, *seen.shape), seen)
            record.attention.add(mass, seen, peak, counted, given)
        self.attended.clear()

    def see_norm(self, name: str, x: Tensor, y: Tensor) -> None:
        if self.asking:
            return
        norm = self.norms[name]
        norm.see(x, y, mask_of(self.masks, norm.stack))

    def rows(self) -> list[dict[str, Any]]:
        """One row per site that ran, in the columns of trace.jsonl."""
        return [
            {**place.about, **measure.row(), **self.records[place].row()}
            for place, measure in self.sites.items()
            if measure.moments is not None
        ]

    def layer_rows(self) -> list[dict[str, Any]]:
        """One row per two depths of a stack, in the columns of layers.jsonl: in front of each block, behind the last.

        `first` and `second` are the numbers of blocks that the stream has passed.
        """
        found = []
        for stack, last in self.last.items():
            fronts: dict[float, Tensor] = {}
            for place, measure in self.sites.items():
                if place.stack == stack and measure.sample.kept:
                    fronts.setdefault(place.site.layer, measure.sample.kept[0])
            states = [*fronts.values(), *self.records[last].end.kept[:1]]
            states = [state.to(states[0].device) for state in states]  # a model may lie on several
            found += [{"stack": stack, **row} for row in likeness(states)] if len(states) > 1 else []
        return found

    def norm_rows(self) -> list[dict[str, Any]]:
        """One row per norm that ran, in the columns of norms.jsonl."""
        return [norm.row() for norm in self.norms.values() if norm.measure is not None]
