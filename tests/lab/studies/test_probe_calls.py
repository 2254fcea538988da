"""geonorm.probe in Python: what cannot be probed is refused in one line, before or after it ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import geonorm
from geonorm.errors import ConfigError
from geonorm.probes.config import ProbeConfig
from geonorm.sites.anatomy import Stack

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gradients": True}, "has no sites"),
        ({"ablate_blocks": True}, "has no sites"),
        ({"logit_lens": True}, "knows no blocks"),
        ({"stacks": [Stack.by_hand("layers", ["attn:branch=self_attn"])]}, "has no sites"),
    ],
)
def test_norms_alone_have_no_sites(asked: dict[str, Any], said: str, tiny_model: Tiny) -> None:
    """In Python as on the command line."""
    model, inputs = tiny_model("llama")
    assert geonorm.probe(model, inputs["input_ids"], sites=False).norms
    with pytest.raises(ConfigError, match=said) as python:
        geonorm.probe(model, inputs["input_ids"], sites=False, **asked)
    if "stacks" in asked:
        asked = {"blocks": "layers", "sublayers": ["attn:branch=self_attn"]}
    with pytest.raises(ConfigError) as typed:
        ProbeConfig(["m"], norms_only=True, **asked)
    assert str(python.value) == str(typed.value)
