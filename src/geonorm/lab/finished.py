"""A run that has ended well, read as a whole: what an export or a report of its model needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..nn.decoder import Decoder
from .config import TrainConfig
from .data import Tokenizer, load_tokenizer
from .data.source import NO_TEXT
from .runs.made import parts
from .runs.run import Run, read_rows
from .train.loop import load_run


@dataclass(frozen=True)
class Finished:
    """Model in its last state and eval mode, settings, and what the run directory says of data, losses and machine."""

    model: Decoder
    config: TrainConfig
    tokenizer: Tokenizer
    summary: dict[str, Any]
    environment: dict[str, Any]
    """Of the part of the run that ended it."""
    rows: list[dict[str, Any]]


def finished(path: Path) -> Finished:
    """The run in a directory, on the CPU. CheckpointError if there is none or it has not come to its end."""
    run = Run(path)
    run.config()
    summary = run.summary() or {"status": "running or interrupted"}
    if summary["status"] != "finished":
        raise CheckpointError(
            f"{path} is not finished ({summary['status']}): the command that began it goes on with it"
        )
    model, config, tokenizer = load_run(path, torch.device("cpu"))
    environment = parts(path)
    if not environment:
        raise CheckpointError(f"{path / 'environment.json'} is missing: the run directory is damaged")
    rows = list(read_rows(run.metrics))
    return Finished(
        model, config, load_tokenizer(str(tokenizer), NO_TEXT, model.config.vocab_size), summary, environment[-1], rows
    )
