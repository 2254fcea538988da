"""How far one step turns the matrices that write to the stream.

Where a scheme's clamp binds, the loss no longer depends on the scale of what writes to the stream (o, down): its norm
then sets how far a step of the optimizer turns it.
"""

from __future__ import annotations

from collections import defaultdict
from math import atan2, sqrt
from statistics import fmean

import torch
from torch import Tensor

from ...models.decoder import Transformer
from ..distributed.parallel import local_part, sum_over_ranks
from .hooks import Hook, Row
from .state import TrainState

WRITERS = ("o", "down")
Copies = list[tuple[str, Tensor, Tensor]]
"""Role of a matrix, the matrix, and a copy of this rank's part of it."""


class WeightNorms(Hook):
    """Of a step that is evaluated, for the matrices that write to the stream: `angle_ROLE`, the mean angle in radians
    between a matrix before and after the step, and `norm_ROLE`, their mean Frobenius norm after it."""

    def after_backward(self, state: TrainState, evaluating: bool) -> None:
        self.before = copy_writers(state.model) if evaluating else []

    def after_step(self, state: TrainState, row: Row) -> None:
        row |= measure_turns(self.before)


@torch.no_grad()
def copy_writers(model: Transformer) -> Copies:
    """The matrices that write to the stream, as they are now."""
    return [(role, weight, local_part(weight).clone()) for role, weight, _, _ in model.weights() if role in WRITERS]


@torch.no_grad()
def measure_turns(before: Copies) -> dict[str, float]:
    """`angle_ROLE` and `norm_ROLE` of matrices against their copies."""
    values = defaultdict[str, list[float]](list)
    for role, weight, old in before:
        a, b = old.double(), local_part(weight).double()
        products = torch.stack([(a * a).sum(), (a * b).sum(), (b * b).sum()])
        aa, ab, bb = sum_over_ranks(products, weight).tolist()
        values[f"angle_{role}"].append(atan2(sqrt(max(0.0, aa * bb - ab * ab)), ab))
        values[f"norm_{role}"].append(sqrt(bb))
    return {name: fmean(each) for name, each in values.items()}
