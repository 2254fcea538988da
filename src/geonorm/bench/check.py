"""Correct first: every candidate against the textbook in fp64, output and both gradients, before it is timed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import GeonormError
from .candidates import Candidate, Forward, add_norm, step

Tensors = tuple[Tensor, Tensor, Tensor, Tensor]
DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "mixed": (torch.float32, torch.bfloat16),
}
"""Of the stream and of the update."""
STEP_TOLERANCE = {
    torch.float32: (1e-6, 5e-6),
    torch.float16: (5e-4, 2e-3),
    torch.bfloat16: (4e-3, 1e-2),
}
"""Largest error of a row, relative to the row's length: of outputs, of gradients. In half precision little more than
the rounding of what is returned."""
NORM_TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float16: (5e-3, 1e-2), torch.bfloat16: (2e-2, 4e-2)}
"""Of the peers, whose sums are rounded to the stream's dtype on the way: that they compute the same function."""


class WrongResult(GeonormError):
    """A candidate differs from fp64 by more than rounding."""


def inputs(rows: int, dim: int, dtype: str, device: torch.device, seed: int = 0) -> Tensors:
    """Stream x, update u and two gradients (of the stream, of what the branch reads), each (rows, dim). Updates of 0.03
    to 10 times the stream's length: about half of the rows are clamped."""
    stream, update = DTYPES[dtype]
    random = torch.Generator(device).manual_seed(seed)
    x, u, first, second = torch.randn(4, rows, dim, generator=random, device=device).unbind()
    u = u * 10 ** (2.5 * torch.rand(rows, 1, generator=random, device=device) - 1.5)
    return x.to(stream), u.to(update), first.to(stream), second.to(update)


def gradients_for(candidate: Candidate, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """One for each output of a candidate."""
    if candidate.norm:
        return first, second
    return (first, second.to(first.dtype))[: candidate.reads]


def results(forward: Forward, x: Tensor, u: Tensor, grads: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and the gradients of x and u."""
    x, u = x.detach().requires_grad_(), u.detach().requires_grad_()
    outputs = forward(x, u)
    found = torch.autograd.grad(outputs, (x, u), grads)
    return [out.detach() for out in outputs], list(found)


def row_error(found: Tensor, truth: Tensor) -> float:
    """Largest error of a row relative to its length, NaN if anything is."""
    off = torch.linalg.vector_norm(found.double() - truth, dim=-1)
    return float((off / torch.linalg.vector_norm(truth, dim=-1).clamp(min=1e-30)).max())


def check(candidate: Candidate, x: Tensor, u: Tensor, first: Tensor, second: Tensor) -> dict[str, float]:
    """Errors {out, dx, du} against fp64 on the same numbers. WrongResult if one exceeds its tolerance."""
    truth = add_norm if candidate.norm else step("reference", torch.tensor(0.5).to(x.device).double(), candidate.reads)
    grads = gradients_for(candidate, first, second)
    outputs, slopes = results(candidate.forward, x, u, grads)
    true_outputs, true_slopes = results(truth, x.double(), u.double(), tuple(g.double() for g in grads))
    errors = {
        "out": max(row_error(a, b) for a, b in zip(outputs, true_outputs, strict=True)),
        "dx": row_error(slopes[0], true_slopes[0]),
        "du": row_error(slopes[1], true_slopes[1]),
    }
    tolerance = NORM_TOLERANCE if candidate.norm else STEP_TOLERANCE
    allowed = {
        "out": tolerance[outputs[-1].dtype][0],
        "dx": tolerance[x.dtype][1],
        "du": tolerance[u.dtype][1],
    }
    for what, error in errors.items():
        if not error <= allowed[what]:  # NaN is wrong, too
            shape = "x".join(map(str, x.shape))
            raise WrongResult(
                f"{candidate.name} is wrong at {shape}: {what} differs from fp64 by {error:.2g} of a row's length, "
                f"more than {allowed[what]:g}; nothing was timed"
            )
    return errors
