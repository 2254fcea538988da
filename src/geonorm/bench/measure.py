"""What a benchmark of functions of rows measures: is a candidate right, and how long do its passes take, in turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch

from ..devices import pick_device
from ..errors import CheckpointError, GeonormError, cause
from ..lab.runs.folder import check_writable, read_object, write_json
from . import show
from .config import OpsBench
from .timing import Build, Call, Clock, clock_of, ratio, take_turns

Tensors = tuple[Tensor, ...]
Times = Mapping[str, Sequence[float]]
DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "mixed": (torch.float32, torch.bfloat16),
}
"""Of the stream and of the update."""
NORM_TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float16: (5e-3, 1e-2), torch.bfloat16: (2e-2, 4e-2)}
"""Largest error of a row of a norm's output and gradient, relative to the row's length: sums may be rounded to the
dtype on the way."""


class WrongResult(GeonormError):
    """A candidate differs from fp64 by more than rounding."""


@dataclass(frozen=True)
class Candidate(ABC):
    """One way to compute a function of rows. Each benchmark has a subclass that says what its candidates are given and
    what is true of them; `tensors` is what `inputs` makes of a shape and a dtype."""

    name: str
    forward: Callable[..., Any]
    compiled: bool = field(default=False, kw_only=True)
    optional: bool = field(default=False, kw_only=True)
    """Of another library: left out where it cannot run or is wrong."""

    @property
    @abstractmethod
    def ours(self) -> bool:
        """Whether it is this library's."""

    @staticmethod
    @abstractmethod
    def inputs(rows: int, dim: int, dtype: str, device: torch.device) -> Tensors:
        """The same for all candidates."""

    @abstractmethod
    def arguments(self, tensors: Tensors) -> dict[str, Tensor]:
        """What `forward` takes, by name, each asking for its gradient."""

    @abstractmethod
    def gradients(self, tensors: Tensors) -> Tensors:
        """One for each output."""

    @abstractmethod
    def truth(self, *taken: Tensor) -> Any:
        """What `forward` should return, run in fp64."""

    @abstractmethod
    def limits(self, outputs: Sequence[Tensor], taken: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Largest error of a row relative to its length: of `out`, and of each argument's name after a d."""

    @abstractmethod
    def bytes(self, mode: str, tensors: Tensors) -> int:
        """The least that must pass through memory."""

    @abstractmethod
    def columns(self, mode: str, tensors: Tensors, ready: Mapping[str, Candidate], times: Times) -> dict[str, Any]:
        """What its rows say beside times and errors."""


def results(forward: Callable[..., Any], taken: Sequence[Tensor], grads: Tensors) -> tuple[list[Tensor], Tensors]:
    """Outputs, and the gradients of what was taken."""
    out = forward(*taken)
    outputs = (out,) if isinstance(out, Tensor) else out
    return [each.detach() for each in outputs], torch.autograd.grad(outputs, list(taken), grads)


def row_error(found: Tensor, truth: Tensor) -> float:
    """Largest error of a row relative to its length, NaN if anything is."""
    off = torch.linalg.vector_norm(found.double() - truth, dim=-1)
    return float((off / torch.linalg.vector_norm(truth, dim=-1).clamp(min=1e-30)).max())


def check_candidate(candidate: Candidate, *tensors: Tensor) -> dict[str, float]:
    """Errors of outputs (`out`) and gradients (d and an argument's name) against fp64 on the same numbers. WrongResult
    if one exceeds its limit."""
    taken, grads = candidate.arguments(tensors), candidate.gradients(tensors)
    exact = [tensor.detach().double().requires_grad_() for tensor in taken.values()]
    outputs, slopes = results(candidate.forward, list(taken.values()), grads)
    true_outputs, true_slopes = results(candidate.truth, exact, tuple(grad.double() for grad in grads))
    errors = {"out": max(row_error(a, b) for a, b in zip(outputs, true_outputs, strict=True))}
    errors |= {f"d{name}": row_error(a, b) for name, a, b in zip(taken, slopes, true_slopes, strict=True)}
    limits = candidate.limits(outputs, taken)
    for name, error in errors.items():
        if not error <= limits[name]:  # NaN is wrong, too
            raise WrongResult(
                f"{candidate.name} is wrong at {'x'.join(map(str, tensors[0].shape))}: {name} differs from fp64 by "
                f"{error:.2g} of a row's length, more than {limits[name]:g}; nothing was timed"
            )
    return errors


def check_folder(out: str | None) -> None:
    """CheckpointError if `out` cannot be written, or holds something else than a benchmark; leaves nothing."""
    if out:
        check_writable(folder := Path(out))
        names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
        if names and not (names <= {"summary.json", "figures"} and "rows" in read_object(folder / "summary.json")):
            raise CheckpointError(f"{folder} is not empty and holds no benchmark; choose another --out")


def prepare_bench(config: OpsBench) -> tuple[torch.device, Clock]:
    """What is timed, and by which clock. CheckpointError if `out` cannot be written; leaves nothing."""
    device = pick_device(config.device)
    torch.set_num_threads(config.threads)
    check_folder(config.out)
    return device, clock_of(device, config.threads)


def measure_tables(
    config: OpsBench,
    summary: dict[str, Any],
    chosen: Sequence[Candidate],
    base: str,
    clock: Clock,
    device: torch.device,
    say: show.Say,
) -> None:
    """Every shape and dtype of a benchmark, printed and added to the rows of the summary, which is written after each:
    what is measured stays, whatever ends the program."""
    if config.out:
        Path(config.out).mkdir(parents=True, exist_ok=True)
    # a compiled backward pass may otherwise overwrite what a second run of it needs
    with functorch.patch(donated_buffer=False):
        for size in config.sizes(device.type == "cuda"):
            for dtype in config.dtypes:
                place = f"{size[0]} x {size[1]} {dtype}"
                say(f"\n{place}: compiling, checking, timing {config.rounds} rounds")
                rows = measure_candidates(
                    chosen, size, dtype, config.modes, config.rounds, clock, device, summary["missing"], base
                )
                show.print_tables(rows, say)
                for name in [name for name in summary["missing"] if name.endswith(place)]:
                    say(f"left out: {name} ({summary['missing'][name]})")
                summary["rows"] += rows
                if config.out:
                    write_json(Path(config.out) / "summary.json", summary)


def measure_candidates(
    chosen: Iterable[Candidate],
    size: tuple[int, int],
    dtype: str,
    modes: Sequence[str],
    rounds: int,
    clock: Clock,
    device: torch.device,
    missing: dict[str, str],
    base: str,
) -> list[dict[str, Any]]:
    """One shape, one dtype: a row for every candidate and mode (fwd, bwd, both), copies included. What cannot run there
    is put into `missing`; a wrong result of ours or of PyTorch is WrongResult. base: the name of the one that
    `to_eager` compares with."""
    torch.compiler.reset()
    place = f"{size[0]} x {size[1]} {dtype}"
    tensors: Tensors = ()
    ready: dict[str, Candidate] = {}
    errors: dict[str, dict[str, float]] = {}
    for candidate in map(specialise, chosen):
        tensors = tensors or candidate.inputs(*size, dtype, device)
        try:
            errors[candidate.name] = check_candidate(candidate, *tensors)
        except Exception as error:  # compilers and libraries of others may fail in any way
            if not candidate.optional and (not candidate.compiled or isinstance(error, WrongResult)):
                raise
            missing[f"{candidate.name}, {place}"] = why_missing(error)
        else:
            ready[candidate.name] = candidate
    rows = []
    for mode in modes:
        programs: dict[str, tuple[int, Build]] = {}
        for name, candidate in ready.items():
            moved = candidate.bytes(mode, tensors)
            programs.setdefault(copy_name(moved), (moved, copy_of(moved, device)))
            programs[name] = (moved, program(candidate, mode, tensors))
        cached = device.type == "cuda" and max(moved for moved, _ in programs.values()) < clock.l2
        samplers = {name: clock.sampler(build, cached) for name, (_, build) in programs.items()}
        times = take_turns(samplers, rounds)
        del samplers
        clock.free()
        for name, (moved, _) in programs.items():
            taken = times[name]
            row: dict[str, Any] = {
                "dtype": dtype, "mode": mode, "cached": cached, "rows": size[0], "dim": size[1], "name": name,
                "seconds": median(taken), "bytes": moved, "bandwidth": moved / median(taken),
            }  # fmt: skip
            if name in ready:
                row |= {
                    "compiled": ready[name].compiled, "ours": ready[name].ours,
                    "of_copy": ratio(times[copy_name(moved)], taken), "to_eager": ratio(taken, times[base]),
                    **ready[name].columns(mode, tensors, ready, times), "errors": errors[name],
                }  # fmt: skip
            rows.append(row)
    return rows


def why_missing(error: Exception) -> str:
    """The kind of an error and its cause."""
    return f"{type(error).__name__}: {cause(error)[:160]}"


def specialise(candidate: Candidate) -> Candidate:
    """A compiled candidate compiled for this shape alone."""
    if not candidate.compiled:
        return candidate
    return replace(candidate, forward=torch.compile(candidate.forward, dynamic=False, fullgraph=True))


def program(candidate: Candidate, mode: str, tensors: Tensors) -> Build:
    """The call of a mode. A backward pass alone runs again and again on one graph."""

    def build() -> Call:
        taken, grads = list(candidate.arguments(tensors).values()), candidate.gradients(tensors)
        if mode == "fwd":
            return lambda: candidate.forward(*taken)
        if mode == "both":
            return lambda: torch.autograd.grad(candidate.forward(*taken), taken, grads)
        outputs = candidate.forward(*taken)
        return lambda: torch.autograd.grad(outputs, taken, grads, retain_graph=True)

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
