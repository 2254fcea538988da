"""Weighted sums of the stream and an update, as data: the plain reference, and the way to the fused kernels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..norms import upcast
from . import fused
from .angle import AngleMap
from .available import choose_backend, kernels_add
from .launch import DTYPES


@dataclass(frozen=True)
class WeightedSum:
    """x' = keep x + scale N(u) + shift, the write of most schemes that add. keep, scale: numbers, tensors of one
    number, or vectors (dim,); shift: a vector or None; norm: N, a module from (..., dim) to (..., dim), or None.

    >>> x, u = torch.ones(2), torch.tensor([3.0, 4.0])
    >>> geonorm.ops.WeightedSum(keep=0.5, scale=2.0)(x, u)
    tensor([6.5000, 8.5000])
    """

    keep: float | Tensor = 1.0
    scale: float | Tensor = 1.0
    shift: Tensor | None = None
    norm: nn.Module | None = None

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """In plain differentiable PyTorch: in the dtype of x where it is one addition, x + scale N(u) with a number for
        scale, else in fp32 (fp64 for fp64). A factor near 1, rounded to bf16 in each sub-layer, would add up."""
        if isinstance(self.scale, Tensor) or isinstance(self.keep, Tensor) or self.keep != 1.0:
            x, u = upcast(x), upcast(u).to(upcast(x).dtype)
        n = u if self.norm is None else self.norm(u)
        total = self.keep * x if isinstance(self.keep, Tensor) or self.keep != 1.0 else x
        total = total + self.scale * n if isinstance(self.scale, Tensor) else torch.add(total, n, alpha=self.scale)
        return total if self.shift is None else total + self.shift


def fused_write(
    x: Tensor,
    u: Tensor,
    offer: AngleMap | Callable[[], WeightedSum | None],
    dtype: torch.dtype | None = None,
    norm: nn.Module | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor] | None:
    """x' and, with `dtype`, what the next sub-layer reads of it in that dtype, through `norm` if it has one, by the
    kernels: 3 + 5 passes over memory, 4 + 6 with a norm. Without `dtype` x' twice. offer: the angle map of a
    geodesic step, or what returns the weighted sum. None where the kernels do not run here, nothing is offered, or the
    norm of the update is a module that they do not have or that somebody watches. backend: of the step, as in
    `geodesic_step`.

    >>> x, u = torch.randn(2, 8), torch.randn(2, 8)
    >>> geonorm.ops.fused_write(x, u, lambda: None) is None  # nothing is offered
    True
    """
    if isinstance(offer, AngleMap):
        plan = fused.plan_step(offer) if choose_backend(backend, x, u, offer) == "triton" else None
    else:
        terms = offer() if kernels_add(x, u) else None
        plan = None if terms is None else plan_sum(terms, x)
    if plan is None:
        return None
    known = fused.row_norm(norm, x) if dtype in DTYPES else None
    written = fused.write(x, u, *plan, dtype if known else None, known)
    if known:
        return written
    return written, written if dtype is None else (written if norm is None else norm(written)).to(dtype)


def plan_sum(terms: WeightedSum, x: Tensor) -> fused.Plan | None:
    """What the operators are told of a weighted sum; None for a norm that they do not have."""
    inner = fused.row_norm(terms.norm, x)
    if inner is None:
        return None
    scale, shift = terms.scale, terms.shift
    plain = not isinstance(scale, Tensor) and scale == 1.0
    if inner.shift is not None:
        biases = scale * upcast(inner.shift)
        shift = biases if shift is None else biases + shift
    if inner.weight is not None:
        scale = inner.weight if plain else scale * upcast(inner.weight)
    vectors = [t.expand(x.shape[-1]) if isinstance(t, Tensor) else None for t in (terms.keep, scale, shift)]
    numbers = [1.0 if isinstance(number, Tensor) else float(number) for number in (terms.keep, scale)]
    return vectors, inner.kind, [*numbers, inner.eps]
