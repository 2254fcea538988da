"""The configuration of a geonorm model in transformers: the decoder's shape under the names transformers knows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any, ClassVar, get_type_hints

from transformers import GenerationConfig, PreTrainedConfig

from .. import __version__
from ..errors import ConfigError, UntrustedCode, unknown
from ..models.config import DecoderConfig
from ..schemes import Scheme, parse, sources_of, stored

NAMES = {f.name: f.name for f in fields(DecoderConfig)} | {
    "width": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "context": "max_position_embeddings",
    "eps": "norm_eps",
    "tied": "tie_word_embeddings",
    "rotary": "partial_rotary_factor",
    "attn_dropout": "attention_dropout",
    "window": "sliding_window",
    "causal": "is_causal",
}
"""Fields of DecoderConfig, and what transformers calls them."""

THEIRS = set(
    """num_labels name_or_path torch_dtype output_attentions attn_implementation experts_implementation
    per_layer_config tie_last_hidden_states quantization_config model_type auto_map _name_or_path _commit_hash
    _attn_implementation custom_pipelines""".split()
)
"""Keyword arguments that transformers itself passes beside the fields."""


def from_folder(config_dict: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json, with its scheme marked as text of a folder: it runs no code that is not allowed."""
    scheme, source = config_dict.get("scheme"), config_dict.get("scheme_source")
    if not isinstance(scheme, str):
        return config_dict
    where = settings.get("name_or_path") or config_dict.get("_name_or_path") or "config.json"
    return {**config_dict, "scheme": stored(scheme, source, str(where))}


SLIDING = "sliding_attention"
FULL = "full_attention"
"""Kinds of blocks: with a window, and without."""


FIELD_TYPES = get_type_hints(DecoderConfig)
ShapeFields: Any = type(
    "ShapeFields",
    (PreTrainedConfig,),
    {"__annotations__": {theirs: FIELD_TYPES[ours] for ours, theirs in NAMES.items()}}
    | {NAMES[f.name]: f.default for f in fields(DecoderConfig)},
)
"""The fields of DecoderConfig under the names of transformers, with their types and defaults."""


def layer_types(shape: DecoderConfig) -> list[str]:
    """What transformers calls the attention of each block of a decoder."""
    return [SLIDING if shape.window_of(layer) else FULL for layer in range(shape.layers)]


class GeoNormConfig(ShapeFields):
    """A decoder under a residual scheme, or with is_causal=False an encoder:
    `GeoNormConfig(scheme="geonorm(decay=sqrt)", hidden_size=512)`.

    Fields are those of `geonorm.DecoderConfig`, with the documentation there, under the names of transformers. `scheme`
    becomes canonical. ConfigError, one line, for a key, scheme or size that does not exist or does not fit.

        >>> from geonorm import hf
        >>> config = hf.GeoNormConfig(scheme="geonorm( decay = sqrt )", hidden_size=64, num_attention_heads=4)
        >>> config.scheme, config.num_key_value_heads
        ('geonorm(decay=sqrt)', 4)
    """

    model_type = "geonorm"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]
    scheme_source: dict[str, Any] | None = None
    geonorm_version: str | None = None
    trained_on_sha256: str | None = None
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for key in kwargs:
            if key not in THEIRS | set(GenerationConfig._get_default_generation_params()):
                raise ConfigError(unknown("key of GeoNormConfig", key, [f.name for f in fields(self)]))
        with suppress(UntrustedCode):  # text of a folder: whoever builds the model says whether its code may run
            self.rule()
        if self.sliding_window == 1:  # transformers' cache of one token before the last keeps all of them
            raise ConfigError("sliding_window 1 is not for models of transformers: a token would see itself alone")
        if self.num_key_value_heads is None:  # type: ignore[has-type]
            self.num_key_value_heads = self.num_attention_heads
        self.shape()
        super().__post_init__(**{"auto_map": {}, **kwargs})  # TRL reads it whether there is one or not

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers does it. What a folder says runs no code: see `rule`."""
        return super().from_dict(from_folder(config_dict, kwargs), **kwargs)

    def rule(self) -> Scheme:
        """The scheme, whose text becomes canonical. `scheme_source` is the source of what in it is from elsewhere;
        UntrustedCode where that came from a folder and may not run."""
        scheme = parse(self.scheme)  # type: ignore[has-type]
        self.scheme, self.scheme_source = str(scheme), sources_of(scheme) or self.scheme_source
        return scheme

    def to_dict(self) -> dict[str, Any]:
        """What is saved, with the version that does it: an attribute that was set on the object and is no key is
        left out, so that it cannot disturb loading."""
        known = THEIRS.union(f.name for f in fields(self))
        every = super().to_dict()
        saved = {key: value for key, value in every.items() if key in known and (value or key != "auto_map")}
        return {**saved, "geonorm_version": __version__}

    @property
    def layer_types(self) -> list[str]:
        """What transformers' caches and masks ask where some blocks have a window and some have none; elsewhere there
        is no such attribute, and `sliding_window` says all."""
        if self.full_every is None:
            raise AttributeError("layer_types: all layers are alike")
        return layer_types(self.shape())

    def shape(self) -> DecoderConfig:
        """The shape of the network, in our own words."""
        return DecoderConfig(**{ours: getattr(self, theirs) for ours, theirs in NAMES.items()})

    @classmethod
    def of(cls, decoder: DecoderConfig, **more: Any) -> GeoNormConfig:
        """The configuration of a decoder; `more` are fields that it does not have, such as eos_token_id."""
        return cls(**{theirs: getattr(decoder, ours) for ours, theirs in NAMES.items()}, **more)
