"""How far one step turns the matrices that write to the stream.

Where a scheme's clamp binds, the loss no longer depends on the scale of what writes to the stream (o, down): its norm
then sets how far a step of the optimizer turns it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.trunk import Trunk
from ..distributed.parallel import local_part, sum_over_ranks

WRITERS = ("o", "down")


def product(a: Tensor, b: Tensor, of: Tensor) -> float:
    """<a, b> of this rank's parts of a weight, summed over the ranks that share it."""
    return sum_over_ranks((a.double() * b.double()).sum(), [of]).item()


class Turning:
    """What one step does to the matrices that write to the stream: `angle_ROLE`, the mean angle in radians between a
    matrix before and after it, and `norm_ROLE`, their mean Frobenius norm after it."""

    @torch.no_grad()
    def __init__(self, model: Trunk) -> None:
        self.before = [
            (role, weight, local_part(weight).clone()) for role, weight, _, _ in model.weights() if role in WRITERS
        ]

    @torch.no_grad()
    def row(self) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for role, weight, old in self.before:
            new = local_part(weight)
            aa, ab, bb = product(old, old, weight), product(old, new, weight), product(new, new, weight)
            sine = torch.tensor(max(0.0, aa * bb - ab * ab), dtype=torch.float64).sqrt()
            turn = torch.atan2(sine, torch.tensor(ab, dtype=torch.float64)).item()
            found.setdefault(f"angle_{role}", []).append(turn)
            found.setdefault(f"norm_{role}", []).append(bb**0.5)
        return {name: sum(values) / len(values) for name, values in found.items()}
