"""The mean of the weights over the last steps of a run: a second point beside the last one, with less noise.

torch.optim.swa_utils.AveragedModel holds its mean as a deep copy of the model, which FSDP refuses to make. So this is a
mean of the parameters alone, sharded as they are.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ...models.decoder import Transformer
from ..distributed.parallel import local_part
from ..schedule import Schedule
from .hooks import Hook, Row
from .state import TrainState
from .validation import MEASURES


class Averaging(Hook):
    """Running mean of all parameters over the last steps, in fp32 like the weights. The schedule says how many."""

    def __init__(self, model: Transformer, schedule: Schedule) -> None:
        self.model = model
        self.first = schedule.averaging_start + 1
        self.means = {name: p.detach().clone() for name, p in model.named_parameters() if schedule.average}
        self.tensors = {f"average.{name}": mean for name, mean in self.means.items()}

    def after_step(self, state: TrainState, row: Row) -> None:
        self.update(state.step)

    def on_evaluation(self, state: TrainState, row: Row) -> None:
        """At the end of a run, measure the mean weights as the last weights are; names end in `_average`."""
        if self.means and state.step == state.schedule.steps:
            state.parallel_model.reshard()
            with self.apply():
                measured = state.validation.measure_end(self.model)
                state.parallel_model.reshard()
            row |= {f"{key}_average": measured[key] for key in MEASURES if key in measured}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after a step to the mean."""
        if not self.means or step < self.first:
            return
        means = [local_part(mean) for mean in self.means.values()]
        weights = [local_part(p) for p in self.model.parameters()]
        if step == self.first:  # a mean with weight 0 is not nothing: after a rewind it may hold NaN
            torch._foreach_copy_(means, weights)
        else:
            torch._foreach_lerp_(means, weights, 1 / (step - self.first + 1))

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Inside, the model has the mean in place of its weights, under the constraints of its schemes."""
        last_weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        try:
            self.put(self.means)
            self.model.constrain()
            yield
        finally:
            self.put(last_weights)

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor]) -> None:
        """Copies values into the parameters of the model."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(values[name])
        torch.clear_autocast_cache()  # under bf16 it holds casts of the weights that stood here
