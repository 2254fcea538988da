"""Relations between the tensors of a recorded pass: equal, a sum with factors, a norm. Each is a fit on the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .norms import weights_in_memory
from .record import ModuleCall

EPS = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)
"""What norms may add to the mean square; tried after the numbers that the module itself calls eps."""


@dataclass(frozen=True)
class Gains:
    """What a norm computes: kind(x) with eps, times `weight + offset` plus `bias`, as far as it has them. offset is
    None where it has no weight or multiplies by it before it normalises."""

    kind: str
    eps: float
    offset: float | None


def same_size(a: Any, b: Tensor) -> bool:
    """True for a tensor of as many numbers with the same last dimension."""
    return isinstance(a, Tensor) and a.is_floating_point() and a.shape[-1:] == b.shape[-1:] and a.numel() == b.numel()


def close(a: Tensor, b: Tensor) -> bool:
    """True if rounding explains the difference of two tensors, taken as one vector each."""
    tolerance = torch.finfo(b.dtype).eps if b.dtype in (torch.float16, torch.bfloat16) else 2e-5
    wide = b.cpu().double().flatten()  # Apple's GPU has no fp64
    return float((a.cpu().double().flatten() - wide).norm()) <= tolerance * float(wide.norm())


def sum_factors(target: Tensor, atoms: Sequence[Tensor]) -> list[float] | None:
    """The factors with which tensors sum up to the target; None if no factors do. As many of them as can be are 0."""
    for number, atom in enumerate(atoms):
        if torch.equal(atom.reshape(target.shape), target):
            return [float(number == place) for place in range(len(atoms))]
    wide = target.cpu().double().flatten()
    first, *others = atoms  # a norm of a stream that is normalised is the stream again
    apart = [first, *(0 * atom if close(atom, first) else atom for atom in others)]
    matrix = torch.stack([atom.cpu().double().flatten() for atom in apart], -1)
    used, lengths = matrix.norm(dim=0) > 0, matrix.norm(dim=0)
    best, left = fit_columns(matrix, wide, used)
    while used.sum() > 1:  # use as few as can be: the norm of x is nearly x, and rounding would give both a factor
        fewer = used.clone()
        fewer[(best.abs() * lengths).masked_fill(~used, torch.inf).argmin()] = False
        factors, more = fit_columns(matrix, wide, fewer)
        if not close(matrix @ factors, target) or more > 2 * left + 1e-7 * float(wide.norm()):
            break
        used, best, left = fewer, factors, more
    return best.tolist() if close(matrix @ best, target) else None


def fit_columns(matrix: Tensor, wide: Tensor, used: Tensor) -> tuple[Tensor, float]:
    """Factors of some columns that come nearest to a vector, 0 for the others, and the length of what is left.

    >>> fit_columns(torch.eye(2), torch.tensor([3.0, 4.0]), torch.tensor([True, False]))
    (tensor([3., 0.]), 4.0)
    """
    factors = torch.zeros_like(matrix[0])
    factors[used] = torch.linalg.lstsq(matrix[:, used], wide[:, None], driver="gelsd").solution[:, 0]
    return factors, float((matrix @ factors - wide).norm())


def is_one(factor: float, x: Tensor) -> bool:
    return abs(factor - 1) <= (5e-3 if x.dtype in (torch.float16, torch.bfloat16) else 2e-4)


@torch.no_grad()
def read_norm(call: ModuleCall) -> Gains | None:
    """What the module computes if it is a norm; None if it is something else."""
    module, x = call.module, call.x
    parameters = dict(module.named_parameters())
    shapes = {parameter.shape for parameter in parameters.values()}
    other = not same_size(call.y, x) or set(parameters) - {"weight", "bias"} or shapes - {x.shape[-1:]}
    if other or call.y.abs().max() == 0:
        return None
    with weights_in_memory(module):
        weight, bias = (
            getattr(module, name).cpu().double() if name in parameters else None for name in ("weight", "bias")
        )
    wide, shift = x.cpu().double().flatten(0, -2), 0.0 if bias is None else bias
    gains = {None: 1.0} if weight is None else {0.0: weight, 1.0: weight + 1}
    listed = [getattr(module, name, None) for name in ("variance_epsilon", "eps", "epsilon", "norm_eps")]
    for eps in [value for value in (*listed, *EPS) if isinstance(value, float)]:
        for offset, gain in gains.items():
            if close(gain * unit_rms(wide, eps) + shift, call.y):
                return Gains("rms", eps, offset)
            if close(gain * unit_rms(wide - wide.mean(-1, keepdim=True), eps) + shift, call.y):
                return Gains("layer", eps, offset)
            if close(unit_rms(gain * wide, eps), call.y):
                return Gains("rms", eps, None)
    return None


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps)."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
