"""What every scheme's class has in common: fields by name, a step of 1 by default."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature

import pytest
import torch

from geonorm import Site, names, parse
from geonorm.norms import NormSpec
from geonorm.schemes import slot_at
from geonorm.schemes.grammar import find

POSITIONAL = {
    "mix": ["a", "b", "share"],
    "first": ["a", "b", "blocks"],
    "per_kind": ["attn", "mlp"],
    "prores": ["scheme", "steps"],
}


@pytest.mark.parametrize("name", names())
def test_fields_have_names_and_the_step_is_one(name: str) -> None:
    cls = find(name)
    assert [field.name for field in fields(cls) if not field.kw_only] == POSITIONAL.get(name, [])
    assert signature(cls.write).parameters["h"].default == 1.0


def test_layerscale_starts_lower_in_deeper_models() -> None:
    def start(depth: int) -> float:
        parts = parse("layerscale").parts(Site(0, "mlp", depth), NormSpec("rms", 4))
        return parts["scale"]().mean().item()

    assert [start(depth) for depth in (18, 19, 24, 25)] == pytest.approx([0.1, 1e-5, 1e-5, 1e-6])


@pytest.mark.parametrize("heads", [1, 2])
def test_queries_of_ngpt_carry_the_scale_of_softmax(heads: int) -> None:
    """s^2 N(q) head_dim at the start, whose s is 1: the softmax over q k / sqrt(head_dim) sees cosines times
    sqrt(head_dim)."""
    slot = slot_at(parse("ngpt"), "q_rope", (heads, 8), 8 * heads, Site(0, "attn", 4))
    assert slot is not None
    q = slot(torch.randn(3, heads, 8))
    torch.testing.assert_close(q.norm(dim=-1), torch.full((3, heads), 8.0))
