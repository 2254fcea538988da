"""Architectures of transformers that equal a decoder of ours under some scheme: one table (stock.py reads it).

A layout says under which scheme and shape a decoder computes what the architecture computes, and what its modules are
called there ("theirs"). Where a field has no equal, the answer is a ConfigError that names it, never a model that is
nearly right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import transformers

from ..errors import ConfigError, unknown
from ..measure.anatomy import Stack
from ..measure.recognise import recognise
from ..models.config import DecoderConfig
from ..schemes import enter_as, parse
from .config import FULL, NAMES, SLIDING, GeoNormConfig, layer_types

EFFECTIVE = {"kv_heads": "groups", "head_width": "head_dim"}
"""Fields of DecoderConfig that may be None, and the property that says what they then are."""
PLAIN = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


@dataclass(frozen=True)
class Layout:
    """One architecture; how it differs from a Llama. Its norms, branches and ends are recognised."""

    model_type: str
    matrices: dict[str, str]
    """Names of the matrices inside the branches of a layer, from ours to theirs. Several of ours, with blanks between,
    are one matrix there, one below the other."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Fields of DecoderConfig that the architecture fixes, beside those that it shares with a Llama."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of their configuration that have one value here."""
    fields: dict[str, str | None] = field(default_factory=dict)
    """Fields of DecoderConfig that they call otherwise than most do, or do not have (None)."""
    scheme: str = "pre"
    """The scheme that computes the same; the stream enters as the embedding itself."""
    base: str = "model"
    """Path of the model without its head."""
    positions: str | None = None
    """Name of their table of learned positions; None where there is none."""
    mlp: dict[str, str] = field(default_factory=lambda: {"swiglu": "silu"})
    """Our MLPs that it can have, with their activation."""
    grouped: bool = True
    """Whether heads can share keys and values."""
    head_width: bool = False
    """Whether a head can be of another width than width / heads."""
    rotary: bool = False
    """Whether a part of each head can be rotated."""
    windows: tuple[str, ...] = ()
    """Their settings of a sliding window; empty where they have none."""
    by_window: bool = False
    """Whether they have settings of RoPE for blocks with a window apart from those for blocks without."""
    bias: tuple[str, ...] = ()
    """Their switches for biases of linear layers."""
    dropout: tuple[str, ...] = ()
    """Their rates of dropout outside attention that are not 0 by default; an export sets them to 0."""
    scaled: bool = False
    """Whether they multiply the embedding by sqrt(width)."""
    transposed: bool = False
    """Whether matrices of a layer are stored (in, out)."""
    by_head: bool = False
    """Whether rows of joined matrices alternate head by head."""

    @cached_property
    def stack(self) -> Stack:
        """The stack of blocks, recognised in a small model of the architecture."""
        small = GeoNormConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32,
            mlp=next(iter(self.mlp)),
        )  # fmt: skip
        with torch.random.fork_rng(devices=()):
            return recognise(transformers.AutoModelForCausalLM.from_config(self.configuration(small)))

    @property
    def schemes(self) -> tuple[str, ...]:
        return f"{self.scheme}(entry=embedding)", *(["sandwich"] if self.scheme == "peri" else [])

    @cached_property
    def modules(self) -> dict[str, str]:
        """Names of the modules of a layer, from ours, below `model.blocks.N`, to theirs. Several of theirs, with blanks
        between, hold the same weights."""
        names = {}
        for part in self.stack.sublayers:
            site = "both" if part.kind == "parallel" else part.kind
            for role in dict.fromkeys(part.norms.values()):
                names[f"{site}.own.{role}"] = " ".join(path for path, played in part.norms.items() if played == role)
            for number, branch in enumerate(part.branches):
                kind = ("attn", "mlp")[number] if site == "both" else site
                inner = f"both.branch.{kind}" if site == "both" else f"{site}.branch"
                for ours, theirs in self.matrices.items():
                    if (ours.split()[0] in ("gate", "up", "down")) == (kind == "mlp"):
                        names[join_names(ours, inner)] = f"{branch.modules[0]}.{theirs}"
        return names

    def fixed(self) -> dict[str, Any]:
        return {
            "block": "sequential",
            "positions": "rope" if self.positions is None else "learned",
            "norm": "rms",
            "qk_norm": "none",
            "qk_scale": 1.0,
            "values": "own",
            "attn_gate": False,
            "embed_norm": False,
            "transform": False,
            "causal": True,
            "soft_cap": None,
            **self.shape,
        }

    def their_name(self, name: str) -> str | None:
        """Their name of a field of DecoderConfig."""
        return {**NAMES, "eps": "rms_norm_eps", "mlp": "hidden_act", **self.fields}.get(name, name)

    def pairs(self, config: DecoderConfig) -> Iterator[tuple[list[str], list[str]]]:
        """The names of every module with weights: (ours, theirs)."""
        yield ["model.embed_tokens"], [f"{self.base}.{self.stack.embedding}"]
        yield ["lm_head"], ["lm_head"]
        yield ["model.exit.own.norm"], [f"{self.base}.{self.stack.exit}"]
        if self.positions is not None:
            yield ["model.position"], [f"{self.base}.{self.positions}"]
        for layer in range(config.layers):
            places = (f"model.blocks.{layer}", f"{self.base}.{self.stack.blocks}.{layer}")
            for names in self.modules.items():
                ours, theirs = map(join_names, names, places)
                yield ours.split(), theirs.split()

    def differences(self, config: DecoderConfig) -> list[str]:
        """Fields of a decoder that have no equal in the architecture, each in words: "qk_norm=head, not none"."""
        limits = {
            "kv_heads": (self.grouped, config.heads),
            "head_width": (self.head_width, config.width // config.heads),
            "rotary": (self.rotary, 1),
            "window": (self.windows, None),
            "full_every": ("layer_types" in self.windows, None),
            "mlp": (config.mlp in self.mlp, " or ".join(self.mlp)),
        }
        wanted = self.fixed() | {name: value for name, (is_free, value) in limits.items() if not is_free}
        values = {name: getattr(config, EFFECTIVE.get(name, name)) for name in wanted}
        return [f"{name}={values[name]}, not {value}" for name, value in wanted.items() if values[name] != value]

    def configuration(self, config: GeoNormConfig) -> Any:
        """The configuration of the architecture for a decoder that equals it."""
        shape = config.shape()
        settings = {theirs: getattr(shape, name) for name in SHARED if (theirs := self.their_name(name)) is not None}
        if self.their_name("kv_heads") is not None:
            settings["num_key_value_heads"] = shape.groups
        settings.update({name: getattr(config, name) for name in TOKENS})
        settings.update(dict.fromkeys(self.bias, shape.bias), **dict.fromkeys(self.dropout, 0.0), **self.settings)
        settings[self.their_name("mlp") or ""] = self.mlp[shape.mlp]
        if self.positions is None:
            turns = {"rope_type": "default", "rope_theta": shape.rope_theta}
            turns |= {"partial_rotary_factor": shape.rotary} if self.rotary else {}
            settings["rope_parameters"] = {FULL: turns, SLIDING: {**turns}} if self.by_window else turns
        windows = {
            "sliding_window": shape.window,
            "use_sliding_window": shape.window is not None,
            "layer_types": layer_types(shape),
        }
        if shape.window is None and "layer_types" in self.windows:
            del windows["sliding_window"]  # Gemma 2 asks for its number where no layer has one, too
        settings.update({name: windows[name] for name in self.windows if name in windows})
        if self.scaled:
            settings["query_pre_attn_scalar"] = shape.head_dim
        if self.head_width:
            settings["head_dim"] = shape.head_dim
        return transformers.AutoConfig.for_model(self.model_type, **settings)


def join_names(names: str, at: str) -> str:
    return " ".join(f"{at}.{name}" for name in names.split())


WINDOW, BY_LAYER = ("sliding_window",), ("layer_types",)
QKV = "q k v"
ATTENTION = {name: f"{name}_proj" for name in "qkvo"}
HEAD_NORMS = {f"norms.{name}": f"{name}_norm" for name in "qk"}
LLAMA = ATTENTION | {name: f"{name}_proj" for name in ("gate", "up", "down")}
GPT2 = {QKV: "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj"}
NEOX = {QKV: "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"}
OLD_NAMES: dict[str, Any] = {
    "fields": {"hidden": "n_inner", "eps": "layer_norm_epsilon", "mlp": "activation_function", "kv_heads": None,
               "attn_dropout": "attn_pdrop"},
    "base": "transformer", "positions": "wpe", "dropout": ("resid_pdrop", "embd_pdrop"), "transposed": True,
}  # fmt: skip
NEOX_NAMES: dict[str, Any] = {
    "fields": {"eps": "layer_norm_eps", "kv_heads": None}, "mlp": PLAIN, "grouped": False, "bias": ("attention_bias",),
    "base": "gpt_neox", "rotary": True, "by_head": True,
}  # fmt: skip

LAYOUTS = (
    Layout("llama", LLAMA, head_width=True, bias=("attention_bias", "mlp_bias")),
    Layout("mistral", LLAMA, head_width=True, windows=WINDOW),
    Layout("qwen2", LLAMA, head_width=True, windows=(*WINDOW, *BY_LAYER, "use_sliding_window")),
    Layout(
        "phi3", {QKV: "qkv_proj", "o": "o_proj", "gate up": "gate_up_proj", "down": "down_proj"},
        windows=WINDOW, rotary=True,
    ),
    Layout(
        "qwen3", HEAD_NORMS | LLAMA, shape={"qk_norm": "head"}, windows=(*WINDOW, *BY_LAYER, "use_sliding_window"),
        head_width=True, bias=("attention_bias",),
    ),
    Layout(
        "olmo", LLAMA, shape={"norm": "layer", "gains": False, "eps": 1e-5}, settings={"clip_qkv": None},
        fields={"eps": None}, bias=("attention_bias",),
    ),
    Layout(
        "olmo2", HEAD_NORMS | LLAMA, scheme="olmo2", shape={"qk_norm": "full"}, head_width=True,
        bias=("attention_bias",),
    ),
    Layout(
        "olmo3", HEAD_NORMS | LLAMA, scheme="olmo2", shape={"qk_norm": "full"}, head_width=True,
        bias=("attention_bias",), windows=(*WINDOW, *BY_LAYER), by_window=True,
    ),
    Layout(
        "gemma2", LLAMA, scheme="peri", fields={"mlp": "hidden_activation"}, bias=("attention_bias",),
        settings={
            "attn_logit_softcapping": None, "final_logit_softcapping": None, "use_bidirectional_attention": None,
        },
        head_width=True, scaled=True, windows=(*WINDOW, *BY_LAYER),
    ),
    Layout(
        "gpt2", GPT2, shape={"norm": "layer"}, mlp={"gelu": "gelu", "gelu_tanh": "gelu_new"}, grouped=False,
        settings={
            "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
        },
        **OLD_NAMES,
    ),
    Layout("gpt_neox", NEOX, {"norm": "layer"}, {"use_parallel_residual": False}, **NEOX_NAMES),
    Layout("gpt_neox", NEOX, {"norm": "layer", "block": "parallel"}, {"use_parallel_residual": True}, **NEOX_NAMES),
    Layout(
        "starcoder2", ATTENTION | {"up": "c_fc", "down": "c_proj"}, {"norm": "layer"}, mlp=PLAIN, windows=WINDOW,
        fields={"eps": "norm_epsilon"}, bias=("use_bias",),
    ),
    Layout(
        "stablelm", LLAMA, {"norm": "layer"}, rotary=True, bias=("use_qkv_bias",), fields={"eps": "layer_norm_eps"},
        settings={"use_parallel_residual": False, "qk_layernorm": False},
    ),
)  # fmt: skip
"""All layouts. `--layout stock` takes the first that fits."""


SHARED = ("vocab_size", "width", "hidden", "layers", "heads", "kv_heads", "context", "tied", "eps", "attn_dropout")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def layout_of(config: DecoderConfig, model_type: str = "stock") -> Layout:
    """The architecture that a decoder equals: the one of that name, or (stock) the first. ConfigError names what stands
    in the way.

        >>> from geonorm import DecoderConfig, hf
        >>> hf.layout_of(DecoderConfig("olmo2", qk_norm="full")).model_type
        'olmo2'
    """
    scheme = parse(config.scheme)
    plain = str(enter_as(scheme, "embedding"))
    candidates = [layout for layout in LAYOUTS if model_type in ("stock", layout.model_type)]
    if not candidates:
        raise ConfigError(unknown("layout", model_type, {"geonorm", "stock", *(each.model_type for each in LAYOUTS)}))
    by_scheme = [layout for layout in candidates if plain in layout.schemes]
    if not by_scheme:
        known = ", ".join(sorted({layout.schemes[0] for layout in candidates}))
        what = f"not {model_type}, which is {known}"
        what = f"no architecture of transformers (those are {known})" if model_type == "stock" else what
        raise ConfigError(f"{scheme} is {what}: use --layout geonorm")
    compared = [(layout.differences(config), layout) for layout in by_scheme]
    wrong, layout = min(compared, key=lambda pair: len(pair[0]))
    if wrong:
        raise ConfigError(f"{layout.model_type} has no equal for model.{'; model.'.join(wrong)}: use --layout geonorm")
    if plain != str(scheme) and layout.positions is not None:
        raise ConfigError(
            f"{scheme} normalises the sum of embedding and position, and {layout.model_type} does not: use --layout "
            "geonorm"
        )
    if config.tied and (layout.scaled or plain != str(scheme)):
        what = "scales" if layout.scaled else "normalises"
        raise ConfigError(
            f"{scheme if what == 'normalises' else layout.model_type} {what} the embedding, so the head must "
            "have weights of its own, and here they are tied: use --layout geonorm"
        )
    return layout


def architecture(config: DecoderConfig, layout: str) -> str:
    """The model_type of an export for --layout: geonorm, an architecture, or stock for the first that is equal."""
    return layout if layout == "geonorm" else layout_of(config, layout).model_type
