"""What transformers says of rotation (`rope_parameters`), and the fields of a decoder that mean the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from ..errors import ConfigError, unknown
from ..nn.config import DecoderConfig
from ..nn.rope_scaling import Yarn, make_scaling, rule_name

ROPE = {"rope_theta": "rope_theta", "rotary": "partial_rotary_factor"}
"""Fields of DecoderConfig, and what rope_parameters call them."""
ORIGINAL = "original_max_position_embeddings"
SLIDING = "sliding_attention"
FULL = "full_attention"
"""Kinds of blocks: with a window, and without."""


def read_rope(parameters: dict[str, Any], context: int) -> dict[str, Any]:
    """The fields of DecoderConfig, as far as they are given. context: tokens of the model that they belong to.
    ConfigError for a rule or a key that is not built."""
    rope = {key: value for key, value in parameters.items() if value is not None}
    kind = rope.pop("type", "default")
    kind = rope.pop("rope_type", kind)
    found = {ours: rope.pop(key) for ours, key in ROPE.items() if key in rope}
    if kind == "default":
        if rope:
            raise ConfigError(unknown("key of rope_parameters", next(iter(rope)), ["rope_type", *ROPE.values()]))
        return found
    if ORIGINAL in rope:
        rope["original"] = rope.pop(ORIGINAL)
    if kind == "longrope":
        rope.setdefault("factor", max(1.0, context / rope.setdefault("original", context)))
    if kind == "yarn":
        rope.setdefault("factor", context / rope.get("original", context))
        scales = rope.pop("mscale", None), rope.pop("mscale_all_dim", None)
        if all(scales) and "attention_factor" not in rope:
            over, under = (scale * (Yarn(rope["factor"]).sharpness() - 1) + 1 for scale in scales)
            rope["attention_factor"] = over / under
    return {**found, "rope_scaling": str(make_scaling(kind, rope))}


def read_by_window(parameters: dict[str, Any], context: int, kinds: Iterable[str]) -> dict[str, Any]:
    """As `read_rope`, of parameters for each kind of block, of which the model has these. ConfigError where blocks with
    a window turn neither as the others nor as those would without their rule."""
    found = [read_rope(parameters.get(kind) or {}, context) for kind in (FULL, SLIDING) if kind in kinds]
    whole, own = found[0], found[-1]
    if whole == own:
        return whole
    rule = whole.pop("rope_scaling", None)
    if rule is None or whole != own:
        raise ConfigError(
            f"rope_parameters with {SLIDING}={parameters[SLIDING]} have no equal here, only those of {FULL}, with "
            "their rule or without"
        )
    return {**whole, "rope_scaling": f"{rule.removesuffix(')')}, windows=false)"}


def write_rope(config: DecoderConfig, partial: bool) -> dict[str, Any]:
    """`rope_parameters` of a decoder; with `partial` the share of a head that is rotated, too."""
    said = {"rope_theta": config.rope_theta} | ({"partial_rotary_factor": config.rotary} if partial else {})
    if (rule := config.scaling) is None:
        return {"rope_type": "default", **said}
    given = {f.name: getattr(rule, f.name) for f in fields(rule) if f.name != "windows"}
    if "original" in given:
        given[ORIGINAL] = given.pop("original") or config.context
    return {"rope_type": rule_name(rule), **said, **{name: value for name, value in given.items() if value is not None}}


def write_by_window(config: DecoderConfig, partial: bool) -> dict[str, Any]:
    """`rope_parameters` for each kind of block."""
    plain = config if config.scaling is None or config.scaling.windows else replace(config, rope_scaling=None)
    return {FULL: write_rope(config, partial), SLIDING: write_rope(plain, partial)}
