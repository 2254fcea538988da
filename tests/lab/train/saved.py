"""What two checkpoints have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Weights, optimizer state and random states of a checkpoint, by KIND.NAME."""
    files = sorted((run / "checkpoints" / f"step-{step}").glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def same(first: Path, second: Path, step: int) -> bool:
    """True if two checkpoints are equal to the bit: the checksums of their files, and what is no tensor."""

    def read(run: Path) -> list[Any]:
        state = json.loads((run / "checkpoints" / f"step-{step}" / "state.json").read_text())
        return [state[key] for key in ("sha256", "optimizer", "guard", "batch_offset")]

    return read(first) == read(second)
