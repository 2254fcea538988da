"""Matrices watched from step to step: their norm held, their turning measured.

Where a scheme's clamp binds, the loss no longer depends on the scale of what writes to the stream (o, down): its norm
then sets how far a step of the optimizer turns it. Held at its initial norm, that cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import ConfigError
from ...nn.trunk import Trunk
from ..scale.parallel import local_part, sum_over_ranks

WRITERS = ("o", "down")


def product(a: Tensor, b: Tensor, of: Tensor) -> float:
    """<a, b> of this rank's parts of a weight, summed over the ranks that share it."""
    return sum_over_ranks((a.double() * b.double()).sum(), [of]).item()


def weights_of(model: Trunk, roles: Sequence[str]) -> list[tuple[str, Tensor]]:
    return [(role, weight) for role, weight, _, _ in model.weights() if role in roles]


class HeldNorms:
    """Puts the matrices of some roles back to the norm they have now. ConfigError for a role that the model has no
    matrix of, and for a matrix that begins at 0."""

    @torch.no_grad()
    def __init__(self, model: Trunk, roles: Sequence[str]) -> None:
        found = weights_of(model, roles)
        if absent := set(roles) - {role for role, _ in found}:
            raise ConfigError(f"optim.hold_norms: this model has no matrix {', '.join(sorted(absent))}")
        self.weights = [weight for _, weight in found]
        self.squares = [product(local_part(w), local_part(w), w) for w in self.weights]
        if not all(self.squares):
            raise ConfigError("optim.hold_norms holds matrices that begin at 0; choose another model.init")

    @torch.no_grad()
    def restore(self) -> None:
        for weight, square in zip(self.weights, self.squares, strict=True):
            own = local_part(weight)
            own.mul_((square / product(own, own, weight)) ** 0.5)


class Turning:
    """What one step does to the matrices that write to the stream: `angle_ROLE`, the mean angle in radians between a
    matrix before and after it, and `norm_ROLE`, their mean Frobenius norm after it."""

    @torch.no_grad()
    def __init__(self, model: Trunk) -> None:
        self.before = [(role, weight, local_part(weight).clone()) for role, weight in weights_of(model, WRITERS)]

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
