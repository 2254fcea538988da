"""`geonorm bench ops`: the geodesic update, what Pre-Norm does at its place, and a copy of as many bytes, in turns.

At each shape and dtype every candidate is compared with fp64 first, then all are timed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch

from ..errors import ConfigError, GeonormError, cause
from ..lab.runs import environment
from ..lab.runs.folder import save_summary
from ..ops import backends
from . import show
from .candidates import GAINS, PRE, Candidate, Tensors, candidates, draw_inputs
from .config import CPU_SHAPES, CUDA_SHAPES, OpsBench
from .timing import Build, Call, Clock, GraphClock, ratio, take_turns


class WrongResult(GeonormError):
    """A candidate differs from fp64 by more than rounding."""


def bench_ops(config: OpsBench, say: show.Say = print) -> dict[str, Any]:
    """Checks, times, prints and, with `out`, writes summary.json after each shape and dtype; returns the summary.
    WrongResult before anything of a shape is timed if a candidate differs from fp64; ConfigError for a word that fits
    no candidate."""
    device = show.begin(config)
    clock = GraphClock(device) if device.type == "cuda" else Clock(device, config.threads)
    chosen = choose_candidates(candidates(device), config.only)
    about = backends(device.type)
    say(f"auto takes {about['auto']}: {about['reason']}")
    summary: dict[str, Any] = {
        "setting": {"pairs": config.pairs, "threads": config.threads, "device": str(device), "clock": clock.name},
        "auto": about,
        "missing": {},
        "environment": environment.collect(device, config.threads, ""),
        "rows": [],
    }
    for size in config.sizes(CUDA_SHAPES if device.type == "cuda" else CPU_SHAPES):
        for dtype in config.dtypes:
            place = f"{size[0]} x {size[1]} {dtype}"
            say(f"\n{place}: compiling, checking, timing {config.pairs} rounds")
            rows, left_out = measure_candidates(chosen, size, dtype, config, clock)
            summary["rows"] += rows
            summary["missing"] |= {f"{name}, {place}": why for name, why in left_out.items()}
            save_summary(config.out, summary)
            show.print_tables(rows, say)
            for name, why in left_out.items():
                say(f"left out: {name} ({why})")
    return summary


def choose_candidates(available: list[Candidate], words: list[str]) -> list[Candidate]:
    """Those with one of the words in their name, and every norm, which they are compared with."""
    names = "; ".join(candidate.name for candidate in available)
    if unknown := [word for word in words if word not in names]:
        raise ConfigError(f"--only {unknown[0]!r} is part of no candidate's name; here are {names}")
    return [each for each in available if each.kind == "norm" or not words or any(word in each.name for word in words)]


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
    chosen: Iterable[Candidate], size: tuple[int, int], dtype: str, config: OpsBench, clock: Clock
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One shape, one dtype: a row for every candidate and mode, copies included, and why the rest could not run there.
    A wrong result is WrongResult."""
    torch.compiler.reset()
    tensors = draw_inputs(*size, dtype, clock.device)
    ready: list[Candidate] = []
    errors: dict[str, dict[str, float]] = {}
    missing: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    # a compiled backward pass may otherwise overwrite what a second run of it needs
    with functorch.patch(donated_buffer=False):
        for candidate in chosen:
            if candidate.compiled:  # for one shape alone
                forward = torch.compile(candidate.forward, dynamic=False, fullgraph=True)
                candidate = replace(candidate, forward=forward)
            try:
                errors[candidate.name] = check_candidate(candidate, *tensors)
                ready.append(candidate)
            except Exception as error:  # a compiler may fail in any way
                if isinstance(error, WrongResult) or not candidate.compiled:
                    raise
                missing[candidate.name] = f"{type(error).__name__}: {cause(error)[:160]}"
        for mode in config.modes:
            rows += time_mode(mode, ready, tensors, config.pairs, clock)
    return [{"dtype": dtype, **row, "errors": errors.get(row["name"])} for row in rows], missing


def time_mode(
    mode: str, ready: Sequence[Candidate], tensors: Tensors, rounds: int, clock: Clock
) -> list[dict[str, Any]]:
    """The rows of one mode. Ratios: of_copy to a copy of as many bytes, to_peer to the fastest that is not ours, to_pre
    and to_gains to Pre-Norm's without and with gains, compiled where the candidate is."""
    moved = {candidate.name: candidate.bytes(mode, tensors) for candidate in ready}
    copies = {copy_name(size): size for size in moved.values()}
    builds: dict[str, Build] = {name: copy_of(size, clock.device) for name, size in copies.items()}
    builds |= {candidate.name: program(candidate, mode, tensors) for candidate in ready}
    cached = max(moved.values()) < clock.l2
    samplers = {name: clock.sampler(build, cached) for name, build in builds.items()}
    times = take_turns(samplers, rounds)
    del samplers
    torch.cuda.empty_cache()
    middle = {name: median(seconds) for name, seconds in times.items()}
    peer = min((candidate.name for candidate in ready if candidate.kind == "norm"), key=lambda name: middle[name])
    compiled = {candidate.name: candidate.compiled for candidate in ready}
    rows = []
    for name, size in (copies | moved).items():
        row: dict[str, Any] = {
            "mode": mode, "cached": cached, "rows": len(tensors[0]), "dim": tensors[0].shape[1], "name": name,
            "seconds": middle[name], "bytes": size, "bandwidth": size / middle[name], "peer": peer,
        }  # fmt: skip
        if name in compiled:
            row["of_copy"] = ratio(times[copy_name(size)], times[name])
            pre, gains = (f"{PRE} compiled", f"{GAINS}, compiled") if compiled[name] else (PRE, GAINS)
            bases = {"to_peer": peer, "to_pre": pre, "to_gains": gains}
            row |= {key: ratio(times[name], times[base]) for key, base in bases.items() if base in times}
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
