"""Windows and attention dropout in transformers: its masks, caches and attention functions see what a decoder sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from geonorm import Decoder  # noqa: E402
from geonorm.hf.export import adapt  # noqa: E402
from geonorm.models import generate  # noqa: E402

from ..rows import each  # noqa: E402

FIELDS: list[dict[str, Any]] = [{"sliding_window": 4}, {"sliding_window": 4, "full_every": 2}]
GREEDY = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@torch.no_grad()
@each("fields", FIELDS)
def test_the_model_is_the_decoder_and_writes_the_same(fields: dict[str, Any], build: Any, ids: Any) -> None:
    torch.manual_seed(0)
    decoder = Decoder(build(**fields).config.shape()).eval()
    model = adapt(decoder, pad_token_id=0)
    torch.testing.assert_close(model(ids).logits, decoder(ids), rtol=1e-5, atol=1e-5)
    wanted = torch.cat((ids, *generate(decoder, ids, 6, temperature=0.0)), dim=1)
    assert torch.equal(model.generate(ids, **GREEDY), wanted)
    assert torch.equal(model.generate(ids, use_cache=False, **GREEDY), wanted)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **GREEDY), wanted)


@torch.no_grad()
@each("fields", FIELDS)
def test_padding_and_attention_functions(fields: dict[str, Any], build: Any, ids: Any) -> None:
    model = build(**fields)
    wanted = model(ids, output_hidden_states=True)
    padded = torch.cat((torch.zeros(2, 5, dtype=torch.long), ids), dim=1)
    seen = (torch.arange(14) >= 5).long().expand(2, -1)
    at = (torch.arange(14) - 5).clamp(min=0).expand(2, -1)
    shifted = model(padded, attention_mask=seen, position_ids=at).logits[:, 5:]
    torch.testing.assert_close(shifted, wanted.logits, rtol=1e-4, atol=1e-5)
    model.set_attn_implementation("eager")
    found = model(ids, output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(found.hidden_states, wanted.hidden_states, rtol=1e-4, atol=1e-5)
    beyond = torch.ones(9, 9).tril(-4).bool()
    assert [bool(weights[..., beyond].any()) for weights in found.attentions] == [False, "full_every" in fields]


def test_dropout_is_for_training(build: Any, ids: Any) -> None:
    model, plain = build(attention_dropout=0.4), build()
    for function in ("sdpa", "eager"):
        model.set_attn_implementation(function)
        torch.testing.assert_close(model.eval()(ids).logits, plain(ids).logits, rtol=1e-5, atol=1e-5)
        model.train()
        assert not torch.allclose(model(ids).logits, model(ids).logits, atol=1e-4), function
