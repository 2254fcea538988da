"""summary.json, which says how a run ended, and lines about a run for people."""

import resource
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from ...errors import CheckpointError
from ...parsing import finite_or_none
from ...progress import span
from ..resolve import Resolved
from ..runs.folder import RunFolder, digest_of, read_rows, rows_sha256_of
from ..runs.records import MetricRow, Summary
from ..statistics.spikes import find_spikes
from ..storage import read_state, weights_sha256

EVALUATED = """
    val_loss val_bpb val_accuracy val_loss_part val_loss_average val_bpb_average val_accuracy_average val_tokens
""".split()
"""Columns of the last evaluation that a summary has."""


def summarise(run: RunFolder, about: dict[str, Any], device: torch.device) -> Summary:
    """Write summary.json from the run's metrics and what else is known about it, and return it. CheckpointError if a
    finished run has lost rows."""
    if run.writes and about["status"] == "finished":
        if run.rows_sha256 != rows_sha256_of(run.path):
            raise CheckpointError(f"{run.path} has lost rows while it trained, or has others: choose another --out")
        state = read_state(run.checkpoints / f"step-{about['steps']}")
        about |= {"rows_sha256": run.rows_sha256, "weights_sha256": weights_sha256(state)}
    rows = [row for row in map(MetricRow.read_or_none, read_rows(run.metrics)) if row]
    speeds = [row.tokens_per_second for row in rows if row.tokens_per_second is not None]
    last = next((row for row in reversed(rows) if row.val_loss is not None), None)
    tail = [row.loss for row in rows[-max(1, len(rows) // 10) :]]
    summary = Summary.read(
        {
            **about,
            "tokens": rows[-1].tokens if rows else 0,
            "train_loss": finite_or_none(sum(tail) / len(tail)) if tail else None,
            **find_spikes(rows),
            "tokens_per_second": median(speeds) if speeds else None,
            "peak_memory_bytes": peak_memory(device),
            **{key: last.get(key) for key in EVALUATED if last},
        }
    )
    row = summary.row()
    run.write("summary.json", {**row, "sha256": digest_of(row)})
    return summary


def describe(setup: Resolved, parameters: int, device: torch.device) -> Iterator[str]:
    """The lines with which the output of a run begins."""
    schedule, tokens = setup.schedule, setup.text.step_tokens
    length = f"{schedule.steps:,} steps of {tokens:,} tokens, {schedule.steps * tokens / parameters:.3g} per parameter"
    rate = " ".join([f"lr {schedule.lr:g}", *schedule.optim.rates])
    yield f"{setup.shape.scheme}: {parameters:,} parameters, {setup.runtime.dtype} on {device.type}"
    yield f"{length}; {rate}, {schedule.optim.schedule}; {setup.text.source}"


def loss_text(row: dict[str, Any]) -> str:
    return "loss not finite" if row["loss"] is None else f"loss {row['loss']:.4f}"


def progress_line(row: dict[str, Any], steps: int, left: float | None) -> str:
    """How far a run is, in a line of 80 columns. left: seconds to its end."""
    parts = [f"step {row['step']}/{steps}", loss_text(row), f"{row['tokens_per_second']:,.0f} tokens/s"]
    if "val_loss" in row:
        parts.insert(2, f"val {row['val_loss']:.4f}")
    if "val_accuracy" in row:
        parts.insert(3, f"accuracy {row['val_accuracy']:.1%}")
    if left is not None and row["step"] < steps:
        parts.append(f"{span(left)} left")
    return "  ".join(parts)


def result_line(summary: dict[str, Any]) -> str:
    """The result of a run in a line: its held-out loss and, for text, bits per byte."""
    bpb = summary.get("val_bpb")
    return f"val_loss {summary['val_loss']:.4f}" + ("" if bpb is None else f"  bits per byte {bpb:.4f}")


def peak_memory(device: torch.device) -> int:
    """Bytes at the peak: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
