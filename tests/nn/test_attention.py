"""Rotary positions: angles at any distance, a rotation and its inverse."""

from __future__ import annotations

import torch

from geonorm.nn.attention import rope, rotate


def test_angles_of_far_positions() -> None:
    positions, head_dim, theta = torch.tensor([0, 1, 2049, 70_001, 1_000_003]), 16, 10_000.0
    rates = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = positions.double()[:, None] * rates
    cos, sin = rope(positions, head_dim, theta)
    # an angle of a million radians is known to a few hundredths of one in fp32, the first thousand to 1e-4
    allowed = 4 * torch.finfo(torch.float32).eps * angles.clamp(min=1)
    assert ((cos - angles.cos()).abs() <= allowed).all() and ((sin - angles.sin()).abs() <= allowed).all()


def test_a_turn_keeps_lengths_and_its_gradient_turns_back() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    table = tuple(part.double() for part in rope(torch.arange(5), 8, 100.0))
    turned = rotate(x, (table[0], table[1]))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    (back,) = torch.autograd.grad(turned, x, turned.detach())
    torch.testing.assert_close(back, x.detach(), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(rotate(x, (table[0], table[1])), turned)
