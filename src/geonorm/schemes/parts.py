"""What a residual owns of its scheme, made from `parts`, and how its read and write are called."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..norms import NormSpec, Scalars
from .base import Number, Scheme, Site, require


class Named:
    """The parts of a site by name: p.stream is called, p.scale is a tensor."""


OWNED = "_owned_by_scheme"


def belongs_to_scheme(module: nn.Module) -> bool:
    """Whether a module, none of ours, lies in the Parts of a scheme, which restore it: whoever draws weights leaves it
    alone."""
    return hasattr(module, OWNED)


def mark_foreign(module: nn.Module) -> None:
    """Notes of a module, and of those inside it, that they are none of ours."""
    if not isinstance(module, Scalars):
        setattr(module, OWNED, True)
        for child in module.children():
            mark_foreign(child)


def gather(parts: Mapping[str, nn.Module | nn.Parameter]) -> dict[str, Tensor]:
    """All parameters and buffers of parts, by their names in Parts."""
    found: dict[str, Tensor] = {}
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            found |= {f"{name}.{inner}": t for inner, t in (*part.named_parameters(), *part.named_buffers())}
        else:
            found[name] = part
    return found


class Parts(Scalars, nn.ModuleDict):
    """Norms, learned numbers and other modules of a scheme at a site. Called, it gives them by name: as a call, so that
    whoever moves weights about (offloading, sharding) sees them asked for."""

    def __init__(self, scheme: Scheme, site: Site, norm: NormSpec) -> None:
        super().__init__()
        self.made_from = scheme, site, norm
        for name, part in self.make().items():
            require(not hasattr(self, name), f"a part of {type(scheme).__name__} cannot be called {name!r}")
            setattr(self, name, part)
            if isinstance(part, nn.Module):
                mark_foreign(part)

    def make(self) -> dict[str, nn.Module | nn.Parameter]:
        """The parts at their initial values."""
        scheme, site, norm = self.made_from
        found = scheme.end_parts(site, norm) if site.kind in ("entry", "exit") else parts_of(scheme, site, norm)
        return {name: make_part(f"{type(scheme).__name__}: {name}", part, norm) for name, part in found.items()}

    def forward(self) -> Named:
        p = Named()
        for name, module in self._modules.items():
            setattr(p, name, module)
        for name, parameter in self._parameters.items():
            setattr(p, name, parameter)
        return p

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gives learned numbers the values that the scheme starts them with, and modules that are none of ours those
        that it made them with, whatever their class would draw; ours restore themselves."""
        held = dict(self.named_parameters(recurse=False))
        for path, module in self.named_modules():
            if belongs_to_scheme(module):
                own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
                held |= {f"{path}.{name}": tensor for name, tensor in own}
        if held:
            with torch.device("cpu"):
                start = gather(self.make())
            for name, tensor in held.items():
                tensor.copy_(start[name])


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


def reset_parts(own: nn.Module) -> None:
    """Gives every norm and scalar of a site its initial value, in the dtype it has."""
    for module in own.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None and not belongs_to_scheme(module):
            reset()


def advance(model: nn.Module, steps: int = 1) -> None:
    """One optimizer step more (or `steps`), for schemes that change over training (`prores`): to be called after each.
    What it counts is saved with the model."""
    for module in model.modules():
        if isinstance(module, Progress):
            module.done += steps


class Progress(nn.Module):
    """Optimizer steps so far, as a tensor: code that is compiled once sees it grow."""

    done: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("done", torch.tensor(0))

    def reset_parameters(self) -> None:
        self.done.zero_()


def read_at(scheme: Scheme, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Any]:
    """What the sub-layer reads, and what the scheme carries from this look at x to its write: None for most."""
    return scheme.read(x, p, site) if scheme.carries else (scheme.read(x, p, site), None)


def write_at(scheme: Scheme, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, *, carry: Any = None) -> Tensor:
    """The stream after the sub-layer proposed u, in the dtype of x: u is cast to it before, the result after.
    ConfigError if a scheme's `write` returns another shape."""
    u = u.to(x.dtype)
    out = scheme.write(x, u, p, site, h, carry) if scheme.carries else scheme.write(x, u, p, site, h)  # type: ignore[call-arg]
    if out.shape != x.shape:
        raise ConfigError(f"{scheme}: write returned {tuple(out.shape)} for a stream of {tuple(x.shape)}")
    return out.to(x.dtype)
