"""Architectures of transformers that are a scheme of ours: one table, read in both directions, with equal logits.

A layout says under which scheme and shape a decoder computes what the architecture computes, and what its weights are
called there. Where a field has no equal, the answer is a ConfigError that names it, never a model that is nearly right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ..errors import ConfigError, unknown
from ..nn.config import DecoderConfig
from ..schemes import Placement, parse
from .config import NAMES, GeoNormConfig
from .modeling import GeoNormForCausalLM

MATRICES = {
    "attn.branch.q": "self_attn.q_proj",
    "attn.branch.k": "self_attn.k_proj",
    "attn.branch.v": "self_attn.v_proj",
    "attn.branch.o": "self_attn.o_proj",
    "mlp.branch.gate": "mlp.gate_proj",
    "mlp.branch.up": "mlp.up_proj",
    "mlp.branch.down": "mlp.down_proj",
}
EMBEDDING = "model.embed_tokens.weight"
PRE_NORMS = {"attn.own.input": "input_layernorm", "mlp.own.input": "post_attention_layernorm"}
HEAD_NORMS = {"attn.branch.norms.q": "self_attn.q_norm", "attn.branch.norms.k": "self_attn.k_norm"}


@dataclass(frozen=True)
class Layout:
    """One architecture. Modules of a layer are named from `model.blocks.N` here, from `model.layers.N` there."""

    model_type: str
    schemes: tuple[str, ...]
    """What computes the same, the first being what an import gets; the stream enters as the raw embedding."""
    norms: dict[str, str]
    """Norms of a layer: our module to theirs."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Fields of DecoderConfig that the architecture fixes."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of their configuration that have one value here."""
    bias: tuple[str, ...] = ()
    """Their switches for the biases of the linear layers; without any there are none."""
    offset: float = 0.0
    """What they add to a stored gain."""
    scaled: bool = False
    """Whether they multiply the embedding by sqrt(width)."""

    def fixed(self) -> dict[str, Any]:
        always = {
            "mlp": "swiglu",
            "block": "sequential",
            "positions": "rope",
            "norm": "rms",
            "gains": True,
            "qk_norm": "none",
        }
        return {**always, **({} if self.bias else {"bias": False}), **self.shape}

    def names(self, config: DecoderConfig) -> Iterator[tuple[str, str]]:
        """Every weight: our name, their name."""
        yield EMBEDDING, EMBEDDING
        yield "lm_head.weight", "lm_head.weight"
        if config.gains:
            yield "model.exit.own.norm.weight", "model.norm.weight"
        for layer in range(config.layers):
            for ours, theirs in {**MATRICES, **(self.norms if config.gains else {})}.items():
                for kind in ("weight", "bias") if config.bias and ours in MATRICES else ("weight",):
                    yield f"model.blocks.{layer}.{ours}.{kind}", f"model.layers.{layer}.{theirs}.{kind}"


LAYOUTS = (
    Layout(
        "llama", ("pre(entry=embedding)",), PRE_NORMS,
        settings={"hidden_act": "silu"}, bias=("attention_bias", "mlp_bias"),
    ),
    Layout("mistral", ("pre(entry=embedding)",), PRE_NORMS, settings={"hidden_act": "silu", "sliding_window": None}),
    Layout(
        "qwen3", ("pre(entry=embedding)",), {**PRE_NORMS, **HEAD_NORMS}, shape={"qk_norm": "head"},
        settings={"hidden_act": "silu", "use_sliding_window": False, "attention_bias": False},
    ),
    Layout(
        "olmo", ("pre(entry=embedding)",), {}, shape={"norm": "layer", "gains": False, "eps": 1e-5},
        settings={"hidden_act": "silu", "clip_qkv": None, "attention_bias": False},
    ),
    Layout(
        "olmo2", ("olmo2(entry=embedding)",),
        {"attn.own.output": "post_attention_layernorm", "mlp.own.output": "post_feedforward_layernorm", **HEAD_NORMS},
        shape={"qk_norm": "full"}, settings={"hidden_act": "silu", "attention_bias": False},
    ),
    Layout(
        "gemma2", ("peri(entry=embedding)", "sandwich"),
        {
            "attn.own.input": "input_layernorm", "attn.own.output": "post_attention_layernorm",
            "mlp.own.input": "pre_feedforward_layernorm", "mlp.own.output": "post_feedforward_layernorm",
        },
        settings={
            "hidden_activation": "silu", "attention_bias": False, "attn_logit_softcapping": None,
            "final_logit_softcapping": None, "use_bidirectional_attention": None, "layer_types": "full_attention",
        },
        offset=1.0, scaled=True,
    ),
)  # fmt: skip
"""In the order in which an export chooses among them."""

SHARED = ("vocab_size", "width", "hidden", "layers", "heads", "kv_heads", "context", "tied")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def layout_of(config: DecoderConfig) -> Layout:
    """The architecture that a decoder equals. ConfigError names what stands in the way."""
    scheme = parse(config.scheme)
    plain = str(replace(scheme, entry="embedding") if isinstance(scheme, Placement) else scheme)
    by_scheme = [layout for layout in LAYOUTS if plain in layout.schemes]
    if not by_scheme:
        known = ", ".join(sorted({layout.schemes[0] for layout in LAYOUTS}))
        raise ConfigError(f"{scheme} is no architecture of transformers (those are {known}): use --layout geonorm")
    wrong = {}
    for layout in by_scheme:
        wrong[layout.model_type] = [
            f"{name}={getattr(config, name)}, not {value}"
            for name, value in layout.fixed().items()
            if getattr(config, name) != value
        ]
        if not wrong[layout.model_type]:
            if config.tied and (layout.scaled or plain != str(scheme)):
                what = "scales" if layout.scaled else "normalises"
                raise ConfigError(
                    f"{scheme if what == 'normalises' else layout.model_type} {what} the embedding, so the head must "
                    "have weights of its own, and here they are tied: use --layout geonorm"
                )
            return layout
    nearest = min(wrong, key=lambda name: len(wrong[name]))
    raise ConfigError(f"{nearest} has no equal for model.{'; model.'.join(wrong[nearest])}: use --layout geonorm")


@torch.no_grad()
def to_stock(model: GeoNormForCausalLM) -> Any:
    """The same function as a model of transformers, sharing memory. Where the stream enters as N(embedding), the rows
    of the embedding are normalised once and for all. ConfigError if no architecture is equal."""
    config = model.config.shape()
    layout = layout_of(config)
    settings = {NAMES.get(name, name): getattr(config, name) for name in SHARED}
    settings.update({name: getattr(model.config, name) for name in TOKENS})
    settings.update(dict.fromkeys(layout.bias, config.bias), **layout.settings)
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if "eps" not in layout.shape:
        settings["rms_norm_eps"] = config.eps
    if layout.settings.get("layer_types"):
        settings["layer_types"] = [layout.settings["layer_types"]] * config.layers
    if layout.scaled:
        settings["query_pre_attn_scalar"] = config.head_dim
    stock = transformers.AutoConfig.for_model(layout.model_type, **settings, head_dim=config.head_dim)
    weights = model.state_dict()
    embedding = model.model.entry(weights[EMBEDDING])
    weights[EMBEDDING] = embedding / config.width**0.5 if layout.scaled else embedding
    found = {theirs: weights[ours] for ours, theirs in layout.names(config)}
    for ours, theirs in layout.names(config):
        if layout.offset and is_gain(ours):
            found[theirs] = weights[ours] - layout.offset
    with torch.device("meta"):
        out = transformers.AutoModelForCausalLM.from_config(stock)
    out.load_state_dict(found, strict=True, assign=True)
    out.tie_weights()
    return out


def is_gain(name: str) -> bool:
    return ".own." in name or ".norms." in name


@torch.no_grad()
def load_stock(folder: str | Path) -> GeoNormForCausalLM:
    """A model of transformers under the scheme that it is, with equal logits: a folder or a name on the hub.

    ConfigError if its architecture, or a setting of it, has no equal here."""
    theirs = transformers.AutoConfig.from_pretrained(folder)
    layout = next((each for each in LAYOUTS if each.model_type == theirs.model_type), None)
    if layout is None:
        raise ConfigError(unknown("architecture", theirs.model_type, [each.model_type for each in LAYOUTS]))
    config = GeoNormConfig.of(shape_of(theirs, layout), **{name: getattr(theirs, name, None) for name in TOKENS})
    stock = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    weights = stock.state_dict()
    found: dict[str, Tensor] = {}
    for ours, name in layout.names(config.shape()):
        # a gain that is stored less one has digits that its dtype cannot hold with the one
        found[ours] = weights[name].float() + layout.offset if layout.offset and is_gain(ours) else weights[name]
    if layout.scaled:
        found[EMBEDDING] = found[EMBEDDING] * config.hidden_size**0.5
    with torch.device("meta"):
        model = GeoNormForCausalLM(config)
    for name, buffer in model.named_buffers():
        found[name] = torch.tensor(model.get_submodule(name.rpartition(".")[0]).index, dtype=buffer.dtype)
    model.load_state_dict(found, strict=True, assign=True)
    model.tie_weights()
    model.generation_config = stock.generation_config
    return model.eval()


def shape_of(theirs: Any, layout: Layout) -> DecoderConfig:
    """The decoder of their configuration. ConfigError names the setting that has no equal."""

    def refuse(name: str, value: Any, wanted: Any) -> None:
        raise ConfigError(f"{layout.model_type} with {name}={value} has no equal here, only with {name}={wanted}")

    for name, wanted in layout.settings.items():
        value = getattr(theirs, name, None)
        value = set(value) if isinstance(value, list) else {value}
        if value != {wanted} and not (wanted in (None, False) and value <= {None, False}):
            refuse(name, ", ".join(map(str, value)), wanted)
    rope = theirs.rope_parameters
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        refuse("rope_parameters", rope, "the default type on whole heads")
    heads = theirs.num_attention_heads
    if (getattr(theirs, "head_dim", None) or theirs.hidden_size // heads) != theirs.hidden_size // heads:
        refuse("head_dim", theirs.head_dim, f"hidden_size / num_attention_heads = {theirs.hidden_size // heads}")
    if layout.scaled and theirs.query_pre_attn_scalar != theirs.hidden_size // heads:
        refuse("query_pre_attn_scalar", theirs.query_pre_attn_scalar, theirs.hidden_size // heads)
    biases = {bool(getattr(theirs, key)) for key in layout.bias}
    if len(biases) > 1:
        refuse(" and ".join(layout.bias), "different", "both on or both off")
    shape = {name: getattr(theirs, NAMES.get(name, name)) for name in SHARED}
    shape["eps"] = getattr(theirs, "rms_norm_eps", None)
    if layout.scaled and shape["tied"]:
        refuse("tie_word_embeddings", True, False)
    return DecoderConfig(
        **{
            **shape,
            **layout.fixed(),
            "bias": biases == {True},
            "scheme": layout.schemes[0],
            "rope_theta": float(rope["rope_theta"]),
        }
    )
