"""LayerNorm in three steps, and what each norm loses for good."""

from __future__ import annotations

import torch
from torch import Tensor

from geonorm.probes.steps import layer_norm, normalise, remove_uniform, rms_norm, scale, uniform_component

DIM = 16


def rows(seed: int = 0) -> Tensor:
    return torch.randn(50, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.7


def test_three_steps_are_layer_norm() -> None:
    x = rows()
    torch.testing.assert_close(layer_norm(x), torch.nn.functional.layer_norm(x, (DIM,), eps=0.0), rtol=0, atol=1e-13)
    torch.testing.assert_close(rms_norm(x), torch.nn.functional.rms_norm(x, (DIM,), eps=1e-300), rtol=0, atol=1e-13)
    assert torch.equal(layer_norm(x), scale(normalise(remove_uniform(x))))


def test_each_step_is_what_it_says() -> None:
    x = rows()
    ones = torch.ones(DIM, dtype=torch.float64)
    flat = remove_uniform(x)
    torch.testing.assert_close(flat @ ones, torch.zeros(50, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(flat + uniform_component(x) * ones / DIM**0.5, x, rtol=0, atol=1e-14)
    torch.testing.assert_close(remove_uniform(flat), flat, rtol=0, atol=1e-15)  # a projection
    torch.testing.assert_close(normalise(x).norm(dim=-1), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(scale(x).norm(dim=-1), 4 * x.norm(dim=-1), rtol=1e-15, atol=0)
    assert normalise(torch.zeros(2, 3)).abs().max() == 0


def lost(norm: object, x: Tensor) -> int:
    """Directions in which a token can move without the norm's output noticing: dim less the rank of its Jacobian."""
    jacobian = torch.autograd.functional.jacobian(norm, x)  # type: ignore[arg-type]
    return DIM - int((torch.linalg.svdvals(jacobian) > 1e-9).sum())


def test_what_is_lost_for_good() -> None:
    x = rows()[0]
    ones = torch.ones(DIM, dtype=torch.float64)
    assert lost(remove_uniform, x) == 1 and lost(normalise, x) == 1 and lost(scale, x) == 0
    assert lost(layer_norm, x) == 2 and lost(rms_norm, x) == 1
    # LayerNorm cannot tell apart what differs by a uniform component or a positive factor; RMSNorm the factor alone
    for other in (x + 3 * ones, 5 * x, 5 * x - 2 * ones):
        torch.testing.assert_close(layer_norm(other), layer_norm(x), rtol=0, atol=1e-13)
    torch.testing.assert_close(rms_norm(5 * x), rms_norm(x), rtol=0, atol=1e-13)
    assert (rms_norm(x + 3 * ones) - rms_norm(x)).norm() > 0.5
    assert (
        lost(lambda y: 2.0 * layer_norm(y) * (1 + torch.arange(DIM)) + 1, x) == 2
    )  # gains and biases bring nothing back
