"""Candidates measured in turns at one shape and dtype: each is compared with fp64 first, then all are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch

from ..errors import GeonormError
from .candidates import GAINS, PRE, Candidate, Tensors, draw_inputs, why_missing
from .timing import Build, Call, Clock, ratio, take_turns


class WrongResult(GeonormError):
    """A candidate differs from fp64 by more than rounding."""


def run_both_passes(forward: Callable[..., Any], inputs: Sequence[Tensor], grads: Tensors) -> tuple[Tensors, Tensors]:
    """Outputs, and the gradients of the inputs."""
    outputs = forward(*inputs)
    return tuple(each.detach() for each in outputs), torch.autograd.grad(outputs, list(inputs), grads)


def row_error(result: Tensor, truth: Tensor) -> float:
    """Largest error of a row relative to its length, NaN if anything is."""
    off = torch.linalg.vector_norm(result.double() - truth, dim=-1)
    return float((off / torch.linalg.vector_norm(truth, dim=-1).clamp(min=1e-30)).max())


def check_candidate(candidate: Candidate, *tensors: Tensor) -> dict[str, float]:
    """Errors of outputs (`out`) and gradients (d and an argument's name) against fp64 on the same numbers. WrongResult
    if one exceeds its limit."""
    inputs, grads = candidate.arguments(tensors), candidate.gradients(tensors)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs.values()]
    outputs, slopes = run_both_passes(candidate.forward, list(inputs.values()), grads)
    true_outputs, true_slopes = run_both_passes(candidate.truth, exact, tuple(grad.double() for grad in grads))
    errors = {"out": max(row_error(a, b) for a, b in zip(outputs, true_outputs, strict=True))}
    errors |= {f"d{name}": row_error(a, b) for name, a, b in zip(inputs, slopes, true_slopes, strict=True)}
    limits = candidate.limits(outputs, inputs)
    for name, error in errors.items():
        if not error <= limits[name]:  # NaN is wrong, too
            raise WrongResult(
                f"{candidate.name} is wrong at {'x'.join(map(str, tensors[0].shape))}: {name} differs from fp64 by "
                f"{error:.2g} of a row's length, more than {limits[name]:g}; nothing was timed"
            )
    return errors


def measure_candidates(
    chosen: Iterable[Candidate],
    size: tuple[int, int],
    dtype: str,
    modes: Sequence[str],
    rounds: int,
    clock: Clock,
    device: torch.device,
    missing: dict[str, str],
) -> list[dict[str, Any]]:
    """One shape, one dtype: a row for every candidate and mode (fwd, bwd, both), copies included. What cannot run there
    is put into `missing`; a wrong result of ours or of PyTorch is WrongResult."""
    torch.compiler.reset()
    tensors = draw_inputs(*size, dtype, device)
    ready: dict[str, Candidate] = {}
    errors: dict[str, dict[str, float]] = {}
    rows: list[dict[str, Any]] = []
    # a compiled backward pass may otherwise overwrite what a second run of it needs
    with functorch.patch(donated_buffer=False):
        for candidate in (each.specialise() for each in chosen):
            try:
                errors[candidate.name] = check_candidate(candidate, *tensors)
            except Exception as error:  # compilers and libraries of others may fail in any way
                if not candidate.optional and (not candidate.compiled or isinstance(error, WrongResult)):
                    raise
                missing[f"{candidate.name}, {size[0]} x {size[1]} {dtype}"] = why_missing(error)
            else:
                ready[candidate.name] = candidate
        for mode in modes:
            rows += time_mode(mode, ready, tensors, rounds, clock, device, {"dtype": dtype, "mode": mode})
    for row in rows:
        row["errors"] = errors.get(row["name"])
    return rows


def time_mode(
    mode: str,
    ready: Mapping[str, Candidate],
    tensors: Tensors,
    rounds: int,
    clock: Clock,
    device: torch.device,
    setting: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The rows of one mode. Ratios: of_copy to a copy of as many bytes, to_peer to the fastest that is not ours, to_pre
    and to_gains to Pre-Norm's without and with gains, compiled where the candidate is, to_eager to the eager one."""
    moved = {name: candidate.bytes(mode, tensors) for name, candidate in ready.items()}
    copies = {copy_name(size): size for size in moved.values()}
    builds: dict[str, Build] = {name: copy_of(size, device) for name, size in copies.items()}
    builds |= {name: program(candidate, mode, tensors) for name, candidate in ready.items()}
    cached = device.type == "cuda" and max(moved.values()) < clock.l2
    samplers = {name: clock.sampler(build, cached) for name, build in builds.items()}
    times = take_turns(samplers, rounds)
    del samplers
    clock.free()
    peer = min((name for name, candidate in ready.items() if candidate.norm), key=lambda name: median(times[name]))
    rows = []
    for name, size in (copies | moved).items():
        seconds = median(times[name])
        shape = {"rows": len(tensors[0]), "dim": tensors[0].shape[1]}
        speed = {"seconds": seconds, "bytes": size, "bandwidth": size / seconds}
        row: dict[str, Any] = {**setting, "cached": cached, **shape, "name": name, **speed}
        if name in ready:
            compiled = ready[name].compiled
            pre, gains = (
                f"{base}{suffix}" if compiled and f"{base}{suffix}" in times else base
                for base, suffix in ((PRE, " compiled"), (GAINS, ", compiled"))
            )
            row |= {"compiled": compiled, "ours": not ready[name].norm, "peer": peer}
            row["of_copy"] = ratio(times[copy_name(size)], times[name])
            for key, base in (("to_eager", PRE), ("to_peer", peer), ("to_pre", pre), ("to_gains", gains)):
                if base in times:
                    row[key] = ratio(times[name], times[base])
        rows.append(row)
    return rows


def program(candidate: Candidate, mode: str, tensors: Tensors) -> Build:
    """The call of a mode. A backward pass alone runs again and again on one graph."""

    def build() -> Call:
        inputs, grads = list(candidate.arguments(tensors).values()), candidate.gradients(tensors)
        if mode == "fwd":
            return lambda: candidate.forward(*inputs)
        if mode == "both":
            return lambda: torch.autograd.grad(candidate.forward(*inputs), inputs, grads)
        outputs = candidate.forward(*inputs)
        return lambda: torch.autograd.grad(outputs, inputs, grads, retain_graph=True)

    return build


def copy_name(size: int) -> str:
    return f"copy of {size / 1e6:.4g} MB"


def copy_of(size: int, device: torch.device) -> Build:
    """A device copy that reads and writes `size` bytes together."""

    def build() -> Call:
        source = torch.ones(max(1, size // 8), dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return build
