"""Correct first: every candidate against the textbook in fp64, output and both gradients, before it is timed."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..errors import GeonormError
from .candidates import Candidate, add_norm, add_norm_gains, make_step, make_step_norm, make_step_read

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
    return (first, second) if candidate.norm or candidate.read else (first,)


def arguments(candidate: Candidate, x: Tensor, u: Tensor) -> list[Tensor]:
    """What a candidate takes, each asking for its gradient: x, u and gains of one where it has them."""
    taken = [x.detach(), u.detach()]
    if candidate.gains:
        taken.append(torch.ones(x.shape[-1], dtype=x.dtype, device=x.device))
    return [tensor.requires_grad_() for tensor in taken]


def results(candidate: Candidate, x: Tensor, u: Tensor, grads: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and the gradients of x, u and gains."""
    taken = arguments(candidate, x, u)
    outputs = candidate.forward(*taken)
    found = torch.autograd.grad(outputs, taken, grads)
    return [out.detach() for out in outputs], list(found)


def row_error(found: Tensor, truth: Tensor) -> float:
    """Largest error of a row relative to its length, NaN if anything is."""
    off = torch.linalg.vector_norm(found.double() - truth, dim=-1)
    return float((off / torch.linalg.vector_norm(truth, dim=-1).clamp(min=1e-30)).max())


def check_candidate(candidate: Candidate, x: Tensor, u: Tensor, first: Tensor, second: Tensor) -> dict[str, float]:
    """Errors {out, dx, du} against fp64 on the same numbers. WrongResult if one exceeds its tolerance."""
    decay = torch.tensor(0.5, dtype=torch.float64, device=x.device)
    ours = make_step_norm if candidate.through else make_step_read if candidate.read else make_step
    norm = add_norm_gains if candidate.gains else add_norm
    truth = replace(candidate, forward=norm if candidate.norm else ours("reference", decay))
    grads = gradients_for(candidate, first, second)
    outputs, slopes = results(candidate, x, u, grads)
    true_outputs, true_slopes = results(truth, x.double(), u.double(), tuple(g.double() for g in grads))
    errors = {
        "out": max(row_error(a, b) for a, b in zip(outputs, true_outputs, strict=True)),
        "dx": row_error(slopes[0], true_slopes[0]),
        "du": row_error(slopes[1], true_slopes[1]),
        **({"dgains": row_error(slopes[2], true_slopes[2])} if candidate.gains else {}),
    }
    tolerance = NORM_TOLERANCE if candidate.norm else STEP_TOLERANCE
    allowed = {
        "out": tolerance[outputs[-1].dtype][0],
        "dx": tolerance[x.dtype][1],
        "du": tolerance[u.dtype][1],
        "dgains": tolerance[u.dtype][1],
    }
    for what, error in errors.items():
        if not error <= allowed[what]:  # NaN is wrong, too
            shape = "x".join(map(str, x.shape))
            raise WrongResult(
                f"{candidate.name} is wrong at {shape}: {what} differs from fp64 by {error:.2g} of a row's length, "
                f"more than {allowed[what]:g}; nothing was timed"
            )
    return errors
