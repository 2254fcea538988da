"""Decoders that are an architecture of transformers: the same function, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from geonorm import hf
from geonorm.errors import ConfigError
from geonorm.hf.layouts import LAYOUTS

from ..rows import each

GPT2 = {
    "norm": "layer", "norm_eps": 1e-5, "bias": True, "mlp": "gelu_tanh", "positions": "learned",
    "tie_word_embeddings": True, "num_key_value_heads": 4,
}  # fmt: skip
NEOX = {"norm": "layer", "norm_eps": 1e-5, "bias": True, "mlp": "gelu", "num_key_value_heads": 4}
WINDOW = {"sliding_window": 4}
SAME: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "pre(entry=embedding)", {}),
    ("llama", "pre", {"rope_theta": 5e5, "norm_eps": 1e-5}),
    ("llama", "pre", {"bias": True, "head_dim": 16}),
    ("llama", "pre(entry=embedding)", {"tie_word_embeddings": True}),
    ("mistral", "pre", {"head_dim": 16}),
    ("mistral", "pre", WINDOW),
    ("qwen2", "pre", {**WINDOW, "full_every": 2}),
    ("phi3", "pre", {"partial_rotary_factor": 0.5, **WINDOW}),
    ("qwen3", "pre", {"qk_norm": "head", "head_dim": 16}),
    ("qwen3", "pre", {"qk_norm": "head", **WINDOW, "full_every": 2}),
    ("olmo", "pre", {"norm": "layer", "gains": False, "norm_eps": 1e-5}),
    ("olmo2", "olmo2", {"qk_norm": "full", "head_dim": 16}),
    ("olmo3", "olmo2", {"qk_norm": "full", **WINDOW, "full_every": 2}),
    ("gemma2", "peri", {}),
    ("gemma2", "sandwich", {**WINDOW, "full_every": 2}),
    ("gpt2", "pre(entry=embedding)", {**GPT2, "attention_dropout": 0.2}),
    ("gpt2", "pre(entry=embedding)", {**GPT2, "bias": False, "norm_bias": False, "mlp": "gelu"}),
    ("gpt_neox", "pre", NEOX),
    ("gpt_neox", "pre", {**NEOX, "gains": False}),
    ("gpt_neox", "pre", {**NEOX, "block": "parallel", "mlp": "gelu_tanh", "partial_rotary_factor": 0.25}),
    ("starcoder2", "pre", {**NEOX, "num_key_value_heads": 2, "bias": False, **WINDOW}),
    ("stablelm", "pre", {"norm": "layer", "partial_rotary_factor": 0.25}),
]


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.detach().abs().max()))


@each("model_type, scheme, fields", SAME)
def test_a_scheme_becomes_an_architecture(
    model_type: str, scheme: str, fields: dict[str, Any], build: Any, ids: Any, tmp_path: Path
) -> None:
    model = build(scheme, **fields)
    made = hf.to_stock(model, model_type)
    close(made(ids).logits, model(ids).logits)
    made.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert theirs.config.model_type == model_type and type(theirs).__module__.startswith("transformers.")
    close(theirs(ids).logits, model(ids).logits)
    if model_type == "gpt2":  # its rates are 0.1 where a configuration says nothing
        rates = theirs.config.resid_pdrop, theirs.config.embd_pdrop, theirs.config.attn_pdrop
        assert rates == (0.0, 0.0, fields.get("attention_dropout", 0.0))


def test_the_first_that_is_equal_and_every_one_is_tested(build: Any) -> None:
    assert {layout.model_type for layout in LAYOUTS} == {row[0] for row in SAME}
    for scheme, fields, first in (("pre", {}, "llama"), ("pre", WINDOW, "mistral"), ("pre", NEOX, "gpt_neox")):
        assert hf.to_stock(build(scheme, **fields)).config.model_type == first


@each(
    "fields, name, message",
    [
        ({"sliding_window": 4, "full_every": 2}, "mistral", r"mistral has no equal for model.full_every=2, not None"),
        ({"num_key_value_heads": 2}, "gpt2", r"gpt2 has no equal for model.positions=rope, not learned; .*kv_heads=2"),
        ({"bias": True, "scheme": "pre"}, "qwen2", r"qwen2 has no bias at model\.layers\.0\.self_attn\.o_proj, and th"),
        ({}, "gemma2", r"pre.* is not gemma2, which is peri"),
        ({}, "lama", "unknown layout 'lama': did you mean 'llama'"),
    ],
)
def test_an_architecture_by_name_that_is_another(fields: dict[str, Any], name: str, message: str, build: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        hf.to_stock(build(**{"scheme": "pre(entry=embedding)", **fields}), name)


@each(
    "fields, said",
    [
        ({"scheme": "geonorm"}, "geonorm is no architecture of transformers"),
        ({"scheme": "pre(final=none)"}, "pre(final=none) is no architecture of transformers"),
        ({"scheme": "pre", "mlp": "gelu"}, "llama has no equal for model.mlp=gelu, not swiglu"),
        ({"scheme": "pre", "values": "first"}, "llama has no equal for model.values=first, not own"),
        ({"scheme": "olmo2"}, "olmo2 has no equal for model.qk_norm=none, not full"),
        ({"scheme": "pre", "tie_word_embeddings": True}, "pre normalises the embedding, so the head must have weights"),
        ({"scheme": "peri(entry=embedding)", "tie_word_embeddings": True}, "gemma2 scales the embedding, so the head"),
        ({"scheme": "pre", **GPT2}, "pre normalises the sum of embedding and position, and gpt2 does not"),
    ],
)
def test_what_has_no_equal_is_refused(fields: dict[str, Any], said: str, build: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        hf.to_stock(build(**fields))
    assert str(caught.value).startswith(said) and str(caught.value).endswith("use --layout geonorm")
    with pytest.raises(ConfigError, match="of a changed model, undo"):
        hf.to_stock(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_what_is_frozen_is_frozen_in_an_export(build: Any) -> None:
    """What is one matrix there trains if a part of it does; a bias that we do not have, unless nothing trains."""
    model = build("pre(entry=embedding)").requires_grad_(False)
    for name in ("llama", "qwen2"):
        assert not any(p.requires_grad for p in hf.to_stock(model, name).parameters())
    model.model.blocks[1].attn.branch.q.requires_grad_(True)
    for layout, matrix in (("llama", "q_proj"), ("qwen2", "q_proj"), ("phi3", "qkv_proj")):
        trained = [name for name, p in hf.to_stock(model, layout).named_parameters() if p.requires_grad]
        weights = [name for name in trained if not name.endswith("bias")]
        assert weights == [f"model.layers.1.self_attn.{matrix}.weight"]
    assert sum(p.requires_grad for p in model.parameters()) == 1
