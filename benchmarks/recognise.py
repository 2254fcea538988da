"""Which causal families of the installed transformers are recognised by structure, and what apply does with them.

    python benchmarks/recognise.py [FAMILY ...]

Builds a tiny model of each family, moves every parameter away from its start, and reports: its scheme, whether the
logits under that scheme are the ones it had, whether it trains ten steps under geonorm, whether undo gives every logit
back bit for bit; or the line with which it is refused.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from geonorm import hf
from geonorm.errors import GeonormError

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
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96, "num_nextn_predict_layers": 0, "num_kv_shared_layers": 0,
}  # fmt: skip
"""What sizes are called in configurations, with a small one."""


MIXED: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "gemma4": {"hidden_size_per_layer_input": 0},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "zaya": {"num_experts_per_tok": 1},
    "nemotron": {"head_dim": 16, "intermediate_size": 80},
}
"""What small models of some families need beside: layers of each kind, numbers that fit one another."""


def small_config(name: str) -> Any:
    """The configuration of a family at a small size: its defaults but for sizes, and lists by layer cut to fit."""
    kind = CONFIG_MAPPING[name]
    if "text_config" in getattr(kind, "sub_configs", {}) and name not in ("bamba",):
        kind = type(kind().get_text_config())
    default = kind()
    depth = getattr(default, "num_hidden_layers", LAYERS)
    settings = {key: value for key, value in SMALL.items() if is_set(default, key)}
    if "qk_rope_head_dim" in settings:
        settings |= {"head_dim": settings["qk_rope_head_dim"], "num_key_value_heads": 4}
    settings |= MIXED.get(name, {})
    for key, value in default.to_dict().items():
        if isinstance(value, list) and len(value) == depth and key not in settings:
            seen = list(dict.fromkeys(map(str, value)))
            settings[key] = [next(v for v in value if str(v) == s) for s in seen][:LAYERS]
            settings[key] = (settings[key] * LAYERS)[:LAYERS]
    while True:
        try:
            return kind(**settings)
        except AttributeError as error:  # a property of this family
            name = next((key for key in settings if f"'{key}'" in str(error)), None)
            if name is None:
                raise
            del settings[name]


def is_set(config: Any, name: str) -> bool:
    """True for a field of the configuration that has a value of its own for the whole model."""
    try:
        return getattr(config, name, None) is not None or (name == "head_dim" and hasattr(config, name))
    except Exception:  # a field that every layer has for itself
        return False


LIMIT = 8_000_000
"""Parameters: a family that is larger has sizes by names that are not in SMALL."""


def tiny(name: str) -> Any:
    config = small_config(name)
    with torch.device("meta"):
        size = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
    if size > LIMIT:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def try_family(name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"family": name}
    try:
        model = tiny(name)
    except Exception as error:  # of transformers: no small model to be had by these names
        return row | {"built": False, "why": f"{type(error).__name__}: {str(error)[:120]}"}
    row["built"] = True
    try:
        row["scheme"] = str(hf.scheme_of(model))
    except GeonormError as error:
        return row | {"why": str(error)}
    ids = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(1))

    @torch.no_grad()
    def logits() -> torch.Tensor:
        out: torch.Tensor = model.eval()(input_ids=ids).logits
        return out

    try:
        wanted = logits()
        report = hf.apply(model, row["scheme"])
        under = logits()
        row["difference"] = float((under - wanted).abs().max() / wanted.abs().max())
        report.undo()
        row["undo"] = bool(torch.equal(logits(), wanted))
        model = copy.deepcopy(model)
        hf.apply(model, "geonorm")
        optimizer = torch.optim.AdamW(model.train().parameters(), 3e-3)
        losses = []
        for _ in range(10):
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        row["trains"] = losses[-1] < losses[0]
    except Exception as error:
        row["why"] = f"{type(error).__name__}: {str(error)[:300]}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for name in options.families or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        rows.append(row := try_family(name))
        print(json.dumps(row), flush=True)
    built = [row for row in rows if row["built"]]
    same = [row for row in built if row.get("difference", 1) < 1e-4]
    counts = [sum(bool(row.get(key)) for row in built) for key in ("scheme", "trains", "undo")]
    print(f"{len(rows)} families, {len(built)} built, {counts[0]} recognised, {len(same)} with their logits under "
          f"their scheme, {counts[1]} train under geonorm, {counts[2]} come back bit for bit")  # fmt: skip


if __name__ == "__main__":
    main()
