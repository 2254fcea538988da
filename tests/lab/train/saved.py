"""What two checkpoints have in common."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Weights, optimizer state and random states of a checkpoint, by KIND.NAME."""
    files = sorted((run / "checkpoints" / f"step-{step}").glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def same(first: Path, second: Path, step: int) -> bool:
    a, b = tensors(first, step), tensors(second, step)
    return bool(a) and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
