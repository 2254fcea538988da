"""Architectures of transformers that are a scheme: the same function in both directions."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.errors import ConfigError

transformers = pytest.importorskip("transformers")

from geonorm import Decoder, hf  # noqa: E402
from geonorm.hf.layouts import LAYOUTS, MISSING  # noqa: E402
from geonorm.lab.data import NO_TEXT, load_tokenizer  # noqa: E402
from geonorm.models.config import preset  # noqa: E402

from ..rows import each  # noqa: E402

GPT2 = {
    "norm": "layer", "norm_eps": 1e-5, "bias": True, "mlp": "gelu_tanh", "positions": "learned",
    "tie_word_embeddings": True, "num_key_value_heads": 4,
}  # fmt: skip
NEOX = {"norm": "layer", "norm_eps": 1e-5, "bias": True, "mlp": "gelu", "num_key_value_heads": 4}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "pre(entry=embedding)": ("llama", {}),
    "pre": ("llama", {}),
    "pre with biases": ("llama", {"bias": True}),
    "pre tied": ("llama", {"scheme": "pre(entry=embedding)", "tie_word_embeddings": True}),
    "olmo2": ("olmo2", {"qk_norm": "full"}),
    "peri": ("gemma2", {}),
    "pre(entry=embedding) gpt2": ("gpt2", GPT2),
    "pre(entry=embedding) gpt2 without biases": ("gpt2", {**GPT2, "bias": False, "norm_bias": False}),
    "pre layer norm": ("gpt_neox", {**NEOX}),
    "pre without gains": ("gpt_neox", {**NEOX, "gains": False}),
    "pre side by side": ("gpt_neox", {**NEOX, "block": "parallel", "mlp": "gelu_tanh"}),
    "sandwich": ("gemma2", {}),
}
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "vocab_size": 61}  # fmt: skip
OLD = {"num_key_value_heads": None, "intermediate_size": None}
PYTHIA = {
    **OLD, "intermediate_size": 48,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
}  # fmt: skip
THEIRS: dict[str, dict[str, Any]] = {
    "gpt2": OLD,
    "gpt2 of other activation, untied": {**OLD, "activation_function": "gelu", "tie_word_embeddings": False},
    "gpt_bigcode": OLD,
    "gpt_neox": PYTHIA,

    "gpt_neox as Pythia's files are": {**PYTHIA, "rope_parameters": None, "rotary_pct": 0.25, "rotary_emb_base": 1e4},
    "stablelm": {"use_qkv_bias": True},
    "phi3 in part": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "qwen3 of wide heads": {"head_dim": 24},
    "mistral of wide heads": {"sliding_window": None, "head_dim": 16},
    "gpt_neox in turn": {**PYTHIA, "use_parallel_residual": False, "attention_bias": False},
    "starcoder2": {"tie_word_embeddings": False},
    "falcon": {**OLD, "ffn_hidden_size": 48},
    "phi3": {},
    "qwen2": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama with biases of attention": {"attention_bias": True},
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rms_norm_eps": 1e-5},
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 8},
    "olmo": {"clip_qkv": None},
    "olmo2": {},
    "olmo3": {"layer_types": ["full_attention"] * 2},
    "gemma2": {
        "head_dim": 8, "query_pre_attn_scalar": 8, "hidden_activation": "silu", "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": False,
    },
}  # fmt: skip


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.detach().abs().max()))


def stock(model_type: str, **settings: Any) -> Any:
    """A tiny model of transformers with random weights, gains and biases included."""
    given = {**SIZE, **THEIRS[model_type.split(" of long")[0]], **settings, "bos_token_id": 1, "eos_token_id": 2}
    given = {name: value for name, value in given.items() if value is not None or name not in OLD}
    config = transformers.AutoConfig.for_model(model_type.split(" ")[0], **given, pad_token_id=None)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.rand(parameter.shape)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, eos_token_id=2)
    return model


@each("name", OURS)
def test_a_scheme_becomes_an_architecture_and_comes_back(name: str, build: Any, ids: Any, tmp_path: Path) -> None:
    model_type, fields = OURS[name]
    model = build(**{"scheme": name.split(" ")[0], **fields})
    hf.to_stock(model).save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert theirs.config.model_type == model_type and type(theirs).__module__.startswith("transformers.")
    close(theirs(ids).logits, model(ids).logits)
    close(hf.to_stock(model)(ids).logits, model(ids).logits)
    again = hf.load_stock(tmp_path)
    assert type(again) is hf.GeoNormForCausalLM
    close(again(ids).logits, model(ids).logits)


@each("model_type", THEIRS)
def test_an_architecture_becomes_a_scheme_and_goes_back(model_type: str, ids: Any, tmp_path: Path) -> None:
    theirs = stock(model_type).double()  # folded gains sum in another order
    theirs.save_pretrained(tmp_path / "theirs")
    ours = hf.load_stock(tmp_path / "theirs")
    expected = theirs(ids).logits
    close(ours(ids).logits, expected)
    ours.save_pretrained(tmp_path / "ours")
    close(hf.GeoNormForCausalLM.from_pretrained(tmp_path / "ours")(ids).logits, expected)
    hf.to_stock(ours, model_type.split(" ")[0]).save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    close(again(ids).logits, expected)
    if model_type != "gemma2" and not getattr(
        theirs.config, "use_parallel_residual", False
    ):  # nothing was computed on the way: bit for bit
        same = again.state_dict()
        assert all(torch.equal(value, same[name]) for name, value in theirs.state_dict().items())


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 16,
    "short_factor": [1.0, 1.0299999713897705, 1.1, 1.5], "long_factor": [1.5, 2.0, 7.25, 30.0],
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize(("model_type", "rule"), [("llama", YARN), ("phi3", LONGROPE)])
def test_scaled_rotation_stays_where_it_is(model_type: str, rule: dict[str, Any], tmp_path: Path) -> None:
    """A model keeps it under a scheme, in texts beyond its length; this package's layout has none."""
    more = {name: rule[name] for name in ("original_max_position_embeddings",) if model_type == "phi3"}
    theirs = stock(model_type, rope_parameters={**rule, "rope_theta": 1e4}, max_position_embeddings=64, **more).double()
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"rope_type {rule['rope_type']} has no equal here, only default"):
        hf.load_stock(tmp_path)
    long = torch.randint(61, (2, 100), generator=torch.Generator().manual_seed(0))
    expected = theirs(long).logits
    hf.apply(theirs, "pre(entry=embedding)")
    close(theirs(long).logits, expected)


@torch.no_grad()
@each(
    "model_type, settings, every",
    [
        ("mistral", {}, None),
        ("starcoder2", {}, None),
        ("phi3", {}, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, None),
        ("gemma2", {"layer_types": ["sliding_attention", "full_attention"]}, 2),
        ("olmo3", {"layer_types": ["sliding_attention", "full_attention"]}, 2),
        ("olmo3", {"layer_types": ["sliding_attention"] * 2}, None),
    ],
)
def test_windows_go_over_and_back(model_type: str, settings: dict[str, Any], every: int | None, tmp_path: Path) -> None:
    theirs = stock(model_type, sliding_window=5, attention_dropout=0.25, **deepcopy(settings))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = hf.load_stock(tmp_path / "theirs")
    shape, model_type = ours.config.shape(), theirs.config.model_type
    assert (shape.window, shape.full_every, shape.attn_dropout) == (5, every, 0.25)
    again = hf.to_stock(ours, model_type)
    long = torch.randint(61, (2, 24), generator=torch.Generator().manual_seed(0))
    expected = theirs(long).logits
    close(ours(long).logits, expected)
    close(again(long).logits, expected)
    assert again.config.sliding_window == 5 and again.config.attention_dropout == 0.25
    prompt = {"input_ids": long[:, :3], "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(**prompt), theirs.generate(**prompt))


def test_every_layout_is_tested() -> None:
    assert {layout.model_type for layout in LAYOUTS} == {name.split(" ")[0] for name in THEIRS}
    assert not set(MISSING) & {layout.model_type for layout in LAYOUTS}
    assert set(MISSING) <= set(transformers.models.auto.configuration_auto.CONFIG_MAPPING)


def test_an_architecture_by_name(build: Any, ids: Any) -> None:
    model = build("pre(entry=embedding)")
    assert [hf.to_stock(model, name).config.model_type for name in ("llama", "mistral", "phi3")] == [
        "llama", "mistral", "phi3",
    ]  # fmt: skip
    close(hf.to_stock(model, "qwen2")(ids).logits, model(ids).logits)
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
