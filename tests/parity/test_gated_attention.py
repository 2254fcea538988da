"""Gated attention: with queries and keys normalised by head it is that of transformers' Qwen3-Next, rotary positions,
grouped queries and the gradient of every parameter included."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from geonorm import DecoderConfig, Site, parse
from geonorm.models.attention import SelfAttention, rope

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")

WIDTH, HEADS, GROUPS, DIM, TOKENS = 16, 4, 2, 6, 7


def interleave(queries: Tensor, gate: Tensor) -> Tensor:
    """One matrix of theirs has each head's rows for queries, then those for its gate."""
    return torch.stack((queries.unflatten(0, (HEADS, DIM)), gate.unflatten(0, (HEADS, DIM))), 1).flatten(0, 2)


def test_gated_attention_is_that_of_qwen3_next(agree: Callable[..., None]) -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    shape = DecoderConfig(
        "pre", width=WIDTH, heads=HEADS, kv_heads=GROUPS, head_width=DIM, attn_gate=True, qk_norm="head", eps=1e-6
    )
    config = transformers.Qwen3NextConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=DIM, attention_bias=False,
        rms_norm_eps=1e-6, num_hidden_layers=1,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    ours = SelfAttention(shape, parse("pre"), Site(0, "attn", 1)).double()
    theirs = Qwen3NextAttention(config, 0).double()
    for parameter in ours.parameters():
        parameter.data.normal_(0.0, 0.5)
    with torch.no_grad():
        theirs.q_proj.weight.copy_(interleave(ours.q.weight, ours.gate.weight))
        for name in "kvo":
            theirs.get_parameter(f"{name}_proj.weight").copy_(ours.get_parameter(f"{name}.weight"))
        for name in "qk":  # their gains begin at 0 and stand for one more
            theirs.get_parameter(f"{name}_norm.weight").copy_(ours.norms[name].weight - 1)
    y = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    cos, sin = (part.double() for part in rope(torch.arange(TOKENS), DIM, 1e4))
    whole = [torch.cat((part, part), -1).unsqueeze(0) for part in (cos, sin)]
    found, (expected, _) = ours(y, positions=(cos, sin)), theirs(y, tuple(whole), None)
    agree(found, expected, "update")
    for update in (found, expected):
        update.square().sum().backward()
    agree(interleave(ours.q.weight.grad, ours.gate.weight.grad), theirs.q_proj.weight.grad, "gradient of q and gate")
    for name in "kvo":
        own, other = ours.get_parameter(f"{name}.weight"), theirs.get_parameter(f"{name}_proj.weight")
        agree(own.grad, other.grad, f"gradient of {name}")
    for name in "qk":
        agree(
            ours.norms[name].weight.grad, theirs.get_parameter(f"{name}_norm.weight").grad, f"gradient of norm {name}"
        )
