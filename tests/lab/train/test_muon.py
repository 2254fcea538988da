"""Muon on a CPU: torch's own steps, but for the rounding of its bfloat16."""

from __future__ import annotations

from typing import Any

import torch

from geonorm.lab.train.muon import Muon, orthogonalize

from ...rows import each

SHAPES = [(8, 8), (4, 12), (12, 4)]


def steps(kind: type[torch.optim.Muon], shape: tuple[int, int], count: int = 3, **more: object) -> torch.Tensor:
    """The weight after some steps on the same gradients."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape, generator=draw))
    settings: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.5, "adjust_lr_fn": "match_rms_adamw", **more}
    optimizer = kind([weight], **settings)
    for _ in range(count):
        weight.grad = torch.randn(shape, generator=draw)
        optimizer.step()
    return weight.detach()


@each("shape", SHAPES)
@each("nesterov", [True, False])
def test_steps_are_torchs_to_the_rounding_of_bfloat16(shape: tuple[int, int], nesterov: bool) -> None:
    ours, theirs = (steps(kind, shape, nesterov=nesterov) for kind in (Muon, torch.optim.Muon))
    assert 0 < (ours - theirs).norm() / theirs.norm() < 0.02
    assert (steps(Muon, shape, 1) - steps(Muon, shape, 0)).norm() > 0.1


@each("shape", SHAPES)
def test_singular_values_go_through_the_polynomial_and_vectors_stay(shape: tuple[int, int]) -> None:
    """The equation on the singular value decomposition: u, v stay, s -> a s + b s^3 + c s^5, five times. Zero is no
    division."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b, c = 3.4445, -4.7750, 2.0315
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    result = orthogonalize(matrix, (a, b, c), 5, 1e-7)
    torch.testing.assert_close(result, u @ s.diag() @ v, rtol=1e-12, atol=1e-12)
    assert orthogonalize(matrix.float(), (a, b, c), 5, 1e-7).dtype == torch.float32
    assert not orthogonalize(0 * matrix, (a, b, c), 5, 1e-7).any()
