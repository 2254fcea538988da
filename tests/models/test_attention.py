"""Rotary positions: angles at any distance, a rotation and its inverse."""

from __future__ import annotations

import torch

from geonorm.models.attention import rope, rotate

from .tiny import decoder, ids


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


def test_a_smaller_table_turns_the_first_dimensions() -> None:
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    part = rope(torch.arange(5), 4, 100.0)
    found = rotate(x, part)
    assert torch.equal(found[..., 4:], x[..., 4:]) and torch.equal(found[..., :4], rotate(x[..., :4], part))


def test_a_graph_of_any_length() -> None:
    """Whether attention is causal is no symbol of a length that varies: such a graph is exported, and is the model's
    at another length, where compilation of the second length that it sees broke the graph."""
    model = decoder(scheme="geonorm", layers=1).eval()
    length = torch.export.Dim("length", min=2, max=16)
    exported = torch.export.export(model, (ids(tokens=8),), dynamic_shapes=({1: length},), strict=False).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(ids(tokens=5)), model(ids(tokens=5)), rtol=1e-5, atol=1e-5)
