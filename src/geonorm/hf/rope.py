"""What transformers says of rotation (`rope_parameters`), and the fields of a decoder that mean the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..errors import ConfigError, unknown
from ..nn.config import DecoderConfig
from ..nn.rope_scaling import Yarn, make_scaling, name_of

ROPE = {"rope_theta": "rope_theta", "rotary": "partial_rotary_factor"}
"""Fields of DecoderConfig, and what rope_parameters call them."""
ORIGINAL = "original_max_position_embeddings"


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


def write_rope(config: DecoderConfig, partial: bool) -> dict[str, Any]:
    """`rope_parameters` of a decoder; with `partial` the share of a head that is rotated, too."""
    said = {"rope_theta": config.rope_theta} | ({"partial_rotary_factor": config.rotary} if partial else {})
    if (rule := config.scaling) is None:
        return {"rope_type": "default", **said}
    given = {f.name: getattr(rule, f.name) for f in fields(rule)}
    if "original" in given:
        given[ORIGINAL] = given.pop("original") or config.context
    return {"rope_type": name_of(rule), **said, **{name: value for name, value in given.items() if value is not None}}
