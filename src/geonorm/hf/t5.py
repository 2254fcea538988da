"""Our encoder-decoders as transformers' T5, with equal logits.

T5 does not divide scores by the root of the head's width: that, and `qk_scale`, are in the matrices of its queries.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import initialization

from ..errors import ConfigError
from ..nn.config import DecoderConfig
from ..nn.encoder_decoder import BUCKETS, FURTHEST
from ..schemes import enter_as, parse
from .encoder_decoder import GeoNormForConditionalGeneration

SCHEME = "pre(entry=embedding)"
FIXED: dict[str, Any] = {
    "mlp": "geglu", "norm": "rms", "gains": True, "positions": "relative", "qk_norm": "none", "attn_gate": False,
    "bias": False, "embed_norm": False, "transform": False, "soft_cap": None, "attn_dropout": 0.0,
}  # fmt: skip
"""Fields of DecoderConfig, and what they are in T5 1.1."""
ATTENTION = {name: name for name in "qkvo"}
MLP = {"gate": "wi_0", "up": "wi_1", "down": "wo"}


def check_t5(config: DecoderConfig) -> None:
    """ConfigError names what stands in the way of an encoder-decoder as T5."""
    scheme = parse(config.scheme)
    plain = str(enter_as(scheme, "embedding"))
    if plain != SCHEME:
        raise ConfigError(f"{scheme} is not t5, which is {SCHEME}: use --layout geonorm")
    wrong = [f"{name}={getattr(config, name)} (only {value})" for name, value in FIXED.items()
             if getattr(config, name) != value]  # fmt: skip
    if config.groups != config.heads:
        wrong.append(f"kv_heads={config.kv_heads} (only {config.heads})")
    if wrong:
        raise ConfigError(f"t5 has no equal for model.{'; model.'.join(wrong)}: use --layout geonorm")
    if config.tied and plain != str(scheme):
        raise ConfigError(
            f"{scheme} normalises the embedding, so the head must have weights of its own, and here they are tied: "
            "use --layout geonorm"
        )


@torch.no_grad()
def to_t5(model: GeoNormForConditionalGeneration) -> Any:
    """The same function as transformers' T5ForConditionalGeneration. Memory is shared where a weight is the same there,
    and what is frozen stays so. Where the stream enters as N(embedding), the rows of the embedding are normalised once
    and for all. ConfigError if it is none."""
    c = model.config.shape()
    check_t5(c)
    embedding = model.get_input_embeddings().weight
    rows = trained_as(embedding, model.ends()[0](embedding).to(embedding.dtype))
    weights = {"shared.weight": rows, "lm_head.weight": model.lm_head.weight}
    for name in ("encoder", "decoder"):
        ours: Any = getattr(model.model, name)
        weights[f"{name}.embed_tokens.weight"] = weights["shared.weight"]
        weights[f"{name}.final_layer_norm.weight"] = ours.exit.own["norm"].weight
        table = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        weights[table] = ours.relative.weight
        for layer, block in enumerate(ours.blocks):
            for place, (kind, residual) in enumerate(block.named_children()):
                here = f"{name}.block.{layer}.layer.{place}"
                weights[f"{here}.layer_norm.weight"] = residual.own["input"].weight
                weights.update(branch_weights(residual.branch, kind, here, c))
    tokens = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    theirs = transformers.T5Config(
        vocab_size=c.vocab_size, d_model=c.width, d_kv=c.head_dim, d_ff=c.hidden, num_layers=c.encoder_layers,
        num_decoder_layers=c.layers, num_heads=c.heads, relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=FURTHEST, dropout_rate=0.0, layer_norm_epsilon=c.eps,
        feed_forward_proj="gated-gelu", dtype=embedding.dtype,
        tie_word_embeddings=False,  # logits are not scaled
        **{name: getattr(model.config, name) for name in tokens},
    )  # fmt: skip
    with initialization.no_init_weights():
        out = transformers.T5ForConditionalGeneration(theirs)
    if not c.tied:  # transformers ties the head of every T5 unless its folder says otherwise
        out.all_tied_weights_keys.pop("lm_head.weight", None)
    if c.layers > (c.encoder_layers or 0):  # for T5, `generate` makes a cache of as many layers as the encoder has
        out.generation_config.use_cache = False
    for name, parameter in out.named_parameters():
        parameter.requires_grad_(weights[name].requires_grad)
    out.load_state_dict({name: weight.detach() for name, weight in weights.items()}, strict=True, assign=True)
    return out.train(model.training)


def trained_as(source: Tensor, made: Tensor) -> Tensor:
    return made.requires_grad_(source.requires_grad)


def branch_weights(branch: Any, kind: str, here: str, c: DecoderConfig) -> dict[str, Tensor]:
    """Matrices of a sub-layer under their names."""
    module = {"attn": "SelfAttention", "cross": "EncDecAttention", "mlp": "DenseReluDense"}[kind]
    found = {
        f"{here}.{module}.{theirs}.weight": getattr(branch, ours).weight
        for ours, theirs in (MLP if kind == "mlp" else ATTENTION).items()
    }
    if kind != "mlp":
        scaled = branch.q.weight * (c.qk_scale**2 * c.head_dim**-0.5)
        found[f"{here}.{module}.q.weight"] = trained_as(branch.q.weight, scaled)
    return found
