"""What is no architecture of transformers, or none that we have, is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geonorm.errors import CheckpointError, ConfigError

transformers = pytest.importorskip("transformers")
from geonorm import hf  # noqa: E402
from geonorm.hf.layouts import LAYOUTS, layouts_of  # noqa: E402
from geonorm.measure.anatomy import FAMILIES  # noqa: E402

from ..rows import each  # noqa: E402
from .test_layouts import GPT2, OLD, SIZE, THEIRS, stock  # noqa: E402


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


@each(
    "model_type, settings, said",
    [
        ("llama", {"hidden_act": "gelu"}, "llama with hidden_act=gelu has no equal here"),
        ("gpt2", {"activation_function": "relu"}, "gpt2 with activation_function=relu has no equal here, only with"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "gpt2 with scale_attn_by_inverse_layer_idx=True"),
        ("gpt2", {"add_cross_attention": True}, "gpt2 with add_cross_attention=True has no equal here"),
        ("gpt_bigcode", {"multi_query": False}, "gpt_bigcode with multi_query=False has no equal here"),
        ("falcon", {"alibi": True}, "falcon with alibi=True has no equal here"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "qwen2 with layer_types=full_attention, sliding_attention has no equal here",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}},
            "rope_type proportional has no equal here",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "llama with partial_rotary_factor=0.5 has no equal here, only with partial_rotary_factor=1.0",
        ),
        ("olmo", {"clip_qkv": 1.0}, "olmo with clip_qkv=1.0 has no equal here"),
        (
            "olmo3",
            {
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e3}},
            },
            "rope_parameters with sliding_attention=",
        ),
        ("gemma2", {"attn_logit_softcapping": 50.0}, "gemma2 with attn_logit_softcapping=50.0"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "gemma2 with query_pre_attn_scalar=16"),
        ("gemma2", {"tie_word_embeddings": True}, "gemma2 with tie_word_embeddings=True"),
    ],
)
def test_settings_without_an_equal_are_refused_by_name(
    model_type: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = {**SIZE, **THEIRS[model_type], **settings}
    given = {name: value for name, value in given.items() if value is not None or name not in OLD}
    config = transformers.AutoConfig.for_model(model_type, **given)
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        hf.load_stock(tmp_path)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@each(
    "config, said",
    [
        ("PhiConfig", "phi has a bias of its head, which geonorm's decoder does not have; geonorm.hf.apply"),
        (
            "SmolLM3Config",
            "smollm3 has blocks without positions, which geonorm's decoder does not have; geonorm.hf.apply",
        ),
        (
            "GraniteConfig",
            "granite has a multiplier of the residual, which geonorm's decoder does not have; geonorm.hf.",
        ),
        (
            "ModernBertConfig",
            "modernbert has attention to both sides, which geonorm's decoder does not have; geonorm.hf",
        ),
        ("MixtralConfig", "mixtral has experts, which geonorm's decoder does not have"),
        ("XGLMConfig", "unknown architecture 'xglm'"),
    ],
)
def test_other_architectures_are_refused(config: str, said: str, tmp_path: Path) -> None:
    getattr(transformers, config)().save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as caught:
        hf.load_stock(tmp_path)
    assert str(caught.value).startswith(said)


@each("model_type", sorted(set(FAMILIES) - {layout.model_type for layout in LAYOUTS}))
def test_whatever_apply_knows_is_said_to_be_for_it(model_type: str) -> None:
    with pytest.raises(ConfigError, match=r"; geonorm\.hf\.apply changes its residual scheme in place"):
        layouts_of(model_type)


def test_weights_that_are_missing_are_not_drawn(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    stock("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"holds no model\.layers\.0\.mlp\.up_proj\.weight"):
        hf.load_stock(tmp_path)


def test_what_is_no_stock_model_is_one_line(build: Any, tmp_path: Path) -> None:
    build(scheme="geonorm").save_pretrained(tmp_path / "ours")
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("ours", "is under a scheme already: load it with transformers.AutoModelForCausalLM"),
        ("empty", "holds no model of transformers"),
        ("nothing", "holds no model of transformers"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            hf.load_stock(tmp_path / name)
        assert "\n" not in str(caught.value)
