"""Typed settings: what a field takes, what is said of anything else, and the way from and to YAML."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

from geonorm.cli.arguments import read
from geonorm.errors import ConfigError
from geonorm.models.sampling import sample
from geonorm.parsing import from_yaml
from geonorm.settings import Count, Range, Settings, check_unused, docs, from_dict, options, to_dict

from .rows import each


@dataclass(frozen=True)
class Part(Settings):
    """A group."""

    prefix = "part."

    word: Literal["one", "two"] = "one"
    """Of two."""
    pair: tuple[float, float] = (0.5, 1.0)
    """Two numbers."""


@dataclass(frozen=True)
class Whole(Settings):
    """Some settings."""

    name: str
    """Which."""
    number: Count | None = None
    """How
    many."""
    rates: list[Annotated[float, Range(0, 1)]] = field(default_factory=list)
    """Shares."""
    switch: bool = False
    """Whether."""
    part: Part = field(default_factory=Part)

    def unused(self) -> Iterator[tuple[str, str]]:
        if not self.switch:
            yield "rates", "switch"
        if self.number is None:
            yield "part.word", "a number"
        yield "absent", "what another command has"


def test_fields_get_their_types() -> None:
    found: Any = Whole(Path("a/b"), number=np.int64(3), rates=[1, 0], part=Part(pair=[1, 2]))  # type: ignore
    assert (found.name, found.number, found.rates, found.part.pair) == ("a/b", 3, [1.0, 0.0], (1.0, 2.0))
    assert [type(each) for each in (found.number, *found.rates, *found.part.pair)] == [int] + 4 * [float]


@each(
    "values, said",
    [
        ({"name": 3}, "name must be text, got 3"),
        ({"number": 0}, "number must be at least 1, got 0"),
        *(({"number": value}, f"number must be a whole number, got {value!r}") for value in (1.5, True, "3")),
        ({"rates": [0.5, 2]}, "rates must be between 0 and 1, got 2"),
        ({"rates": 0.5}, "rates must be a list, each a number, got 0.5"),
        ({"switch": 1}, "switch must be true or false, got 1"),
        ({"part": {"word": "too"}}, "unknown part.word 'too': did you mean 'two'?"),
        ({"part": {"pair": [1]}}, "part.pair must be 2 values, each a number, got [1]"),
        ({"part": {"wrod": "two"}}, "unknown setting 'part.wrod': did you mean 'part.word'?"),
        ({"part": 3}, "part must be a mapping of settings, got 3"),
    ],
)
def test_anything_else_is_one_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Whole, {"name": "x", **values})
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_text_stands_for_a_number_where_a_person_wrote_it() -> None:
    written = {"name": 7, "number": "3", "rates": ["1e-2", 1], "switch": "true", "part": {"pair": ["1", 2]}}
    found = from_dict(Whole, written, typed=True)
    assert found == Whole("7", 3, [0.01, 1.0], True, Part(pair=(1.0, 2.0)))
    assert from_dict(Whole, {"name": "x", "number": "null"}, typed=True).number is None
    assert from_dict(Whole, {"name": date(2026, 1, 2)}, typed=True).name == "2026-01-02"  # what YAML makes of it
    for value in ("three", "1e3", "nan", [1]):
        with pytest.raises(ConfigError, match="--number takes a whole number, got "):
            from_dict(Whole, {"name": "x", "number": value}, typed=True)
    with pytest.raises(ConfigError, match="--rates takes a finite number, got 'inf'"):
        from_dict(Whole, {"name": "x", "rates": ["inf"]}, typed=True)


def test_to_a_dict_and_back() -> None:
    config = Whole("x", 2, [0.5], True, Part("two", (0, 1)))
    assert to_dict(config) == {
        "name": "x", "number": 2, "rates": [0.5], "switch": True, "part": {"word": "two", "pair": [0.0, 1.0]}
    }  # fmt: skip
    assert from_dict(Whole, to_dict(config)) == config


def test_options_are_the_leaves_with_their_documentation() -> None:
    assert list(options(Whole)) == ["name", "number", "rates", "switch", "part.word", "part.pair"]
    assert options(Whole)["number"].text == docs(Whole)["number"] == "How many."
    assert options(Whole)["part.word"].flag == "--part.word" and options(Whole)["part.pair"].many


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rates": [0.5]}, "--rates does nothing here, it needs switch: see to that, or leave it out"),
        ({"rates": ["0.5"]}, "--rates does nothing here"),
        ({"part": {"word": "two"}}, "--part.word does nothing here, it needs a number"),
        ({"part": Part("two")}, "--part.word does nothing here, it needs a number"),
    ],
)
def test_what_does_nothing_is_refused_where_somebody_gave_it(given: dict[str, Any], said: str) -> None:
    """What stands there anyway is no request, and neither is what a file names beside all else."""
    config = from_dict(Whole, {"name": "x", **given}, typed=True)
    with pytest.raises(ConfigError, match=said):
        check_unused(config, given)
    check_unused(config, {"name": "x"})
    for defaults in ({"name": "x", "rates": []}, {"name": "x", "part": {"word": "one"}}):
        check_unused(from_dict(Whole, defaults, typed=True), defaults)
    check_unused(from_dict(Whole, {"name": "x", "number": 1, "switch": True, **given}, typed=True), given)


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
