"""A sub-layer of a stock block as a `Residual` around the same branch: its norms are ours, with the stock gains."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..norms import Norm, NormSpec
from ..residual import Residual
from ..schemes import Scheme, Site
from .anatomy import Stack, Sublayer
from .norms import weights_in_memory

CARRIED = "_geonorm_carried"
"""How a parameter is marked that took over the gains of a stock norm."""


@torch.no_grad()
def copy_gains(norm: nn.Module, target: nn.Module, offset: float) -> None:
    """Gains and biases of a stock norm to one of ours (or anything with such parameters) that has them; frozen ones
    stay so. offset: what is added to a stored gain."""
    with weights_in_memory(norm):
        for name, shift in (("weight", offset), ("bias", 0.0)):
            source, place = getattr(norm, name, None), getattr(target, name, None)
            if isinstance(source, Tensor) and isinstance(place, nn.Parameter):
                place.copy_(source.to(place.device) + shift)
                setattr(place, CARRIED, True)
                place.requires_grad_(source.requires_grad)


def norm_spec(stack: Stack, dim: int, stock: Iterable[nn.Module]) -> NormSpec:
    """What N is at a site, after the stock norms there."""
    norm = next((norm for norm in stock if not isinstance(norm, nn.Identity)), None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    gains = norm is None or getattr(norm, "weight", None) is not None
    bias = getattr(norm, "bias", None) is not None
    return NormSpec(stack.norm, dim, gains, stack.eps if eps is None else float(eps), bias)


def norm_in(parts: nn.Module, role: str) -> Norm | None:
    """The norm of a scheme's parameters that plays a part: input, output, stream, norm (of an end). The identity in the
    place of one is none."""
    part = parts[role] if isinstance(parts, nn.ModuleDict) and role in parts else None
    if not isinstance(part, nn.Module):
        return None
    return next((m for m in part.modules() if isinstance(m, Norm)), None)


def has_several_norms(sublayer: Sublayer) -> bool:
    """True where branches side by side read through norms of their own (GPT-NeoX)."""
    return len({branch.norm for branch in sublayer.branches}) > 1


def rebuild(
    block: nn.Module, sublayer: Sublayer, stack: Stack, scheme: Scheme, site: Site, dim: int, branch: nn.Module
) -> Residual:
    """The residual site under a scheme around a branch; gains of stock norms are carried to the norms that play their
    part. Of several norms before branches side by side none is: one N cannot have the gains of each."""
    norms = {path: block.get_submodule(path) for path in sublayer.norms}
    spec = norm_spec(stack, dim, norms.values())
    residual = Residual(branch, scheme, site, dim, spec.kind, spec.gains, spec.eps, spec.bias)
    for path, role in sublayer.norms.items():
        if isinstance(norms[path], nn.Identity) and role in residual.own:
            residual.own[role] = nn.Identity()  # ModernBERT's first block reads what the entry has normalised
        target = norm_in(residual.own, role)
        if target is not None and not (role == "input" and has_several_norms(sublayer)):
            copy_gains(norms[path], target, stack.gain_offset)
    return residual
