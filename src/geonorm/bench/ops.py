"""`geonorm bench ops`: the geodesic update, what Pre-Norm does at its place, and a copy of as many bytes, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch._functorch import config as functorch

from ..devices import pick_device
from ..errors import ConfigError
from ..lab.runs import environment
from ..lab.runs.run import write_json
from ..lab.studies.simulate import writable
from ..ops import backends
from . import show
from .candidates import FUSED, Candidate, candidates, why_missing
from .check import DTYPES, Tensors, WrongResult, arguments, check_candidate, gradients_for, inputs
from .config import OpsBench
from .timing import Build, Call, Clock, clock_of, host_seconds, ratio, take_turns

Say = Callable[[str], None]
HOST_SHAPE = (8, 64)
"""So small that only the cost of starting the work is left."""
PRE = "add + rms_norm"
GAINS = f"{PRE}, gains"


def bench_ops(config: OpsBench, say: Say = print) -> dict[str, Any]:
    """Checks, times, prints and, with `out`, writes summary.json and figures/; returns the summary. WrongResult before
    anything of a shape is timed if a candidate differs from fp64; ConfigError for a word that fits no candidate."""
    device = pick_device(config.device)
    torch.set_num_threads(config.threads)
    clock = clock_of(device, config.threads)
    if config.out:
        writable(Path(config.out))
    found, missing = candidates(device)
    chosen = choose_candidates(found, config.only)
    about = backends()
    say(f"auto takes {about['auto']}: {about['reason']}")
    for name, why in missing.items():
        say(f"not here: {name} ({why})")
    out = Path(config.out) if config.out else None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {
        "setting": {"pairs": config.rounds, "threads": config.threads, "device": str(device), "clock": clock.name},
        "auto": about,
        "missing": missing,
        "environment": environment.describe(device, config.threads, ""),
        "rows": rows,
    }
    # a compiled backward pass may otherwise overwrite what a second run of it needs
    with functorch.patch(donated_buffer=False):
        summary["host_microseconds"] = host_times(chosen, config, device, clock)
        show.host(summary["host_microseconds"], say)
        for size in config.sizes(device.type == "cuda"):
            for dtype in config.dtypes:
                say(f"\n{size[0]} x {size[1]} {dtype}: compiling, checking, timing {config.rounds} rounds")
                table = measure_steps(chosen, size, dtype, config, device, clock, missing)
                show.ops(table, say)
                for name in [name for name in missing if name.endswith(f"{size[0]} x {size[1]} {dtype}")]:
                    say(f"left out: {name} ({missing[name]})")
                rows += table
                if out is not None:  # after each table: what is measured stays, whatever ends the program
                    write_json(out / "summary.json", summary)
    if out is not None:
        for path in show.draw_figures(rows, out / "figures", summary["environment"]):
            say(str(path))
    return summary


def choose_candidates(found: list[Candidate], words: list[str]) -> list[Candidate]:
    """Those with one of the words in their name, and Pre-Norm, which all are compared with, without and with gains."""
    for word in words:
        if not any(word in candidate.name for candidate in found):
            names = "; ".join(candidate.name for candidate in found)
            raise ConfigError(f"--only {word!r} is part of no candidate's name; here are {names}")
    chosen = [candidate for candidate in found if not words or any(word in candidate.name for word in words)]
    compiled = any(candidate.compiled for candidate in chosen)
    base = {PRE, GAINS, *((f"{PRE} compiled", f"{GAINS}, compiled") if compiled else ())}
    return [candidate for candidate in found if candidate in chosen or candidate.name in base]


def measure_steps(
    chosen: list[Candidate],
    size: tuple[int, int],
    dtype: str,
    config: OpsBench,
    device: torch.device,
    clock: Clock,
    missing: dict[str, str],
) -> list[dict[str, Any]]:
    """One shape, one dtype: a row for every candidate and mode, copies included. What cannot run there is put into
    `missing`; a wrong result of ours or of PyTorch is WrongResult, one of another library leaves it out."""
    torch.compiler.reset()
    tensors = inputs(*size, dtype, device)
    place = f"{size[0]} x {size[1]} {dtype}"
    stream, update = (torch.empty(0, dtype=kind).element_size() for kind in DTYPES[dtype])
    ready: list[Candidate] = []
    errors: dict[str, dict[str, float]] = {}
    for candidate in map(specialised, chosen):
        try:
            errors[candidate.name] = check_candidate(candidate, *tensors)
        except Exception as error:  # compilers and libraries of others may fail in any way
            essential = not candidate.compiled and candidate.name not in FUSED
            if essential or (isinstance(error, WrongResult) and candidate.name not in FUSED):
                raise
            missing[f"{candidate.name}, {place}"] = why_missing(error)
        else:
            ready.append(candidate)
    rows = []
    for mode in config.modes:
        programs: dict[str, tuple[int, Build]] = {}
        for candidate in ready:
            moved = candidate.bytes(mode, size[0] * size[1], stream, update)
            programs.setdefault(copy_name(moved), (moved, copy_of(moved, device)))
            programs[candidate.name] = (moved, program(candidate, mode, tensors))
        cached = device.type == "cuda" and max(moved for moved, _ in programs.values()) < clock.l2
        samplers = {name: clock.sampler(build, cached) for name, (_, build) in programs.items()}
        times = take_turns(samplers, config.rounds)
        del samplers
        clock.free()
        about = {"dtype": dtype, "mode": mode, "cached": cached, "rows": size[0], "dim": size[1]}
        rows += list(tabulate(ready, programs, times, errors, about))
    return rows


def tabulate(
    ready: list[Candidate],
    programs: dict[str, tuple[int, Build]],
    times: dict[str, list[float]],
    errors: dict[str, dict[str, float]],
    about: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """Rows of one shape, dtype and mode."""
    known = {candidate.name: candidate for candidate in ready}
    peers = [name for name in times if name in known and known[name].norm]
    best = min(peers, key=lambda name: median(times[name]))
    for name, (moved, _) in programs.items():
        candidate = known.get(name)
        row: dict[str, Any] = {**about, "name": name, "seconds": median(times[name]), "bytes": moved}
        row["bandwidth"] = moved / row["seconds"]
        if candidate is not None:
            pre = f"{PRE} compiled" if candidate.compiled and f"{PRE} compiled" in times else PRE
            gains = f"{GAINS}, compiled" if candidate.compiled and f"{GAINS}, compiled" in times else GAINS
            row |= {
                "compiled": candidate.compiled,
                "ours": candidate.ours,
                "of_copy": ratio(times[copy_name(moved)], times[name]),
                "to_peer": ratio(times[name], times[best]),
                "peer": best,
                "to_pre": ratio(times[name], times[pre]),
                **({"to_gains": ratio(times[name], times[gains])} if gains in times else {}),
                "to_eager": ratio(times[name], times[PRE]),
                "errors": errors[name],
            }
        yield row


def specialised(candidate: Candidate) -> Candidate:
    """A compiled candidate compiled for this shape alone."""
    if not candidate.compiled:
        return candidate
    return replace(candidate, forward=torch.compile(candidate.forward, dynamic=False, fullgraph=True))


def program(candidate: Candidate, mode: str, tensors: Tensors) -> Build:
    """The call of a mode. A backward pass alone runs again and again on one graph."""

    def build() -> Call:
        taken = arguments(candidate, *tensors[:2])
        grads = gradients_for(candidate, *tensors[2:])
        if mode == "fwd":
            return lambda: candidate.forward(*taken)
        if mode == "both":
            return lambda: torch.autograd.grad(candidate.forward(*taken), taken, grads)
        outputs = candidate.forward(*taken)
        return lambda: torch.autograd.grad(outputs, taken, grads, retain_graph=True)

    return build


def copy_name(size: int) -> str:
    return f"copy of {size / 1e6:.1f} MB"


def copy_of(size: int, device: torch.device) -> Build:
    """A device copy that reads and writes `size` bytes together."""

    def build() -> Call:
        source = torch.ones(max(1, size // 8), dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return build


def host_times(
    chosen: list[Candidate], config: OpsBench, device: torch.device, clock: Clock
) -> dict[str, dict[str, float]]:
    """Microseconds of the CPU for one forward and backward pass on tensors of 8 x 64, by dtype and candidate."""
    found: dict[str, dict[str, float]] = {}
    for dtype in config.dtypes:
        torch.compiler.reset()
        tensors = inputs(*HOST_SHAPE, dtype, device)
        found[dtype] = {
            candidate.name: 1e6 * host_seconds(program(specialised(candidate), "both", tensors), clock)
            for candidate in chosen
        }
    return found
