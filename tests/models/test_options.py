"""Options that every scheme may have: ReLU squared, a gate on attention, capped logits; in transformers too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig
from geonorm.hf.export import adapt

SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 11, "context": 8}
IDS = torch.arange(8).view(1, 8) % 11


def model(**changes: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(**(SHAPE | changes))).double()


def test_relu_squared_is_two_matrices() -> None:
    block = model(mlp="relu2", scheme="pre").blocks[0].mlp.branch
    y = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = (y @ block.up.weight.T).clamp(min=0) ** 2 @ block.down.weight.T
    torch.testing.assert_close(block(y), expected)
    assert block.gate is None


def test_a_gate_on_attention_is_its_equation() -> None:
    """o (a * sigmoid(G y)), a what attention found; with G = 0 half of what it is without."""
    branch = model(attn_gate=True, scheme="pre").blocks[0].attn.branch
    plain = model(scheme="pre").blocks[0].attn.branch
    y = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turns = (torch.ones(5, 4, dtype=torch.float64), torch.zeros(5, 4, dtype=torch.float64))
    for name in "qkvo":
        assert torch.equal(branch.get_parameter(f"{name}.weight"), plain.get_parameter(f"{name}.weight"))
    plain.o.weight.data.copy_(torch.eye(16))
    found = plain(y, positions=turns)
    gate = 1 / (1 + torch.exp(-y @ branch.gate.weight.T))
    torch.testing.assert_close(branch(y, positions=turns), (found * gate) @ branch.o.weight.T)
    assert branch.gate.role == "q" and branch.gate.weight.std().item() == pytest.approx(16**-0.5, rel=0.15)


@pytest.mark.parametrize("scheme", ["pre", "ngpt"])
def test_capped_logits_are_c_tanh_of_what_they_were(scheme: str) -> None:
    plain, capped = model(scheme=scheme), model(scheme=scheme, soft_cap=0.5)
    logits = capped(IDS)
    torch.testing.assert_close(logits, 0.5 * torch.tanh(plain(IDS) / 0.5))
    assert logits.abs().max() < 0.5 < plain(IDS).abs().max()
    half = model(scheme="pre", soft_cap=3.0).bfloat16()
    assert half(IDS).dtype == torch.float32  # rounded once, before


@pytest.mark.parametrize(
    "changes", [{"mlp": "relu2"}, {"attn_gate": True}, {"soft_cap": 0.7}, {"soft_cap": 0.7, "scheme": "ngpt"}]
)
def test_the_model_in_transformers_is_the_same(changes: dict[str, Any]) -> None:
    ours = model(**changes)
    theirs = adapt(ours)
    torch.testing.assert_close(theirs(input_ids=IDS).logits, ours(IDS))
