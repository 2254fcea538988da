"""The textbook under autograd: the truth that every fast path is compared with, and what a fast path differentiates
when its own backward pass is to be differentiated."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import sphere
from ..norms import is_transformed, upcast
from .angle import AngleMap


def reference(x: Tensor, u: Tensor, angles: AngleMap, h: float | Tensor = 1.0) -> Tensor:
    """x' in plain differentiable PyTorch, with derivatives of every order."""
    wide, update = upcast(x), upcast(u)
    wide = wide.to(torch.promote_types(wide.dtype, update.dtype))
    _, v = sphere.frame(wide, update)
    squared = sphere.dot(wide, wide)
    zero = sphere.vanishes(squared)
    ratio2 = sphere.safe_divide(sphere.dot(v, v), squared, zero)
    # sin(turn) |x| v / |v| = turn sinc(turn) v / ratio, and angle / ratio stays finite where v vanishes
    pull = h * torch.where(zero, 0.0, angles.quotient(ratio2))
    cos, sinc = sphere.cos_and_sinc(pull * pull * ratio2)
    return (cos * wide + pull * sinc * v).to(x.dtype)


def differentiated(*grads: Tensor | None) -> bool:
    """True if the backward pass of these gradients is itself differentiated, transformed or vectorised: then it must be
    that of the textbook, because what a fast path has kept are numbers without a history."""
    if torch.compiler.is_compiling():
        return False
    batched = any(g is not None and torch._C._functorch.is_legacy_batchedtensor(g) for g in grads)
    return torch.is_grad_enabled() or batched or is_transformed()


def gradients_of(
    f: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Any],
    wanted: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of f's outputs by those inputs that want one, with a graph of their own in grad mode."""
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        # views, so that what made one input of another is left to whoever called backward
        leaves = [t.view_as(t) if isinstance(t, Tensor) else t for t in inputs]
        pairs = [(out, grad) for out, grad in zip(f(*leaves), grads, strict=True) if grad is not None]
        variables = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
        grads_of_variables = iter(
            torch.autograd.grad(
                [out for out, _ in pairs], variables, [g for _, g in pairs], create_graph=keep, allow_unused=True
            )
            if pairs and variables
            else ()
        )
    return [next(grads_of_variables, None) if want else None for want in wanted]
