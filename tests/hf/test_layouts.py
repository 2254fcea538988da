"""Decoders that are an architecture of transformers: the same function, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.errors import ConfigError

transformers = pytest.importorskip("transformers")

from geonorm import Decoder, hf  # noqa: E402
from geonorm.hf.layouts import LAYOUTS  # noqa: E402
from geonorm.lab.data import NO_TEXT, load_tokenizer  # noqa: E402
from geonorm.models.config import preset  # noqa: E402

from ..rows import each  # noqa: E402

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


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@torch.no_grad()
def test_scaled_rotation_stays_where_it_is() -> None:
    """A model keeps it under a scheme, in texts beyond its length."""
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=61, rope_parameters={**YARN, "rope_theta": 1e4}, **size)
    theirs = transformers.LlamaForCausalLM(config).double().eval()
    long = torch.randint(61, (2, 100), generator=torch.Generator().manual_seed(0))
    expected = theirs(long).logits
    hf.apply(theirs, "pre(entry=embedding)")
    close(theirs(long).logits, expected)


def test_an_architecture_by_name_that_is_another(build: Any) -> None:
    model = build("pre(entry=embedding)")
    with pytest.raises(ConfigError, match=r"llama has no equal for model.window=4, not None"):
        hf.to_stock(build("pre", sliding_window=4), "llama")
    with pytest.raises(ConfigError, match=r"mistral has no equal for model.full_every=2, not None"):
        hf.to_stock(build("pre", sliding_window=4, full_every=2), "mistral")
    biased = build("pre(entry=embedding)", bias=True)
    with pytest.raises(
        ConfigError, match=r"qwen2 has no bias at model\.layers\.0\.self_attn\.o_proj, and that of .* is not 0"
    ):
        hf.to_stock(biased, "qwen2")
    with pytest.raises(ConfigError, match=r"pre.* is not gemma2, which is peri"):
        hf.to_stock(model, "gemma2")
    with pytest.raises(ConfigError, match=r"gpt2 has no equal for model.positions=rope, not learned; model.norm=rms"):
        hf.to_stock(model, "gpt2")
    with pytest.raises(ConfigError, match="unknown architecture 'lama': did you mean 'llama'"):
        hf.to_stock(model, "lama")


@each(
    "fields, said",
    [
        ({"scheme": "geonorm"}, "geonorm is no architecture of transformers"),
        ({"scheme": "pre(final=none)"}, "pre(final=none) is no architecture of transformers"),
        ({"scheme": "mix"}, "mix is no architecture of transformers"),
        ({"scheme": "pre", "mlp": "gelu"}, "llama has no equal for model.mlp=gelu, not swiglu"),
        ({"scheme": "pre", "norm": "dyt"}, "llama has no equal for model.norm=dyt, not rms"),
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


def test_what_is_frozen_is_frozen_in_an_export(build: Any) -> None:
    """Queries, keys and values that are one matrix there train if one of them does; so does a bias that we do not have,
    unless nothing trains."""
    model = build("pre(entry=embedding)").requires_grad_(False)
    for name in ("llama", "qwen2"):
        assert not any(p.requires_grad for p in hf.to_stock(model, name).parameters())
    model.model.blocks[1].attn.branch.q.requires_grad_(True)

    def trained(layout: str) -> list[str]:
        found = [name for name, p in hf.to_stock(model, layout).named_parameters() if p.requires_grad]
        return [name for name in found if not name.endswith("bias")]

    assert trained("llama") == trained("qwen2") == ["model.layers.1.self_attn.q_proj.weight"]
    assert trained("phi3") == ["model.layers.1.self_attn.qkv_proj.weight"]
    assert sum(p.requires_grad for p in model.parameters()) == 1


@torch.no_grad()
def test_the_preset_is_gpt2(ids: Any, tmp_path: Path) -> None:
    """Decoder -> export -> GPT2LMHeadModel: the preset's own shape, biases and gains away from their start."""
    torch.manual_seed(0)
    decoder = Decoder(preset("nano-gpt2", scheme="pre(entry=embedding)", vocab_size=257)).eval()
    for parameter in decoder.parameters():
        parameter += 0.02 * torch.randn(parameter.shape)
    hf.export(decoder, load_tokenizer("byte", NO_TEXT, 257).json, 256, tmp_path / "model", layout="stock")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(theirs) is transformers.GPT2LMHeadModel
    close(theirs(ids).logits, decoder(ids))
