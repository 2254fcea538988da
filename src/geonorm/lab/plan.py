"""What a run would be, without running it: built on the meta device, nothing written."""

from __future__ import annotations

import json

import torch

from ..nn.decoder import Decoder
from .config import TrainConfig, to_dict
from .optim import own_recipe


def plan(config: TrainConfig) -> str:
    """The resolved settings and the size of the run, as text. ConfigError for settings that do not make sense."""
    shape = config.decoder(config.scheme)
    with torch.device("meta"):
        model = Decoder(shape)
    parameters, matmul = model.parameter_count(), model.matmul_parameter_count()
    tokens = config.steps * config.batch_size * shape.context
    # 6 per matmul parameter, and 6 L width context for causal attention scores and values, forward and backward
    inside = matmul - shape.vocab_size * shape.width
    flops = 6 * inside + 6 * shape.layers * shape.width * shape.context
    lines = [
        json.dumps(to_dict(own_recipe(config)), indent=1),
        f"parameters          {parameters:,} ({matmul:,} in matrices)",
        f"tokens              {tokens:,} ({config.batch_size * shape.context:,} a step)",
        f"FLOPs per token     {flops:,}",
        f"FLOPs of the run    {flops * tokens:.3g}",
        f"weights, gradients and AdamW state in fp32   {16 * parameters / 2**20:,.1f} MiB",
    ]
    return "\n".join(lines)
