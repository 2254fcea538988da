"""The configuration in transformers: the fields of the decoder under transformers' names, checked alike."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from geonorm import DecoderConfig, hf  # noqa: E402
from geonorm.errors import ConfigError  # noqa: E402
from geonorm.hf.config import NAMES  # noqa: E402

from ..rows import each  # noqa: E402


@each(
    "given, said",
    [
        ({"scheem": "pre"}, "unknown key of GeoNormConfig 'scheem': did you mean 'scheme'?"),
        ({"scheme": "geonrom"}, "unknown scheme 'geonrom': did you mean 'geonorm'?"),
        ({"hidden_size": 30, "num_attention_heads": 4}, "model.width 30 must be an even multiple of model.heads 4"),
        ({"qk_norm": "none", "num_hidden_layers": 0}, "model.layers must be at least 1"),
        ({"hidden_size": "128"}, "model.width must be a whole number, got '128'"),
        ({"mlp": "relu"}, "unknown model.mlp 'relu'"),
        ({"gains": "yes"}, "model.gains must be true or false, got 'yes'"),
    ],
)
def test_wrong_configurations_are_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hf.GeoNormConfig(**given)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_configuration_holds_every_field_of_the_decoder() -> None:
    config = hf.GeoNormConfig()
    assert hf.GeoNormConfig.of(DecoderConfig()).to_dict() == config.to_dict()
    for f in fields(DecoderConfig):
        assert hasattr(config, NAMES.get(f.name, f.name)), f.name
    shape = DecoderConfig(scheme="post", layers=3, width=24, heads=3, kv_heads=1, mlp="gelu", bias=True, rope_theta=5e5)
    assert hf.GeoNormConfig.of(shape).shape() == shape


def test_scheme_becomes_canonical_and_attributes_that_are_no_keys_stay_behind(tmp_path: Path) -> None:
    config = hf.GeoNormConfig(scheme="geonorm( alpha = 1.0,decay=sqrt )")
    assert config.scheme == "geonorm(decay=sqrt)"
    config.note = "mine"
    config.save_pretrained(tmp_path)
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    assert json.loads(again.to_json_string()) == json.loads(config.to_json_string())
    assert "note" not in config.to_dict()
    assert config.auto_map == {} and "auto_map" not in config.to_dict()  # TRL reads it from every configuration


LLAMA = {
    "hidden_size": 32, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "attention_dropout": 0.0, "pretraining_tp": 1, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
}  # fmt: skip


def test_llamas_keys_mean_what_they_mean_there(tmp_path: Path) -> None:
    config = hf.GeoNormConfig(scheme="pre", **LLAMA)
    wanted = DecoderConfig(scheme="pre", width=32, heads=4, kv_heads=4, eps=1e-5, tied=True, rope_theta=5e5, rotary=0.5)
    assert config.shape() == wanted
    config.save_pretrained(tmp_path)
    assert not {"rms_norm_eps", "hidden_act", "rope_parameters"} & set(
        json.loads((tmp_path / "config.json").read_text())
    )
    assert transformers.AutoConfig.from_pretrained(tmp_path).shape() == wanted
    both = hf.GeoNormConfig(attention_bias=True, mlp_bias=True, layer_norm_epsilon=1e-3, rope_scaling=None)
    assert both.shape().bias and both.norm_eps == 1e-3
    assert hf.GeoNormConfig(rope_scaling={"type": "default"}, norm_eps=1e-4, rms_norm_eps=1e-4).norm_eps == 1e-4


@each(
    "given, said",
    [
        ({"hidden_act": "gelu"}, "of those only silu is built; mlp='gelu' is that without a gate"),
        ({"hidden_act": "tanh"}, "mlp is one of swiglu, gelu, gelu_tanh, relu2"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type linear has no equal here"),
        ({"rope_scaling": "yarn(factor=2)"}, "rope_scaling must be a mapping as transformers has it"),
        ({"rope_parameters": {"rope_thetta": 1e4}}, "did you mean 'rope_theta'?"),
        ({"attention_bias": True}, "attention_bias and mlp_bias are one here: bias=True"),
        ({"attention_dropout": 1.0}, "model.attn_dropout must be between 0 and 0.99"),
        ({"full_every": 2}, "model.full_every 2 needs model.window"),
        ({"sliding_window": 4, "is_causal": False}, "model.window 4 needs a model whose tokens see those before them"),
        ({"initializer_range": 0.02}, "is answered by init: one of fan_in"),
        (
            {"norm_eps": 1e-3, "rms_norm_eps": 1e-5},
            "norm_eps 0.001 and what a key of another family says, 1e-05",
        ),
        ({"n_embd": 64}, "unknown key of GeoNormConfig 'n_embd': did you mean 'hidden_size'?"),
        ({"layers": 2}, "unknown key of GeoNormConfig 'layers'"),
    ],
)
def test_other_keys_of_other_families_are_answered_by_the_right_one(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hf.GeoNormConfig(**given)
    assert said in str(caught.value) and "\n" not in str(caught.value)
