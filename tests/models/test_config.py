"""Sizes and their errors; no torch is needed to read them."""

from typing import Any

import pytest
import torch

from geonorm.errors import ConfigError
from geonorm.models import PRESETS, DecoderConfig, preset
from geonorm.models.config import GATED
from geonorm.models.decoder import Decoder

from ..rows import each


@each(
    "name, low, high",
    [
        ("nano", 1.04e6, 1.06e6),
        ("nano-gpt2", 0.93e6, 0.95e6),  # tied
        ("nano-bert", 0.95e6, 0.97e6),  # a matrix before the head besides
        ("modern", 1.3e6, 1.4e6),  # tables of token vectors in two blocks besides
        ("125m", 120e6, 165e6),  # untied: the head counts too
        ("modern-d12", 280e6, 290e6),  # six tables of 25M
        ("mini", 6e6, 8e6), ("paper-125m", 120e6, 165e6), ("bert-base", 109e6, 110e6), ("350m", 350e6, 410e6),
        ("1.3b", 1.3e9, 1.45e9), ("7b", 6.6e9, 7.0e9), ("70b", 68e9, 70e9),
    ],
)  # fmt: skip
@each("scheme", ["geonorm", "ngpt"])
def test_parameter_counts_of_presets(name: str, low: float, high: float, scheme: str) -> None:
    config = preset(name, scheme=scheme)
    with torch.device("meta"):
        model = Decoder(config)
    assert all(p.is_meta for p in model.parameters()), "a model on the meta device must cost no memory"
    assert low < model.parameter_count() < high
    c, mats = config, 3 if config.mlp in GATED else 2
    rows = (1 if c.tied else 2) * c.vocab_size + (c.context if c.positions == "learned" else 0)
    block = 2 * c.width * c.width + 2 * c.width * c.groups * c.head_dim + mats * c.width * c.hidden
    before_head = c.width * c.width if c.transform else 0
    before_head += (c.layers + 1) // 2 * c.vocab_size * c.groups * c.head_dim if c.values == "token" else 0
    assert model.matmul_parameter_count() == rows * c.width + c.layers * block + before_head


def test_every_preset_is_in_the_table_above() -> None:
    causal = ["nano", "nano-gpt2", "modern", "mini", "125m", "paper-125m", "modern-d12", "350m", "1.3b", "7b", "70b"]
    assert [name for name, shape in PRESETS.items() if shape.causal] == causal
    assert [name for name, shape in PRESETS.items() if not shape.causal] == ["nano-bert", "bert-base"]
    assert PRESETS["nano"] == DecoderConfig()


def test_grouped_queries() -> None:
    assert DecoderConfig(heads=4).groups == 4 and DecoderConfig(heads=4, kv_heads=2).groups == 2
    assert DecoderConfig(width=96, heads=4).head_dim == 24
    wide = DecoderConfig(width=50, heads=4, head_width=16, rotary=0.25)
    assert wide.head_dim == 16 and wide.rotary_dim == 4


@each(
    "changes, says",
    [
        ({"layers": 0}, "model.layers must be at least 1"),
        ({"heads": 3}, "even multiple of model.heads 3"),
        ({"width": 12, "heads": 4}, "even multiple"),  # head_dim 3 has no rotary pairs
        ({"width": 13, "heads": 4, "positions": "learned"}, "width 13 must be a multiple of model.heads 4"),
        ({"head_width": 0}, "model.head_width must be at least 1"),
        ({"head_width": 9}, "model.head_width 9 must be even (rotary pairs)"),
        ({"rotary": 0.1}, "model.rotary 0.1 of a head of 32 must be an even number of dimensions"),
        ({"rotary": 1.5}, "model.rotary 1.5 of"),
        ({"rotary": 0.5, "positions": "learned"}, "model.rotary 0.5 needs model.positions=rope, not learned"),
        ({"kv_heads": 3}, "multiple of model.kv_heads"),
        ({"kv_heads": 0}, "model.kv_heads must be at least 1"),
        ({"window": 0}, "model.window must be at least 1, got 0"),
        ({"window": 4, "causal": False}, "model.window 4 needs a model whose tokens see those before them alone"),
        ({"full_every": 2}, "model.full_every 2 needs model.window"),
    ],
)
def test_shapes_that_do_not_fit(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        preset("nano", **changes)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_unknown_names_point_to_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown preset '125': did you mean '125m'"):
        preset("125")
    with pytest.raises(ConfigError, match="unknown field of model 'layer': did you mean 'layers'"):
        preset("nano", layer=3)
    with pytest.raises(ConfigError, match="unknown scheme 'geonrom'"):
        Decoder(preset("nano", scheme="geonrom"))
