"""Hooks that see every residual site and every norm of a model while it runs, right for every placement.

x of a site is what its first module is handed; x' is the x of the next site, and after the last one what the block
returns. Whatever stands between (norms on the update or on the stream, dropout, scales) is inside, and a module's
output is never taken for what is added. Nothing is kept but the stream of the site that is running.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..sites.anatomy import BY_HAND, Stack, Sublayer, anatomy, join, rooted
from .accumulate import NormMeasure, SiteMeasure
from .norms import NormFacts, channels_first, examine, norms_of

Masks = Mapping[str, Tensor | None]


def stream_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The tensor that a module was handed as its first argument, or as hidden_states."""
    value = args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()), None))
    if not isinstance(value, Tensor):
        raise ConfigError(f"a module that should read the stream was handed {type(value).__name__}; {BY_HAND}")
    return value


def first(value: Any) -> Tensor:
    found: Tensor = value[0] if isinstance(value, tuple) else value
    return found


class Site:
    """Where a row of the trace comes from, with its measure."""

    def __init__(self, stack: str, scheme: str, layer: int, kind: str, depth: int) -> None:
        self.about = {"stack": stack, "scheme": scheme, "layer": layer, "kind": kind, "t": layer + 1, "depth": depth}
        self.stack, self.measure = stack, SiteMeasure()

    def row(self) -> dict[str, Any]:
        return {**self.about, **self.measure.row()}


class Norm:
    """A norm with its measure: what it is, is asked on its first input."""

    def __init__(
        self, name: str, module: nn.Module, stack: str, role: str, layer: int | None, kind: str | None
    ) -> None:
        self.module, self.stack = module, stack
        self.about = {"norm": name, "stack": stack, "role": role, "layer": layer, "kind": kind}
        self.measure: NormMeasure | None = None
        self.facts: NormFacts | None = None

    def see(self, x: Tensor, y: Tensor, mask: Tensor | None) -> None:
        if channels_first(self.module):
            x, y = x.movedim(1, -1), y.movedim(1, -1)
        if self.facts is None or self.measure is None:
            self.facts = examine(self.module, x)
            self.measure = NormMeasure(self.facts.centred)
        self.measure.update(x, y, self.facts.gain, self.facts.bias, fitted(mask, x, str(self.about["norm"])))

    def row(self) -> dict[str, Any]:
        if self.facts is None or self.measure is None:
            return {**self.about, "norm_kind": None, "tokens": 0}
        return {**self.about, "norm_kind": self.facts.kind, **self.measure.row()}


def fitted(mask: Tensor | None, x: Tensor, name: str) -> Tensor | None:
    """The mask in the shape of the tokens of x: (batch, tokens), or flat where x is."""
    if mask is None or bool(mask.all()):
        return None
    mask = mask.to(x.device).bool()
    if mask.shape == x.shape[: mask.dim()]:
        return mask
    if x.dim() == 2 and x.shape[0] == mask.numel():
        return mask.flatten()
    raise ConfigError(
        f"padding of shape {tuple(mask.shape)} does not fit {name}, which sees {tuple(x.shape)}; probe without padding"
    )


def mask_of(masks: Masks, stack: str) -> Tensor | None:
    """The mask of a stack; that of a model with one stream may be given under any name."""
    return masks.get(stack) if stack in masks or len(masks) != 1 else next(iter(masks.values()))


class Capture:
    """Sites and norms of a model, found once; `watching` measures what runs inside it.

    stacks: for a model that is in no table, `anatomy.Stack.by_hand(...)`; our own models (anything with `residuals()`)
    and those of the table need none. sites=False: norms alone, on any nn.Module. Raises ConfigError where no residual
    site, or no norm, is found.
    """

    def __init__(self, model: nn.Module, stacks: Sequence[Stack] | None = None, *, sites: bool = True) -> None:
        self.model = model
        self.sites: dict[tuple[str, int, int], Site] = {}
        self.norms: dict[str, Norm] = {}
        self.masks: Masks = {}
        self.stacks: list[tuple[str, Stack]] = []
        self.own = hasattr(model, "residuals") and not stacks
        if sites and self.own:
            self.find_own()
        elif sites:
            self.find(anatomy(getattr(model, "config", None)) if stacks is None else stacks)
        known = {id(norm.module) for norm in self.norms.values()}
        for name, module in norms_of(model).items():
            if id(module) not in known:
                self.norms[name] = Norm(name, module, "", "other", None, None)
        if not self.sites and (sites or not self.norms):
            wanted = "residual site" if sites else "LayerNorm or RMSNorm"
            raise ConfigError(f"no {wanted} found in {type(model).__name__}" + (f": {BY_HAND}" if sites else ""))

    def find(self, stacks: Sequence[Stack]) -> None:
        """Sites and norms of the stacks that this model has."""
        for stack, base in rooted(self.model, stacks):
            self.stacks.append((base, stack))
            blocks = self.blocks(base, stack)
            ends = ((stack.entry, "entry", 0), (stack.exit, "exit", len(blocks) - 1))
            for path, role, layer in ends:
                if path is not None:
                    self.add_norm(join(base, path), stack.name, role, layer, None)
            for layer, block in enumerate(blocks):
                for place, sublayer in enumerate(stack.sublayers):
                    check(block, sublayer, join(base, stack.blocks, str(layer)))
                    found = Site(stack.name, sublayer.placement, layer, sublayer.kind, len(blocks))
                    self.sites[stack.name, layer, place] = found
                    for path, role in sublayer.norms.items():
                        self.add_norm(
                            join(base, stack.blocks, str(layer), path), stack.name, role, layer, sublayer.kind
                        )

    def blocks(self, base: str, stack: Stack) -> list[nn.Module]:
        path = join(base, stack.blocks)
        found = list(self.model.get_submodule(path).children())
        if not found:
            raise ConfigError(f"{path} holds no blocks")
        return found

    def find_own(self) -> None:
        """Sites of our own model: every Residual says where it stands."""
        for place, (site, residual) in enumerate(self.model.residuals()):  # type: ignore[operator]
            found = Site("decoder", str(residual.scheme), int(site.layer), site.kind, site.depth)
            self.sites["decoder", int(site.layer), place] = found
        for name in norms_of(self.model):
            path, _, role = name.partition(".own.")
            home = self.model.get_submodule(path) if role else None
            layer = getattr(home, "index", None)  # a Residual's; the ends of the stream have none
            if layer is not None:
                self.add_norm(name, "decoder", role, layer, str(getattr(home, "kind", "")))
            else:
                self.add_norm(name, "decoder", path if role else "other", None, None)

    def add_norm(self, name: str, stack: str, role: str, layer: int | None, kind: str | None) -> None:
        try:
            module = self.model.get_submodule(name)
        except AttributeError:
            raise ConfigError(f"{type(self.model).__name__} has no module {name}; {BY_HAND}") from None
        if not isinstance(module, nn.Identity):  # ModernBERT's first block reads what the norm at the entry gave
            self.norms.setdefault(name, Norm(name, module, stack, role, layer, kind))

    @contextmanager
    def watching(self, **masks: Tensor | None) -> Iterator[None]:
        """Measures every forward pass inside. masks by stack (decoder=, encoder=): (batch, tokens), 0 is padding."""
        self.masks = masks
        with ExitStack() as hooks:
            self.watch_own(hooks) if self.own else self.watch(hooks)
            for norm in self.norms.values():
                hooks.enter_context(removing(norm.module.register_forward_hook(self.norm_hook(norm), with_kwargs=True)))
            compiled = any(getattr(m, "_compiled_call_impl", None) is not None for m in self.model.modules())
            if compiled:  # compiled modules run no new hooks
                hooks.enter_context(torch.compiler.set_stance("force_eager"))
            yield

    def mask(self, stack: str) -> Tensor | None:
        return mask_of(self.masks, stack)

    def norm_hook(self, norm: Norm) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, out: Tensor) -> None:
            norm.see(stream_of(args, kwargs), out, self.mask(norm.stack))

        return hook

    def watch(self, hooks: ExitStack) -> None:
        for base, stack in self.stacks:
            for layer, block in enumerate(self.blocks(base, stack)):
                self.watch_block(hooks, stack, layer, block)

    def watch_block(self, hooks: ExitStack, stack: Stack, layer: int, block: nn.Module) -> None:
        running = Running(self, stack.name)
        hooks.enter_context(removing(block.register_forward_pre_hook(running.enter, with_kwargs=True)))
        for place, sublayer in enumerate(stack.sublayers):
            site = self.sites[stack.name, layer, place]
            reader = block.get_submodule(sublayer.branches[0].reader)
            hooks.enter_context(removing(reader.register_forward_pre_hook(running.open(site), with_kwargs=True)))
            for branch in sublayer.branches:
                last = block.get_submodule(branch.modules[-1])
                hooks.enter_context(removing(last.register_forward_hook(running.update(site))))
        hooks.enter_context(removing(block.register_forward_hook(running.leave)))

    def watch_own(self, hooks: ExitStack) -> None:
        for site, (_, residual) in zip(self.sites.values(), self.model.residuals(), strict=True):  # type: ignore[operator]
            updates: list[Tensor] = []

            def branch_hook(_: nn.Module, __: Any, out: Any, updates: list[Tensor] = updates) -> None:
                updates[:] = [first(out)]

            def site_hook(
                module: Any, args: Any, kwargs: Any, out: Any, site: Site = site, updates: list[Tensor] = updates
            ) -> None:
                seen = module.scheme.seen
                x, after = seen(stream_of(args, kwargs)), seen(first(out))
                site.measure.update(x, after, updates.pop(), fitted(self.mask(site.stack), x, "the stream"))

            hooks.enter_context(removing(residual.branch.register_forward_hook(branch_hook)))
            hooks.enter_context(removing(residual.register_forward_hook(site_hook, with_kwargs=True)))

    def rows(self) -> list[dict[str, Any]]:
        """One row per site that ran, in the columns of trace.jsonl."""
        return [site.row() for site in self.sites.values() if site.measure.moments is not None]

    def norm_rows(self) -> list[dict[str, Any]]:
        """One row per norm that ran, in the columns of norms.jsonl."""
        return [norm.row() for norm in self.norms.values() if norm.measure is not None]


class Running:
    """The site of a block that is running: opened by its reader, closed by the next reader or the end of the block."""

    def __init__(self, capture: Capture, stack: str) -> None:
        self.capture, self.stack = capture, stack
        self.shape: torch.Size | None = None
        self.site: Site | None = None
        self.x: Tensor | None = None
        self.u: Tensor | None = None

    def enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.shape, self.site = stream_of(args, kwargs).shape, None

    def open(self, site: Site) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            x = self.shaped(stream_of(args, kwargs))
            self.close(x)
            self.site, self.x, self.u = site, x, None

        return hook

    def update(self, site: Site) -> Any:
        def hook(_: nn.Module, __: Any, out: Any) -> None:
            if self.site is site:
                u = self.shaped(first(out))
                self.u = u if self.u is None else self.u + u

        return hook

    def leave(self, _: nn.Module, __: Any, out: Any) -> None:
        self.close(first(out))
        self.site = self.x = self.u = None

    def close(self, after: Tensor) -> None:
        if self.site is not None and self.x is not None:
            mask = fitted(self.capture.mask(self.stack), self.x, "the stream")
            self.site.measure.update(self.x, after, self.u, mask)

    def shaped(self, x: Tensor) -> Tensor:
        """In the shape that the block was handed: OPT's MLP sees (batch x tokens, dim)."""
        return x if self.shape is None or x.shape == self.shape else x.reshape(self.shape)


def check(block: nn.Module, sublayer: Sublayer, place: str) -> None:
    """ConfigError if a module of the sub-layer is not in the block."""
    for branch in sublayer.branches:
        for path in (branch.reader, *branch.modules):
            try:
                block.get_submodule(path)
            except AttributeError:
                raise ConfigError(f"no module {path} in {place} ({type(block).__name__}); {BY_HAND}") from None


@contextmanager
def removing(handle: Any) -> Iterator[None]:
    """Removes a hook at the end."""
    try:
        yield
    finally:
        handle.remove()
