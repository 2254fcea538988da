"""Rebuilds a sub-layer of a stock block as a `Residual` around the same branch: its norms are ours, with the stock
gains."""

from collections.abc import Callable, Iterable
from operator import attrgetter

import torch
from torch import Tensor, nn

from ..norms import Norm, NormSpec
from ..residual import Residual
from ..schemes import Scheme, Site, parse
from .anatomy import Stack, Sublayer
from .norms import weights_in_memory

CARRIED = "_geonorm_carried"
"""Attribute that marks a parameter whose values were copied from a stock block."""


def transpose_mixing(rows: Tensor) -> Tensor:
    """Rows of n reading weights, n writing weights and an n x n mixing matrix, with that matrix transposed."""
    n = int((len(rows) + 1) ** 0.5) - 1
    mixing = rows[2 * n :].unflatten(0, (n, n)).transpose(0, 1).flatten(0, 1)
    return torch.cat((rows[: 2 * n], mixing))


ARRANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "same": lambda rows: rows,
    "plus 1": lambda rows: rows + 1,
    "transposed": transpose_mixing,
}
"""By name, the ways in which a tensor of a stock block becomes one of ours."""


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
    """The NormSpec of a site that equals the stock norms there."""
    norm = next((norm for norm in stock if not isinstance(norm, nn.Identity)), None)
    gains = norm is None or getattr(norm, "weight", None) is not None
    bias = getattr(norm, "bias", None) is not None
    return NormSpec(stack.norm, dim, gains, eps_of(norm, stack), bias)


def eps_of(norm: nn.Module | None, stack: Stack) -> float:
    """What a stock norm adds to the mean square."""
    return float(getattr(norm, "variance_epsilon", getattr(norm, "eps", stack.eps)))


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
    """The residual connection under a scheme around a branch; gains of stock norms are carried to the norms that play
    their part. Of several norms before branches side by side none is: one N cannot have the gains of each."""
    norms = {path: block.get_submodule(path) for path in sublayer.norms}
    spec = norm_spec(stack, dim, norms.values())
    residual = Residual(branch, scheme, site, dim, spec.kind, spec.gains, spec.eps, spec.bias)
    for path, role in sublayer.norms.items():
        if isinstance(norms[path], nn.Identity) and role in residual.own:
            residual.own[role] = nn.Identity()  # ModernBERT's first block reads what the entry has normalised
        target = norm_in(residual.own, role)
        if target is not None and not (role == "input" and has_several_norms(sublayer)):
            copy_gains(norms[path], target, stack.gain_offset)
            target.eps = eps_of(norms[path], stack)
    mine = dict(residual.own.named_parameters())
    for name, (path, how) in sublayer.carried.items():
        if name in mine and type(parse(stack.scheme or scheme)) is type(scheme):
            carry(mine[name], attrgetter(path)(block), how)
    return residual


@torch.no_grad()
def carry(mine: nn.Parameter, their: Tensor, how: str) -> None:
    """Copies a tensor of a stock block to a parameter of a scheme; what theirs lacks at the end is 0."""
    values = ARRANGED[how](their).flatten()
    mine.zero_().view(-1)[: len(values)] = values.to(mine)
    setattr(mine, CARRIED, True)
    mine.requires_grad_(their.requires_grad)
