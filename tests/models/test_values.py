"""What attention and head may have besides: value residual and embeddings, gates, capped logits; in transformers."""

from typing import Any

import pytest
import torch
from torch import nn

from geonorm import Decoder, DecoderConfig
from geonorm.errors import ConfigError
from geonorm.hf.export import adapt
from geonorm.models.attention import has_token_values

SHAPE = dict[str, Any](layers=3, width=16, heads=4, kv_heads=2, hidden=24, vocab_size=11, context=8)
IDS = torch.arange(16).view(2, 8) * 5 % 11


def model(values: str, scheme: str = "pre", **changes: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(scheme, values=values, **(SHAPE | changes))).double()


def test_every_second_block_has_a_table_the_last_among_them() -> None:
    for layers, found in ((1, [0]), (2, [1]), (3, [0, 2]), (4, [1, 3])):
        config = DecoderConfig(layers=layers, values="token")
        assert [n for n in range(layers) if has_token_values(config, n)] == found
    assert list(model("token").values) == ["0", "2"] and not model("first").values and not model("own").values


@pytest.mark.parametrize("values", ["first", "token"])
def test_without_the_others_it_is_the_plain_model(values: str) -> None:
    """All weights of the plain model are the same draws; a table of zeros, or v times one and v_1 times zero, is it."""
    plain, mixed = model("own"), model(values)
    own, v = dict(mixed.named_parameters()), "blocks.0.attn.branch.v.weight"
    assert torch.autograd.gradcheck(lambda weight: torch.func.functional_call(mixed, {v: weight}, (IDS,)), own[v])
    assert all(torch.equal(own[name], p) for name, p in plain.named_parameters())
    assert (mixed(IDS) - plain(IDS)).abs().max() > 0.01
    for name, p in own.items():
        if name.startswith("values."):
            nn.init.zeros_(p)
        elif name.endswith(("mix.own", "mix.first")):
            nn.init.constant_(p, float(name.endswith("own")))
    torch.testing.assert_close(mixed(IDS), plain(IDS), rtol=0, atol=1e-12)


def test_vectors_of_tokens_need_their_ids() -> None:
    with pytest.raises(ConfigError, match="give input_ids"):
        adapt(model("token"))(inputs_embeds=torch.zeros(1, 2, 16, dtype=torch.float64))


def test_a_gate_on_attention_starts_as_queries_do() -> None:
    gate = model("own", attn_gate=True).blocks[0].attn.branch.gate
    assert gate.role == "q" and gate.weight.std().item() == pytest.approx(16**-0.5, rel=0.15)


@pytest.mark.parametrize("scheme", ["pre", "ngpt"])
def test_capped_logits_are_c_tanh_of_what_they_were(scheme: str) -> None:
    plain, capped = model("own", scheme), model("own", scheme, soft_cap=0.5)
    logits = capped(IDS)
    torch.testing.assert_close(logits, 0.5 * torch.tanh(plain(IDS) / 0.5))
    assert logits.abs().max() < 0.5 < plain(IDS).abs().max()
    half = model("own", soft_cap=3.0).bfloat16()
    assert half(IDS).dtype == torch.float32  # rounded once, before
