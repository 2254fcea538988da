"""The mean of the weights over the last steps of a run: a second point beside the last one, with less noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ...models.trunk import Trunk
from ..config import TrainConfig
from ..distributed.parallel import local_part

KIND = "average"
"""What the file of a checkpoint is called."""


def averaging_start(config: TrainConfig) -> int:
    """The step after which weights are averaged."""
    return config.steps - (max(1, round(config.evaluation.average * config.steps)) if config.evaluation.average else 0)


class Average:
    """Running mean in fp32 (fp64 for fp64) of all parameters over the last `evaluation.average` of the steps."""

    def __init__(self, model: Trunk, config: TrainConfig) -> None:
        self.model = model
        self.first = averaging_start(config) + 1
        self.means = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in model.named_parameters()
            if config.evaluation.average
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after a step."""
        if not self.means or step < self.first:
            return
        means = [local_part(mean) for mean in self.means.values()]
        weights = [local_part(p).to(mean.dtype) for p, mean in zip(self.model.parameters(), means, strict=True)]
        if step == self.first:  # a mean with weight 0 is not nothing: after a rewind it may hold NaN
            torch._foreach_copy_(means, weights)
        else:
            torch._foreach_lerp_(means, weights, 1 / (step - self.first + 1))

    @contextmanager
    def apply(self) -> Iterator[None]:
        """The model with the mean in place of its weights, under the constraints of its schemes; afterwards its own."""
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        try:
            self.put(self.means)
            self.model.constrain()
            yield
        finally:
            self.put(own)

    @torch.no_grad()
    def put(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(values[name])
        torch.clear_autocast_cache()  # under bf16 it holds casts of the weights that stood here

    def tensors(self, step: int | None = None) -> dict[str, Tensor]:
        """What a checkpoint of a step holds of it, by name; without a step: room for what one may hold."""
        began = step is None or step >= self.first
        return {f"{KIND}.{name}": mean for name, mean in self.means.items()} if began else {}
