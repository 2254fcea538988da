"""What a residual owns of its scheme, made from `parts`, and how its read and write are called."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor, nn

from ..errors import ConfigError, require
from ..norms import NormSpec, TaperNorm, copy_whole
from .base import Number, Scheme, Site


class Named:
    """The parts of a site by name: p.stream is called, p.scale is a tensor. No types.SimpleNamespace: torch.compile
    cannot trace that."""


T = TypeVar("T")
MADE = "_made_by_scheme"


def belongs_to_scheme(module: nn.Module) -> bool:
    """True if a scheme made a module, a part or a slot: what draws weights leaves it alone, and calls `restore`.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "pre", geonorm.Site(0, "mlp", 4), dim=8)
    >>> geonorm.schemes.belongs_to_scheme(layer.own.input), geonorm.schemes.belongs_to_scheme(layer.branch)
    (True, False)
    """
    return hasattr(module, MADE)


def claim(module: nn.Module, make: Callable[[], Any], prefix: str = "") -> None:
    """Notes of a module and of those inside it that a scheme made them: make() makes them again, at these paths."""
    for path, inside in module.named_modules(prefix=prefix):
        setattr(inside, MADE, (make, path))


def restore(module: nn.Module, alone: bool = False) -> None:
    """Gives a slot the values that the scheme made it with; a part, which its Parts restore, and what lies inside
    another only with `alone`.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "pre", geonorm.Site(0, "mlp", 4), dim=8)
    >>> _ = torch.nn.init.zeros_(layer.own.input.weight)
    >>> geonorm.schemes.restore(layer.own.input, alone=True)
    >>> layer.own.input.weight.sum().item()
    8.0
    """
    make, path = getattr(module, MADE)
    if alone or not path:
        take_values(module, lambda: make().get_submodule(path))


@torch.no_grad()
def take_values(module: nn.Module, make: Callable[[], nn.Module]) -> None:
    """Copies into a module all parameters and buffers of the one that make() returns, wherever it lies; numbers of 64
    bits are made as such."""
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    usual, wide = torch.get_default_dtype(), any(tensor.dtype == torch.float64 for tensor in tensors.values())
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    try:
        with torch.device("cpu"):
            fresh = make()
    finally:
        torch.set_default_dtype(usual)
    start = dict((*fresh.named_parameters(), *fresh.named_buffers()))
    for name, tensor in tensors.items():
        copy_whole(tensor, start[name])


def draw_apart(make: Callable[[], T], place: str) -> T:
    """What make() returns; what it draws follows from the seed and the place alone, and the global generator, from
    which models draw their weights, stays where it is: one seed gives every scheme the same."""
    generator = torch.default_generator
    state, seed = generator.get_state(), generator.initial_seed()
    try:
        generator.manual_seed((seed + crc32(place.encode())) % 2**63)
        return make()
    finally:
        generator.set_state(state)


def slot_at(scheme: Scheme, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
    """What a scheme puts inside a branch or the head (`Scheme.slot`): drawn anew, it begins as the scheme made it.

    >>> site = geonorm.Site(0, "attn", 4)
    >>> geonorm.schemes.slot_at(geonorm.parse("hybrid"), "q", (4, 16), 64, site)
    RMSNorm(...)
    """
    place = f"{site.kind} {int(site.layer)} slot {name}"
    make = partial(draw_apart, partial(scheme.slot, name, shape, dim, site), place)
    slot = make()
    if slot is not None:
        claim(slot, make)
    return slot


def slots_at(scheme: Scheme, shapes: Mapping[str, tuple[int, ...]], dim: int, site: Site) -> nn.ModuleDict:
    """What it puts at several places of a branch, by their names; shapes: of what is handed to it there.

    >>> geonorm.schemes.slots_at(geonorm.parse("hybrid"), {"q": (4, 16), "up": (96,)}, 64, geonorm.Site(0, "attn", 4))
    ModuleDict(
      (q): RMSNorm(...)
    )
    """
    slots = {name: slot_at(scheme, name, shape, dim, site) for name, shape in shapes.items()}
    return nn.ModuleDict({name: slot for name, slot in slots.items() if slot is not None})


class Parts(nn.ModuleDict):
    """Norms, learned numbers and other modules of a scheme at a site. Called, it gives them by name: as a call, so that
    whoever moves weights about (offloading, sharding) sees them asked for.

    >>> from geonorm.norms import NormSpec
    >>> parts = geonorm.schemes.Parts(geonorm.parse("peri"), geonorm.Site(0, "mlp", 4), NormSpec("rms", 8))
    >>> sorted(vars(parts()))
    ['input', 'output']
    """

    def __init__(self, scheme: Scheme, site: Site, norm: NormSpec) -> None:
        super().__init__()
        self.made_from = scheme, site, norm
        for name, part in self.make().items():
            require(not hasattr(self, name), f"a part of {type(scheme).__name__} cannot be called {name!r}")
            setattr(self, name, part)
            if isinstance(part, nn.Module):
                claim(part, partial(Parts, scheme, site, norm), name)

    def make(self) -> dict[str, nn.Module | nn.Parameter]:
        """The parts at their initial values."""
        scheme, site, norm = self.made_from
        ask = scheme.end_parts if site.kind in ("entry", "exit") else partial(parts_of, scheme)
        parts = draw_apart(partial(ask, site, norm), f"{site.kind} {int(site.layer)}")
        return {name: make_part(f"{type(scheme).__name__}: {name}", part, norm) for name, part in parts.items()}

    def forward(self) -> Named:
        p = Named()
        for name, part in (*self._modules.items(), *self._parameters.items()):
            setattr(p, name, part)
        return p

    def reset_parameters(self) -> None:
        """Gives every part the values that the scheme made it with, whatever its class would draw."""
        take_values(self, partial(Parts, *self.made_from))


def parts_of(scheme: Scheme, site: Site, norm: NormSpec) -> Mapping[str, Any]:
    """What a scheme says it owns inside a block, a method or not."""
    return scheme.parts(site, norm) if callable(scheme.parts) else deepcopy(scheme.parts)


def make_part(name: str, part: Any, norm: NormSpec) -> nn.Module | nn.Parameter:
    """A module or parameter from what stands for it in `parts`."""
    match part:
        case nn.Module():
            return part
        case nn.Parameter():
            return nn.Parameter(part.detach().reshape(1), part.requires_grad) if part.dim() == 0 else part
        case "norm":
            return norm()
        case float() | int():
            return nn.Parameter(torch.tensor([float(part)]))
        case float() | int(), "dim":
            return nn.Parameter(torch.full((norm.dim,), float(part[0])))
    raise ConfigError(
        f'{name} must be "norm", a number, (number, "dim"), an nn.Parameter or a module, got {type(part).__name__}'
    )


def advance(model: nn.Module, steps: int = 1) -> None:
    """One optimizer step more (or `steps`), for what changes over training (`prores`, the norm `taper`): to be called
    after each, on all ranks. What it counts is saved with the model. It is a whole number: a moving average of weights
    copies it, as `AveragedModel` does unless it averages buffers, too.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "prores", geonorm.Site(0, "mlp", 4), dim=8)
    >>> geonorm.schemes.advance(layer)
    >>> layer.own.progress.done
    tensor(1)
    """
    for module in model.modules():
        if isinstance(module, Progress):
            module.done += steps
        elif isinstance(module, TaperNorm):
            module.advance(steps)


class Progress(nn.Module):
    """Optimizer steps so far, as a tensor: code that is compiled once sees it grow.

    >>> progress = geonorm.schemes.Progress()
    >>> geonorm.schemes.advance(progress, 3)
    >>> progress.done.item()
    3
    """

    done: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("done", torch.tensor(0))


def read_at(scheme: Scheme, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
    """What the sub-layer reads, and what the scheme carries from this look at x to its write: None for most.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "pre", geonorm.Site(0, "mlp", 4), dim=8)
    >>> y, carry = geonorm.schemes.read_at(layer.scheme, torch.ones(8), layer.own(), layer.place())
    >>> carry is None
    True
    """
    return scheme.read(x, p, site) if scheme.carries else (scheme.read(x, p, site), None)


def write_at(scheme: Scheme, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, *, carry: Any = None) -> Tensor:
    """The stream after the sub-layer proposed u, in the dtype of x: u is cast to it before, the result after.
    ConfigError if a scheme's `write` returns another shape.

    >>> scheme, site = geonorm.parse("pre(input=raw)"), geonorm.Site(0, "mlp", 4)
    >>> geonorm.schemes.write_at(scheme, torch.ones(2), torch.ones(2), None, site, h=0.5)
    tensor([1.5000, 1.5000])
    """
    u = u.to(x.dtype)
    out = scheme.write(x, u, p, site, h, carry) if scheme.carries else scheme.write(x, u, p, site, h)  # type: ignore[call-arg]
    if out.shape != x.shape:
        raise ConfigError(f"{scheme}: write returned {tuple(out.shape)} for a stream of {tuple(x.shape)}")
    return out.to(x.dtype)
