"""What a finished run says about the uniform vector: the cosine before each norm beside its null, from initialisation
to the last step, the length of the stream there, and how much of what its weights learned lies along the vector of
ones."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from geonorm.lab.distributed.ranks import ALONE
from geonorm.lab.open import open_run
from geonorm.lab.resolve import resolve
from geonorm.lab.runs.folder import RunFolder, read_rows
from geonorm.lab.train import trace
from geonorm.lab.train.state import build_state
from geonorm.lab.train.text import load_text
from geonorm.models import Decoder

CPU = torch.device("cpu")
NULLS = ("cos_null_before", "cos_null_low_before", "cos_null_high_before")
KEPT = ("cos_ones_before", "cos_ones_after", *NULLS, "norm_before")
WRITERS = {"embed": -1, "position": -1, "o": 0, "down": 0}
"""Weights whose values are added to the stream, and the dimension that is the stream's."""


def deep(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Norms that have a sub-layer before them: the embedding alone is not what training shapes first."""
    return [row for row in rows if (row["layer"], row["kind"]) != (0, "attn") and row["kind"] != "entry"]


def at_start(path: Path) -> list[dict[str, Any]]:
    """Rows of norms.jsonl for the weights as they were drawn."""
    config = RunFolder(path).config()
    state = build_state(resolve(config, ALONE), load_text(config), CPU)
    return trace.trace(state.model, state.validation.trace_ids(), 0, {}).norms


def course(path: Path) -> dict[int, dict[str, float]]:
    """By step: |cos| to ones, its null with the 5th and 95th percentile of random directions, and |x| before the norm,
    mean over deep norms."""
    rows = at_start(path) + list(read_rows(path / "norms.jsonl"))
    found = {}
    for step in sorted({row["step"] for row in rows}):
        here = deep([row for row in rows if row["step"] == step])
        found[step] = {key: mean(row[key] for row in here) for key in KEPT}
    return found


def learned_shares(path: Path) -> dict[str, float]:
    """By role: share of the squared change of a weight since initialisation that lies along ones in the stream's
    dimension, times dim: 1 is what a change without direction has, 0 one that no gradient drove there."""
    run = open_run(path, CPU)
    model, config = run.model, run.config
    torch.manual_seed(config.seed)
    start = Decoder(config.shape(config.scheme))
    along: dict[str, float] = {}
    total: dict[str, float] = {}
    for (role, now, _, _), (_, before, _, _) in zip(model.weights(), start.weights(), strict=True):
        if role in WRITERS:
            change: Tensor = (now - before).detach().double()
            along[role] = along.get(role, 0.0) + float(change.sum(WRITERS[role]).square().sum())
            total[role] = total.get(role, 0.0) + float(change.square().sum())
    return {role: along[role] / total[role] for role in along}


def facts(path: Path) -> dict[str, Any] | None:
    """One line of results.jsonl; None for a run that did not finish."""
    run = RunFolder(path)
    summary = run.summary()
    if summary is None or summary["status"] != "finished":
        return None
    config = run.config()
    return {
        "run": path.name,
        "seed": config.seed,
        "lr": config.lr,
        "batch_size": config.batch_size,
        "optimizer": config.optim.name,
        "model": {key: value for key, value in vars(config.model).items() if value is not None},
        **{key: summary[key] for key in ("scheme", "status", "steps", "tokens", "parameters", "val_loss")},
        "course": course(path),
        "learned_share": learned_shares(path),
        "norms": [
            {key: row[key] for key in ("layer", "kind", "norm", *KEPT)}
            for row in read_rows(path / "norms.jsonl")
            if row["step"] == summary["steps"]
        ],
    }
