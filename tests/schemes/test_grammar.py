"""Names of schemes: `str` and `parse` round-trip over the whole registry; everything else is one clear line."""

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from inspect import signature
from math import pi
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given, settings, strategies as st

from geonorm import names, parse, schemes
from geonorm.errors import ConfigError
from geonorm.schemes import grammar, registry
from geonorm.settings import members

from ..rows import each

OURS = """
    pre post peri sandwich olmo2 deepnorm keel lns sqrt mix first per_kind geonorm attnres hybrid ngpt angpt lambdas
    lanes rezero layerscale gpas mhc nag prores beam muse affine gated_streams residual_dual siamese hyper
    orthogonal norm_preserving
""".split()
COMBINED = ["mix", "first", "per_kind", "prores"]
LAYOUTS = {  # what may be combined with what: names to draw from, and the fields that a layout rests on
    "one stream": ([n for n in OURS if parse(n).streams == 1 and n not in COMBINED], {}),
    "two of residual_dual": (["residual_dual"] * 9, {}),
    "two of siamese": (["siamese"] * 9, {}),
    "three of hyper": (["hyper"] * 9, {"n": 3}),
    "nine of attnres": (["attnres"] * 9, {"blocks": 8}),
    "four of mhc": (["mhc"] * 9, {"n": 4}),
    "four of gated_streams": (["gated_streams"] * 9, {"n": 4}),
    "two of lanes": (["lanes"] * 9, {}),
    "three of lambdas": (["lambdas"] * 9, {"backout": 0.2}),
}


def value_of(hint: Any, layout: str, levels: int) -> st.SearchStrategy[Any]:
    """Any valid value of a field. Numbers from 1e-6 to 1 are valid for every field there is."""
    choices: list[st.SearchStrategy[Any]] = []
    for option in members(hint):
        if get_origin(option) is Literal:
            choices.append(st.sampled_from(get_args(option)))
        elif option is float:
            fractions = st.sampled_from([1.0, 0.5, pi / 4, pi / 8, 3 * pi / 16, 1 / 3, 1e-3, 2**-19])
            choices.append(fractions | st.floats(1e-6, 1))
        elif option is int:
            choices.append(st.integers(1, 8))
        else:
            assert option is schemes.Scheme, f"the test does not know fields of type {option}"
            choices.append(any_scheme(layout, levels - 1))
    return st.one_of(choices)


@st.composite
def any_scheme(draw: st.DrawFn, layout: str, levels: int = grammar.DEEPEST) -> schemes.Scheme:
    """Any scheme of that layout, any of its fields set but one of two that exclude each other, nested to the limit."""
    leaves, fixed = LAYOUTS[layout]
    cls = schemes.find(draw(st.sampled_from([*leaves, *(COMBINED if levels > 1 else [])])))
    hints = get_type_hints(cls)
    values = {name: value for name, value in fixed.items() if name in hints}
    for f in fields(cls):
        if f.name not in values and (grammar.takes_scheme(hints[f.name]) or draw(st.booleans())):
            values[f.name] = draw(value_of(hints[f.name], layout, levels))
    return cls(**{k: v for k, v in values.items() if k != "max_step" or values.get("layer_scalar") != "learned"})


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(LAYOUTS)).flatmap(any_scheme))
@example(schemes.Mix(share=0.0))
@example(schemes.First(blocks=0))
def test_str_and_parse_round_trip(scheme: schemes.Scheme) -> None:
    assert parse(str(scheme)) == scheme
    assert str(parse(str(scheme))) == str(scheme)
    assert hash(parse(str(scheme))) == hash(scheme)


def test_the_registry_is_what_is_tested() -> None:
    assert names() == OURS
    assert [str(parse(name)) for name in OURS] == OURS


@each(
    "text, canonical",
    [
        ("geonorm()", "geonorm"), ("geonorm(decay=harmonic, alpha=1, max_angle=pi/4)", "geonorm"),
        ("  geonorm ( decay = sqrt , ) ", "geonorm(decay=sqrt)"), ("geonorm(decay='sqrt')", "geonorm(decay=sqrt)"),
        ("geonorm(alpha=+2.50)", "geonorm(alpha=2.5)"), ("geonorm(alpha=.5)", "geonorm(alpha=0.5)"),
        ("geonorm(alpha=5e-1)", "geonorm(alpha=0.5)"), ("geonorm(alpha=1/3)", "geonorm(alpha=0.3333333333333333)"),
        ("geonorm(alpha=--2)", "geonorm(alpha=2)"), ("geonorm(max_angle=pi*0.125)", "geonorm(max_angle=pi/8)"),
        ("geonorm(max_angle=3*pi/8)", "geonorm(max_angle=3*pi/8)"), ("geonorm(retraction=2)", "geonorm(retraction=2)"),
        ("geonorm(max_angle=pi/2/4)", "geonorm(max_angle=pi/8)"), ("mix(peri, pre, 0.5)", "mix(a=peri, share=0.5)"),
        ("mix(a=peri, b=geonorm(decay=sqrt), share=1/2)", "mix(a=peri, b=geonorm(decay=sqrt), share=0.5)"),
        ("mix(post, mix(peri, geonorm))", "mix(b=mix(a=peri, b=geonorm))"),
        ("mix(sqrt, pre)", "mix(a=sqrt)"),  # a scheme where the field takes schemes,
        ("pre(decay=sqrt)", "pre(decay=sqrt)"),  # a word where it takes words
        ("geonorm.schemes:Pre(entry=embedding)", "pre(entry=embedding)"),
        ("first(hybrid(input=norm), hybrid)", "first(a=hybrid(input=norm), b=hybrid)"),  # HybridNorm*
        ("per_kind(peri, geonorm)", "per_kind(attn=peri, mlp=geonorm)"),
        ("per_kind(mlp=first(a=keel(alpha=2)))", "per_kind(mlp=first(a=keel(alpha=2)))"),
        ("pre(decay=1, max_step=pi/4, input=raw)", "pre(decay=1, max_step=pi/4, input=raw)"),
    ],
)  # fmt: skip
def test_grammar(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_a_scheme_passes_through_and_strings_become_schemes() -> None:
    scheme = schemes.GeoNorm(alpha=2)
    assert parse(scheme) is scheme and isinstance(scheme.alpha, float)
    mix = schemes.Mix("peri", "geonorm(alpha=2)")  # type: ignore[arg-type]
    assert isinstance(mix.a, schemes.Peri) and mix.b == scheme


@each(
    "text, says",
    [
        ("geonrom", "unknown scheme 'geonrom': did you mean 'geonorm'"),
        ("geonorm(decays=sqrt)", "unknown field of geonorm 'decays': did you mean 'decay'"),
        ("geonorm(decay=sqr)", "unknown decay 'sqr': did you mean 'sqrt'"),
        ("geonorm(alpha=fast)", "alpha must be a number, got 'fast'"),
        (f"geonorm(alpha={'1' * 400}*pi)", "alpha must be a finite number"),
        (f"geonorm(alpha={'1' * 5000})", "cannot read scheme"),
        ("geonorm(alpha=0)", "alpha must be positive"),
        ("geonorm(max_angle=pi/0)", "divides by zero"),
        ("geonorm(max_angle=pi/x)", "x is not a number"),
        ("geonorm(alpha=1, alpha=2)", "sets a field twice"),
        ("mix(post, a=pre)", "multiple values for argument 'a'"),
        ("mix(a=residual_dual)", "cannot combine residual_dual (2 streams of ResidualDual) with pre (one stream)"),
        ("per_kind(mlp=siamese)", "siamese (2 streams of Siamese)"),
        ("mix(a=3)", "a must be Scheme"),
        ("geonorm(", "'(' was never closed"),
        ("pre, post", "is not a name; several schemes are separated by spaces"),
        ("", "a scheme is a string"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(text: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@each(
    "text",
    [
        "__import__('os').system('touch {0}')", "__import__('os')", "geonorm(alpha=open('{0}', 'w'))", "(lambda: 0)()",
        "geonorm(decay=exec('open(chr(120))'))", "os:system", "os:system('touch {0}')", "mix(a=builtins:dict)",
        "geonorm(alpha=2**8)",
    ],
)  # fmt: skip
def test_nothing_is_evaluated(text: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def caught(*_: object) -> int:
        raise AssertionError("a scheme string ran a command")

    monkeypatch.setattr(os, "system", caught)
    with pytest.raises(ConfigError):
        parse(text.format(tmp_path / "made"))
    assert not list(tmp_path.iterdir())


def test_deep_nesting() -> None:
    deep = "mix(b=" * 7 + "peri" + ")" * 7
    assert str(parse(deep)) == deep
    for levels in (8, 100, 3000):
        with pytest.raises(ConfigError, match=r"nested that deeply|cannot read scheme '.{200}': .*too "):
            parse("mix(b=" * levels + "peri" + ")" * levels)


ELSEWHERE = """
from dataclasses import dataclass
from geonorm.schemes import Scheme
from geonorm.settings import members

@dataclass(frozen=True)
class Elsewhere(Scheme):
    word: str = "plain"
    count: int = 3
    flag: bool = False
"""
MODULE = "scheme_from_elsewhere"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An unregistered class outside the package, with the types of fields that ours do not have."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / f"{MODULE}.py").write_text(ELSEWHERE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module(MODULE).Elsewhere
    sys.path.remove(str(folder))
    del sys.modules[MODULE]


def test_third_party_scheme_by_module_and_name(elsewhere: Any) -> None:
    scheme = parse(f"{MODULE}:Elsewhere(word=other, flag=true, count=5)")
    assert scheme == elsewhere(word="other", flag=True, count=5)
    assert str(scheme) == f"{MODULE}:Elsewhere(word=other, count=5, flag=true)"
    assert parse(f"mix({MODULE}:Elsewhere, pre)").a == elsewhere()  # type: ignore[attr-defined]


@given(st.text("ab '\"(),=:-+.1e\n", max_size=8) | st.sampled_from(["true", "pi", "inf", "pre", "a.b:C", "1e5", "-"]))
@settings(max_examples=100, deadline=None)
def test_any_text_in_a_field_round_trips(elsewhere: Any, text: str) -> None:
    if "'" in text and '"' in text:
        return  # the grammar has no escapes
    assert parse(str(elsewhere(word=text))) == elsewhere(word=text)


@each(
    "text, says",
    [
        (f"{MODULE}:", "cannot read scheme"),
        (f"{MODULE}:Elsewhere(count=0.5)", "count must be a whole number"),
        (f"{MODULE}:Elsewhere(flag=1)", "flag must be true or false"),
        (f"{MODULE}:Elsewhere(word=3)", "word must be text"),
    ],
)
def test_third_party_errors(elsewhere: Any, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


class Point:
    """What importlib.metadata returns for one entry point."""

    def __init__(self, value: str, target: object) -> None:
        self.value, self.target = value, target

    def load(self) -> object:
        return self.target


def test_entry_points(elsewhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "elsewhere": Point(f"{MODULE}:Elsewhere", elsewhere),
        "broken": Point("x:y", 3),
        "pre": Point("x:z", elsewhere),
    }
    for module in (grammar, registry):
        monkeypatch.setattr(module, "installed", lambda: points)
    assert names() == [*OURS, "broken", "elsewhere"]
    assert parse("elsewhere(count=5)") == elsewhere(count=5)
    assert str(parse("elsewhere(count=5)")) == "elsewhere(count=5)"
    assert isinstance(parse("pre"), schemes.Pre), "an installed package must not replace a scheme of ours"
    with pytest.raises(ConfigError, match="is not a subclass"):
        parse("broken")
    with pytest.raises(ConfigError, match="did you mean 'elsewhere'"):
        parse("elswhere")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ConfigError, match="two schemes want the name 'pre'"):
        schemes.register("pre")(schemes.Post)
    assert schemes.find("pre") is schemes.Pre


@dataclass(frozen=True)
class Needy(schemes.Scheme):
    rank: float


def test_a_field_without_a_default_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.REGISTRY, "needy", Needy)
    assert str(parse("needy(2)")) == "needy(rank=2)"
    with pytest.raises(ConfigError, match="missing a required argument: 'rank'"):
        parse("needy")


POSITIONAL = {
    "mix": ["a", "b", "share"],
    "first": ["a", "b", "blocks"],
    "per_kind": ["attn", "mlp"],
    "prores": ["scheme", "steps"],
}


@each("name", names())
def test_fields_have_names_and_the_step_is_one(name: str) -> None:
    cls = schemes.find(name)
    assert [field.name for field in fields(cls) if not field.kw_only] == POSITIONAL.get(name, [])
    assert signature(cls.write).parameters["h"].default == 1.0
