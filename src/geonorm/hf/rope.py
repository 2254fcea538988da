"""What transformers says of rotation (`rope_parameters`), and the fields of a decoder that mean the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import ConfigError, unknown
from ..models.config import DecoderConfig

ROPE = {"rope_theta": "rope_theta", "rotary": "partial_rotary_factor"}
"""Fields of DecoderConfig, and what rope_parameters call them."""
SLIDING = "sliding_attention"
FULL = "full_attention"
"""Kinds of blocks: with a window, and without."""


def read_rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """The fields of DecoderConfig, as far as they are given. ConfigError for scaled rotation, or an unknown key."""
    rope = {key: value for key, value in parameters.items() if value is not None}
    kind = rope.pop("type", "default")
    kind = rope.pop("rope_type", kind)
    if kind != "default":
        raise ConfigError(f"rope_type {kind} has no equal here, only default; hf.apply leaves a model its rotation")
    fields = {ours: rope.pop(key) for ours, key in ROPE.items() if key in rope}
    if rope:
        raise ConfigError(unknown("key of rope_parameters", next(iter(rope)), ["rope_type", *ROPE.values()]))
    return fields


def read_by_window(parameters: dict[str, Any], kinds: Iterable[str]) -> dict[str, Any]:
    """As `read_rope`, of parameters for each kind of block, of which the model has these. ConfigError where blocks with
    a window turn otherwise than those without."""
    first, *others = [read_rope(parameters.get(kind) or {}) for kind in (FULL, SLIDING) if kind in kinds]
    if others not in ([], [first]):
        raise ConfigError(f"rope_parameters with {SLIDING}={parameters[SLIDING]} have no equal here, only one for all")
    return first


def write_rope(config: DecoderConfig, partial: bool) -> dict[str, Any]:
    """`rope_parameters` of a decoder; with `partial` the share of a head that is rotated, too."""
    share = {"partial_rotary_factor": config.rotary} if partial else {}
    return {"rope_type": "default", "rope_theta": config.rope_theta, **share}


def write_by_window(config: DecoderConfig, partial: bool) -> dict[str, Any]:
    """`rope_parameters` for each kind of block."""
    return {kind: write_rope(config, partial) for kind in (FULL, SLIDING)}
