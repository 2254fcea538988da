"""Words and settings that anybody may have written: read within bounds, or refused in one line."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from geonorm.cli.arguments import read
from geonorm.errors import ConfigError
from geonorm.lab.distributed.ranks import from_bytes, to_bytes
from geonorm.models.sampling import sample
from geonorm.parsing import from_yaml
from geonorm.settings import Settings

from .rows import each


@each(
    "text, said",
    [
        ("a: &a [1]\nb: *a", "alias"),
        ("a: &a [*a]", "alias"),
        ("a: 1\na: 2", "given twice"),
        ("[" * 100_000, "deep|recursion"),
        ("a: " + "9" * 5000, "digits"),
        ("!!python/object/apply:os.system ['true']", "constructor"),
    ],
)
def test_yaml_is_plain(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_yaml(text)


@dataclass(frozen=True)
class Some(Settings):
    """Some."""

    steps: int = 1
    """How many."""
    names: list[str] = field(default_factory=list)
    """Which."""
    out: str = "x"
    """Where."""


@each(
    "words, said",
    [
        (["--steps", "9" * 5000], "a whole number, got '9{40,50}[.]{3}9{40,50}'"),
        (["--out", "a\0b"], "NUL character"),
        (["--out", "a\udcff"], "not valid Unicode"),
    ],
)
def test_arguments_that_cannot_be_used(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(Some, "geonorm test", words)


def test_home_is_found_where_something_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert read(Some, "geonorm test", ["--out=~/runs"]).out == "/somewhere/runs"


@each("temperature", [1e-320, 1e-40, 1e-37, 1e-9])
def test_a_low_temperature_is_the_likeliest_token(temperature: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 100
    assert torch.equal(sample(logits, temperature, None, None), logits.argmax(-1, keepdim=True))


def test_what_ranks_tell_each_other_is_json() -> None:
    value = {"status": "new", "list": [1, None, "ä"]}
    assert from_bytes(to_bytes(value)) == value
    with pytest.raises(TypeError):
        to_bytes(object())
