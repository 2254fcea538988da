"""`geonorm bench ops`: the geodesic update, what Pre-Norm does at its place, and a copy of as many bytes, in turns."""

from __future__ import annotations

from typing import Any

import torch

from ..devices import pick_device
from ..errors import ConfigError
from ..lab.runs import environment
from ..ops import backends
from . import show
from .candidates import GAINS, PRE, Candidate, candidates, draw_inputs
from .config import OpsBench
from .measure import measure_candidates, program
from .timing import Clock, clock_of, host_seconds

HOST_SHAPE = (8, 64)
"""So small that only the cost of starting the work is left."""


def bench_ops(config: OpsBench, say: show.Say = print) -> dict[str, Any]:
    """Checks, times, prints and, with `out`, writes summary.json after each shape and dtype; returns the summary.
    WrongResult before anything of a shape is timed if a candidate differs from fp64; ConfigError for a word that fits
    no candidate."""
    device = pick_device(config.device)
    torch.set_num_threads(config.threads)
    show.check_folder(config.out)
    clock = clock_of(device, config.threads)
    available, missing = candidates(device)
    chosen = choose_candidates(available, config.only)
    about = backends(device.type)
    say(f"auto takes {about['auto']}: {about['reason']}")
    for name, why in missing.items():
        say(f"not here: {name} ({why})")
    summary: dict[str, Any] = {
        "setting": {"pairs": config.rounds, "threads": config.threads, "device": str(device), "clock": clock.name},
        "auto": about,
        "missing": missing,
        "environment": environment.collect(device, config.threads, ""),
        "rows": [],
        "host_microseconds": host_times(chosen, config, device, clock),
    }
    show.print_host_times(summary["host_microseconds"], say)
    for rows, dim in config.sizes(device.type == "cuda"):
        for dtype in config.dtypes:
            place = f"{rows} x {dim} {dtype}"
            say(f"\n{place}: compiling, checking, timing {config.rounds} rounds")
            measured = measure_candidates(
                chosen, (rows, dim), dtype, config.modes, config.rounds, clock, device, missing
            )
            show.print_tables(measured, say)
            for name in [name for name in missing if name.endswith(place)]:
                say(f"left out: {name} ({missing[name]})")
            summary["rows"] += measured
            show.write_summary(config.out, summary)
    return summary


def choose_candidates(available: list[Candidate], words: list[str]) -> list[Candidate]:
    """Those with one of the words in their name, and Pre-Norm, which all are compared with, without and with gains."""
    for word in words:
        if not any(word in candidate.name for candidate in available):
            names = "; ".join(candidate.name for candidate in available)
            raise ConfigError(f"--only {word!r} is part of no candidate's name; here are {names}")
    chosen = [candidate for candidate in available if not words or any(word in candidate.name for word in words)]
    compiled = any(candidate.compiled for candidate in chosen)
    base = {PRE, GAINS, *((f"{PRE} compiled", f"{GAINS}, compiled") if compiled else ())}
    return [candidate for candidate in available if candidate in chosen or candidate.name in base]


def host_times(
    chosen: list[Candidate], config: OpsBench, device: torch.device, clock: Clock
) -> dict[str, dict[str, float]]:
    """Microseconds of the CPU for one forward and backward pass on tensors of 8 x 64, by dtype and candidate. One that
    cannot be compiled here is left out; `measure_candidates` names it and the reason."""
    microseconds: dict[str, dict[str, float]] = {}
    for dtype in config.dtypes:
        torch.compiler.reset()
        tensors = draw_inputs(*HOST_SHAPE, dtype, device)
        microseconds[dtype] = {}
        for candidate in chosen:
            try:
                seconds = host_seconds(program(candidate.specialise(), "both", tensors), clock)
            except Exception:  # compilers may fail in any way
                if not (candidate.compiled or candidate.optional):
                    raise
            else:
                microseconds[dtype][candidate.name] = 1e6 * seconds
    return microseconds
