"""Rotation for long texts: the frequencies of transformers, in a decoder, with its cache, in its configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from geonorm import DecoderConfig
from geonorm.errors import ConfigError
from geonorm.nn import generate
from geonorm.nn.attention import rope, rotary_of
from geonorm.nn.rope_scaling import KINDS, read_scaling

from .tiny import TINY, decoder, ids

SHORT, LONG = ([1 + pair * slower for pair in range(16)] for slower in (0.0625, 2.125))


def words(numbers: list[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


FACTORS = f"short_factor={words(SHORT)}, long_factor={words(LONG)}"

RULES: dict[str, dict[str, Any]] = {
    "linear(factor=2.5)": {},
    "dynamic(factor=2)": {},
    "yarn(factor=4, original=64)": {"original_max_position_embeddings": 64},
    "yarn(factor=4)": {"original_max_position_embeddings": 256},
    "yarn(factor=8, original=64, beta_fast=16, beta_slow=2, attention_factor=1.5, truncate=false)": {
        "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5,
        "truncate": False,
    },
    "llama3(factor=8, original=64)": {
        "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "llama3(factor=3, original=128, low_freq_factor=2, high_freq_factor=16)": {
        "original_max_position_embeddings": 128, "low_freq_factor": 2.0, "high_freq_factor": 16.0,
    },
    f"longrope(factor=4, {FACTORS}, original=64)": {
        "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 64,
    },
    f"longrope(factor=1, {FACTORS}, original=300, attention_factor=1.25)": {
        "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 300, "attention_factor": 1.25,
    },
}  # fmt: skip
"""Rules, and what transformers calls their fields beside the factor. The model's context is 256."""


@pytest.mark.parametrize("tokens", [7, 256, 700])
@pytest.mark.parametrize("text", RULES)
def test_tables_are_those_of_transformers(text: str, tokens: int) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rule, kind = read_scaling(text), text.partition("(")[0]
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=256,
        rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": rule.factor, **RULES[text]},
    )  # fmt: skip
    positions = torch.arange(tokens)
    wanted, sharper = ROPE_INIT_FUNCTIONS[kind](config, seq_len=torch.tensor(tokens))
    angles = positions.float()[:, None] * wanted
    cos, sin = rope(positions, 32, 1e4, rule, 256)
    torch.testing.assert_close(cos, angles.cos() * sharper, rtol=0, atol=1e-6)
    torch.testing.assert_close(sin, angles.sin() * sharper, rtol=0, atol=1e-6)
    assert not torch.allclose(cos, rope(positions, 32, 1e4)[0]) or (kind == "dynamic" and tokens <= 256)


def test_every_kind_is_tested() -> None:
    assert {text.partition("(")[0] for text in RULES} == set(KINDS)


@pytest.mark.parametrize("text", RULES)
def test_text_and_rule_are_one(text: str) -> None:
    shortest = text.replace(", low_freq_factor=1", "")
    assert str(read_scaling(text)) == shortest
    assert DecoderConfig(rope_scaling=f" {text} ".replace("=", " = ")).rope_scaling == shortest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yarn", "cannot read model.rope_scaling 'yarn': write it as yarn(factor=4, original=2048)"),
        ("yarn(4)", "cannot read model.rope_scaling 'yarn(4)'"),
        ("yarn(factor=4", "cannot read model.rope_scaling"),
        ("yarm(factor=4)", "unknown model.rope_scaling 'yarm': did you mean 'yarn'?"),
        (
            "longrope(factor=4)",
            "longrope needs short_factor: longrope(factor=4, short_factor=1 1.1, long_factor=1.5 8, original=2048)",
        ),
        (
            "longrope(factor=4, short_factor=1 2, long_factor=1 2, original=64)",
            "short_factor has 2 numbers, and a head has 16 pairs of",
        ),
        (
            f"longrope(factor=4, short_factor={words(SHORT)}, long_factor=3, original=64)",
            "long_factor has 1 numbers, and a head has 16",
        ),
        (
            "longrope(factor=4, short_factor=1 0, long_factor=1 2, original=64)",
            "model.rope_scaling.short_factor must be positive, got 0",
        ),
        (
            "longrope(factor=4, short_factor=1 two, long_factor=1 2, original=64)",
            "--model.rope-scaling.short-factor takes",
        ),
        (
            "longrope(factor=4, short_factor=1, long_factor=1, original=1)",
            "model.rope_scaling.original must be at least 2, got 1",
        ),
        ("yarn(factor=2, windows=false)", "needs model.window: it leaves blocks with a window alone"),
        ("linear(factor=2, factor=8)", "gives a field twice"),
        ("yarn(factor=1 2)", "--model.rope-scaling.factor takes"),
        ("yarn(original=64)", "model.rope_scaling yarn needs a factor: yarn(factor=4)"),
        ("linear(factor=0.5)", "model.rope_scaling.factor must be at least 1, got 0.5"),
        ("linear(factor=two)", "--model.rope-scaling.factor takes a number"),
        ("linear(factor=nan)", "--model.rope-scaling.factor takes a finite number"),
        ("linear(factor=2, original=64)", "unknown setting 'model.rope_scaling.original'"),
        ("llama3(factor=8, low_freq_factor=4)", "high_freq_factor must be above low_freq_factor 4, got 4"),
    ],
)
def test_what_cannot_be_is_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DecoderConfig(rope_scaling=text)
    assert said.removesuffix(" a number") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"positions": "learned"}, "needs model.positions=rope, not learned"),
        ({"rotary": 0.0625}, "needs at least 4 rotated dimensions of a head"),
    ],
)
def test_a_model_that_rotates_nothing_to_scale(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DecoderConfig(rope_scaling="dynamic(factor=2)", **fields)


def test_yarn_needs_rotations_that_differ() -> None:
    with pytest.raises(ConfigError, match=r"needs model\.rope_theta above"):
        DecoderConfig(rope_scaling="yarn(factor=4, original=64)", rope_theta=1.0)
    DecoderConfig(rope_scaling="linear(factor=4)", rope_theta=1.0)


@torch.no_grad()
@pytest.mark.parametrize("text", [text for text in RULES if not text.startswith("dynamic")])
def test_decoding_with_a_cache_is_the_whole_sequence_beyond_the_context(text: str) -> None:
    model, plain = (decoder(rope_scaling=rule, head_width=32).eval() for rule in (text, None))
    sequence = ids(tokens=3 * TINY.context)
    cache = model.new_cache(3 * TINY.context)
    parts = [model(part, cache) for part in sequence.split([5, 30, 1, 12], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(sequence), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(sequence), plain(sequence), atol=1e-3)


@torch.no_grad()
def test_dynamic_is_plain_up_to_the_context() -> None:
    model, plain, sequence = decoder(rope_scaling="dynamic(factor=4)").eval(), decoder().eval(), ids(tokens=40)
    short = sequence[:, : TINY.context]
    torch.testing.assert_close(model(short), plain(short), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model(sequence), plain(sequence), atol=1e-3)
    turn = rotary_of(model.config)
    assert turn is not None and turn(torch.arange(17))[0][1, 1] > turn(torch.arange(16))[0][1, 1]  # slower than before
    assert len(list(generate(model, short, 4, temperature=0.0))) == 4


@torch.no_grad()
def test_longrope_changes_over_at_its_length() -> None:
    """Behind `original` tokens all turn by the other set, those in a cache, too."""
    text = "longrope(factor=3, short_factor=1 1 1 1, long_factor=2 3 4 5, original=16, attention_factor=1)"
    model, sequence = decoder(rope_scaling=text).eval(), ids(tokens=17)
    short = sequence[:, :16]
    torch.testing.assert_close(model(short), decoder().eval()(short), rtol=1e-5, atol=1e-6)
    turn = rotary_of(model.config)
    assert turn is not None and turn(torch.arange(17))[0][1, 0] > turn(torch.arange(16))[0][1, 0]
    for tokens in (15, 16, 17):
        found, slow = (list(generate(model, sequence[:, :tokens], 4, 0.0, cached=cached)) for cached in (True, False))
        assert torch.equal(torch.cat(found), torch.cat(slow))
    cache = model.new_cache(17)
    model(short, cache)  # by hand a cache keeps what is in it, as in transformers
    assert not torch.allclose(model(sequence[:, 16:], cache)[:, -1], model(sequence)[:, -1], atol=1e-4)


@torch.no_grad()
def test_blocks_with_a_window_may_turn_as_without_the_rule() -> None:
    """With a cache too; where every block has a window the rule then moves nothing."""
    text, shape = "yarn(factor=4, windows=false)", {"window": 20}
    model, sequence = decoder(rope_scaling=text, full_every=2, **shape).eval(), ids(tokens=40)
    whole = model(sequence)
    cache = model.new_cache(40)
    parts = [model(part, cache) for part in sequence.split([5, 30, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)
    for other in (None, "yarn(factor=4)"):
        assert not torch.allclose(decoder(rope_scaling=other, full_every=2, **shape).eval()(sequence), whole, atol=1e-4)
    assert torch.equal(*(decoder(rope_scaling=rule, **shape).eval()(sequence) for rule in (text, None)))
