"""Tiny models of the families of transformers, whose layers are read in place of those of a checkpoint."""

from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL, MODEL_MAPPING_NAMES

from ..errors import ConfigError, cause

LAYERS = 4
SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64,
    "intermediate_size": 80, "ffn_dim": 80, "n_inner": 80, "d_ff": 80, "ffn_hidden_size": 80, "ffn_hidden_dim": 80,
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "n_layers": LAYERS, "num_layers": LAYERS, "decoder_layers": LAYERS,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "global_head_dim": 16, "rotary_dim": 8,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64, "sliding_window": 8,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_topk": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24, "moe_shared_expert_intermediate_size": 24, "expert_ffn_hidden_size": 24,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_shared_experts": 1, "zero_expert_num": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "o_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "first_k_dense_replace": 1,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_d_head": 16, "mamba_head_dim": 16, "mamba_d_state": 8,
    "ssm_state_size": 8, "state_size": 8, "mamba_d_conv": 4, "mamba_dt_rank": 4, "mamba_n_groups": 1, "n_groups": 1,
    "mamba_d_ssm": 128, "chunk_size": 8, "mamba_chunk_size": 8, "lru_width": 64, "attention_window_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size_per_layer_input": 96,
    "num_nextn_predict_layers": 0, "num_kv_shared_layers": 0,
}  # fmt: skip
"""What sizes are called in configurations, with a small one."""


MIXED: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    **{
        name: {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
        for name in ("qwen2_vl_text", "qwen2_5_vl_text", "hunyuan_vl_text", "glm_ocr_text", "cosmos3_edge_text")
    },
    **{
        name: {
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5,
            },
        }
        for name in ("glm4v_text", "glm4v_moe_text", "glm_image_text")
    },
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots3_note_text": {
        "num_key_value_heads": 4, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 16,
        "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 16,
    },
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")
        },
    },
    "hy_v4_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
    "glm5_next_text": {"index_kpool": 4, "qk_rope_head_dim": 0},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 4, "hc_lowrank": 10,
    },
    "inkling2_text": {
        "num_hidden_layers": 12, "layer_types": [*["hybrid_sliding"] * 5, "hybrid"] * 2, "unpadded_vocab_size": 96,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16, "d_rel": 4, "rel_extent": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
    "nemotron": {"num_key_value_heads": 2},
}  # fmt: skip
"""What small models of some families need besides: layers of each kind, numbers that fit one another."""
LARGER: dict[str, dict[str, Any]] = {"gemma4_text": {"hidden_size_per_layer_input": 0}}
"""What most sizes of a family have, where its default configuration is that of its smallest ones."""
MOST_PARAMETERS = 10_000_000
"""Parameters: a family that is larger has sizes by names that are not in SMALL."""


def families() -> list[str]:
    """Types of causal models, and of the text models of multimodal ones."""
    return sorted(
        name
        for name in {*CAUSAL, *MODEL_MAPPING_NAMES}
        if (name in CAUSAL or name.endswith("_text")) and not name.startswith("geonorm")
    )


def default_config(family: str) -> Any:
    """The configuration of a family by default, of the text model where there are several."""
    kind = CONFIG_MAPPING[family]
    config = kind().get_text_config() if "text_config" in getattr(kind, "sub_configs", {}) else kind()
    return type(config)(**LARGER.get(config.model_type, {}))


def small_config(config: Any) -> Any:
    """A configuration at a small size, all else as it is; lists by layer are cut to fit, with a layer of each kind."""
    every, default = config.to_dict(), type(config)().to_dict()
    names = {key: config.attribute_map.get(key, key) for key in SMALL}
    small = {
        key: SMALL[key]
        for key, name in names.items()
        if every.get(name) is not None or (name == "head_dim" and name in every)
    }
    if "qk_rope_head_dim" in small:
        small |= {"head_dim": small["qk_rope_head_dim"], "num_key_value_heads": 4}
    small |= MIXED.get(config.model_type, {})
    others: dict[str, Any] = {}
    for key, value in every.items():
        if isinstance(value, list) and len(value) == getattr(config, "num_hidden_layers", LAYERS):
            kinds = list({str(each): each for each in value}.values())[:LAYERS]
            others[key] = (kinds * LAYERS)[:LAYERS]
        elif isinstance(value, bool | int | float | str) and value != default.get(key, value):
            others[key] = value
    return type(config)(**others | small)


def tiny(config: Any) -> nn.Module:
    """A tiny model with this configuration, in evaluation mode, every parameter moved away from its start. ConfigError,
    one line, where transformers builds none at the sizes of `SMALL`."""
    try:
        small = small_config(config)
        kind = AutoModelForCausalLM if type(small) in AutoModelForCausalLM._model_mapping else AutoModel
        with torch.device("meta"):
            size = sum(p.numel() for p in kind.from_config(small).parameters())
        if size > MOST_PARAMETERS:
            raise ValueError(f"it has {size:,} parameters")
        with torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(0)
            model: nn.Module = kind.from_config(small, dtype=torch.float32).eval()
            for tensor in (*model.parameters(), *model.buffers()):
                if isinstance(tensor, nn.Parameter) or (tensor.is_floating_point() and tensor.numel() == 1):
                    tensor.add_(0.1 * torch.randn_like(tensor))
    except Exception as error:  # of transformers
        raise ConfigError(f"no tiny {config.model_type}: {cause(error)[:200]}") from None
    return model
