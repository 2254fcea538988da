"""Architectures of transformers that are a scheme: the same function in both directions, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.errors import ConfigError

transformers = pytest.importorskip("transformers")

from geonorm import hf  # noqa: E402
from geonorm.hf.layouts import LAYOUTS  # noqa: E402

OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "pre(entry=embedding)": ("llama", {}),
    "pre": ("llama", {}),
    "pre with biases": ("llama", {"bias": True}),
    "pre tied": ("llama", {"scheme": "pre(entry=embedding)", "tie_word_embeddings": True}),
    "pre qk": ("qwen3", {"qk_norm": "head"}),
    "pre layer": ("olmo", {"norm": "layer", "gains": False, "norm_eps": 1e-5}),
    "olmo2": ("olmo2", {"qk_norm": "full"}),
    "peri": ("gemma2", {}),
    "sandwich": ("gemma2", {}),
}
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "vocab_size": 61}  # fmt: skip
THEIRS: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rms_norm_eps": 1e-5},
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 8},
    "olmo": {"clip_qkv": None},
    "olmo2": {},
    "gemma2": {
        "head_dim": 8, "query_pre_attn_scalar": 8, "hidden_activation": "silu", "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": False,
    },
}  # fmt: skip


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.detach().abs().max()))


def stock(model_type: str, **settings: Any) -> Any:
    """A tiny model of transformers with random weights, gains and biases included."""
    config = transformers.AutoConfig.for_model(
        model_type, **{**SIZE, **THEIRS[model_type], **settings}, pad_token_id=None
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.rand(parameter.shape)
    return model


@pytest.mark.parametrize("name", OURS)
def test_a_scheme_becomes_an_architecture_and_comes_back(name: str, build: Any, ids: Any, tmp_path: Path) -> None:
    model_type, fields = OURS[name]
    model = build(**{"scheme": name.split(" ")[0], **fields})
    hf.to_stock(model).save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert theirs.config.model_type == model_type and type(theirs).__module__.startswith("transformers.")
    close(theirs(ids).logits, model(ids).logits)
    again = hf.load_stock(tmp_path)
    assert type(again) is hf.GeoNormForCausalLM
    close(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("model_type", THEIRS)
def test_an_architecture_becomes_a_scheme_and_goes_back(model_type: str, ids: Any, tmp_path: Path) -> None:
    theirs = stock(model_type)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = hf.load_stock(tmp_path / "theirs")
    expected = theirs(ids).logits
    close(ours(ids).logits, expected)
    ours.save_pretrained(tmp_path / "ours")
    close(hf.GeoNormForCausalLM.from_pretrained(tmp_path / "ours")(ids).logits, expected)
    hf.to_stock(ours).save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    close(again(ids).logits, expected)
    if model_type in ("llama", "qwen3", "olmo2"):  # nothing was computed on the way: bit for bit
        same = again.state_dict()
        assert all(torch.equal(value, same[name]) for name, value in theirs.state_dict().items())


def test_every_layout_is_tested() -> None:
    assert {layout.model_type for layout in LAYOUTS} == set(THEIRS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scheme": "geonorm"}, "geonorm is no architecture of transformers"),
        ({"scheme": "pre(final=none)"}, "pre(final=none) is no architecture of transformers"),
        ({"scheme": "mix"}, "mix is no architecture of transformers"),
        ({"scheme": "pre", "mlp": "gelu"}, "llama has no equal for model.mlp=gelu, not swiglu"),
        ({"scheme": "pre", "norm": "dyt"}, "llama has no equal for model.norm=dyt, not rms"),
        ({"scheme": "olmo2"}, "olmo2 has no equal for model.qk_norm=none, not full"),
        ({"scheme": "pre", "tie_word_embeddings": True}, "pre normalises the embedding, so the head must have weights"),
        ({"scheme": "peri(entry=embedding)", "tie_word_embeddings": True}, "gemma2 scales the embedding, so the head"),
    ],
)
def test_what_has_no_equal_is_refused(fields: dict[str, Any], said: str, build: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        hf.to_stock(build(**fields))
    assert str(caught.value).startswith(said) and str(caught.value).endswith("use --layout geonorm")


@pytest.mark.parametrize(
    ("model_type", "settings", "said"),
    [
        ("llama", {"hidden_act": "gelu"}, "llama with hidden_act=gelu has no equal here"),
        ("llama", {"mlp_bias": True}, "llama with attention_bias and mlp_bias=different"),
        ("llama", {"head_dim": 16}, "llama with head_dim=16 has no equal here"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "llama with rope_param",
        ),
        ("mistral", {"sliding_window": 8}, "mistral with sliding_window=8 has no equal here"),
        ("olmo", {"clip_qkv": 1.0}, "olmo with clip_qkv=1.0 has no equal here"),
        ("gemma2", {"attn_logit_softcapping": 50.0}, "gemma2 with attn_logit_softcapping=50.0"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "gemma2 with query_pre_attn_scalar=16"),
        ("gemma2", {"layer_types": ["sliding_attention", "full_attention"]}, "gemma2 with layer_types="),
        ("gemma2", {"tie_word_embeddings": True}, "gemma2 with tie_word_embeddings=True"),
    ],
)
def test_settings_without_an_equal_are_refused_by_name(
    model_type: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(model_type, **{**SIZE, **THEIRS[model_type], **settings})
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        hf.load_stock(tmp_path)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="unknown architecture 'gpt2'"):
        hf.load_stock(tmp_path)
