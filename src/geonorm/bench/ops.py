"""`geonorm bench ops`: the geodesic update, what Pre-Norm does at its place, and a copy of as many bytes, in turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..lab.runs import environment
from ..ops import backends
from . import show
from .candidates import GAINS, PRE, UpdateCandidate, candidates
from .config import OpsBench
from .measure import measure_tables, prepare_bench, program, specialise
from .timing import Clock, host_seconds

HOST_SHAPE = (8, 64)
"""So small that only the cost of starting the work is left."""


def bench_ops(config: OpsBench, say: show.Say = print) -> dict[str, Any]:
    """Checks, times, prints and, with `out`, writes summary.json and figures/; returns the summary. WrongResult before
    anything of a shape is timed if a candidate differs from fp64; ConfigError for a word that fits no candidate."""
    device, clock = prepare_bench(config)
    found, missing = candidates(device)
    chosen = choose_candidates(found, config.only)
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
    measure_tables(config, summary, chosen, PRE, clock, device, say)
    if config.out:
        for path in show.draw_figures(summary["rows"], Path(config.out) / "figures", summary["environment"]):
            say(str(path))
    return summary


def choose_candidates(found: list[UpdateCandidate], words: list[str]) -> list[UpdateCandidate]:
    """Those with one of the words in their name, and Pre-Norm, which all are compared with, without and with gains."""
    for word in words:
        if not any(word in candidate.name for candidate in found):
            names = "; ".join(candidate.name for candidate in found)
            raise ConfigError(f"--only {word!r} is part of no candidate's name; here are {names}")
    chosen = [candidate for candidate in found if not words or any(word in candidate.name for word in words)]
    compiled = any(candidate.compiled for candidate in chosen)
    base = {PRE, GAINS, *((f"{PRE} compiled", f"{GAINS}, compiled") if compiled else ())}
    return [candidate for candidate in found if candidate in chosen or candidate.name in base]


def host_times(
    chosen: list[UpdateCandidate], config: OpsBench, device: torch.device, clock: Clock
) -> dict[str, dict[str, float]]:
    """Microseconds of the CPU for one forward and backward pass on tensors of 8 x 64, by dtype and candidate. One that
    cannot be compiled here is left out; where it is measured it is said to be missing, and why."""
    found: dict[str, dict[str, float]] = {}
    for dtype in config.dtypes:
        torch.compiler.reset()
        tensors = UpdateCandidate.inputs(*HOST_SHAPE, dtype, device)
        found[dtype] = {}
        for candidate in chosen:
            try:
                seconds = host_seconds(program(specialise(candidate), "both", tensors), clock)
            except Exception:  # compilers may fail in any way
                if not (candidate.compiled or candidate.optional):
                    raise
            else:
                found[dtype][candidate.name] = 1e6 * seconds
    return found
