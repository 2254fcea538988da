"""From text to a scheme: a small literal grammar that reads what registry.py writes.

    scheme  = name [ "(" argument { "," argument } ")" ]
    value   = number | pi | pi/number | number*pi | number*pi/number | inf | true | false | 'text' | bare | scheme
A name is registered, or is `package.module:Name` or `./file.py:Name`, or stands in the entry-point group
`geonorm.schemes`. At most eight schemes stand in each other. Python's own parser reads the text; nothing is evaluated.
A plain string is what a person typed: naming a module or file imports it. Text that was read from a folder is a
`Stored`, which runs code only where that is allowed (elsewhere.py).
"""

import ast
import re
from dataclasses import fields
from inspect import signature
from math import inf, pi
from typing import Any

from .. import elsewhere
from ..errors import ConfigError, unknown
from ..settings import hints, members
from .base import Scheme
from .registry import REGISTRY, installed, names

DEEPEST = 8
NUMBERS = {"pi": pi, "inf": inf}
NO_PYTHON = re.compile(r"""(?P<text>'[^']*'|"[^"]*")|(?P<place>[\w.~-]*/[^\s'"(),=:]*\.py:\w+|[A-Za-z_][\w.]*:\w+)""")
"""What Python would read otherwise: text, which has no escapes here, and a class from elsewhere."""


def find(name: str) -> type[Scheme]:
    """The class of a name. ConfigError with the nearest valid name when there is none.

    >>> geonorm.schemes.find("peri").__name__
    'Peri'
    """
    if name in REGISTRY:
        return REGISTRY[name]
    if name in installed():
        loaded = installed()[name].load()
    elif ":" in name:
        loaded = elsewhere.find_code(name)
    else:
        raise ConfigError(unknown("scheme", name, names()))
    if not (isinstance(loaded, type) and issubclass(loaded, Scheme)):
        raise ConfigError(f"{name!r} is not a subclass of geonorm.schemes.Scheme")
    return loaded


class SchemeReader:
    """The scheme of one string. ConfigError, one line, for anything that is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.places: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def read(self) -> Scheme:
        try:
            tree = ast.parse(NO_PYTHON.sub(self.stand_in, self.text.strip()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.refuse(
                (getattr(error, "msg", None) or "it is too deeply nested")
                + "; write it as pre, geonorm(decay=sqrt) or FILE.py:Name (no space in its path)"
            ) from None
        return self.scheme(tree, 1)

    def stand_in(self, match: re.Match[str]) -> str:
        """A name that Python can read, in the place of what it cannot."""
        word = f"_{len(self.places) + len(self.texts)}_"
        if match["text"]:
            self.texts[word] = match["text"][1:-1]
        else:
            self.places[word] = match["place"]
        return word

    def refuse(self, problem: str) -> ConfigError:
        return ConfigError(f"cannot read scheme {self.text[:200]!r}: {problem}")

    def scheme(self, node: ast.expr, level: int) -> Scheme:
        if level > DEEPEST:  # what holds a scheme asks it about every site, and so on: the work doubles each time
            raise ConfigError(f"cannot read a scheme nested that deeply: at most {DEEPEST} in each other")
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or call.func.id in self.texts:
            hint = "; several schemes are separated by spaces" if isinstance(node, ast.Tuple) else ""
            raise self.refuse(f"{self.show(call.func)} is not a name{hint}")
        arguments = [self.value(argument, level) for argument in call.args]
        keywords = {str(keyword.arg): self.value(keyword.value, level) for keyword in call.keywords}
        if len(keywords) < len(call.keywords):
            raise self.refuse("it sets a field twice")
        return build_scheme(self.places.get(call.func.id, call.func.id), arguments, keywords)

    def value(self, node: ast.expr, level: int) -> Any:
        match node:
            case ast.Name(id="true" | "false"):
                return node.id == "true"
            case ast.Name(id=word) if word in self.texts:
                return self.texts[word]
            case ast.Name(id=word) if word not in NUMBERS and word not in self.places and word not in names():
                return word
            case ast.Name(id=word) if word not in NUMBERS:
                return self.scheme(node, level + 1)
            case ast.Call():
                return self.scheme(node, level + 1)
        return self.number(node)

    def number(self, node: ast.expr) -> float:
        match node:
            case ast.Constant(value=float() | int() as value) if not isinstance(value, bool):
                return value if abs(value) < 1e18 else float(str(value))
            case ast.Name(id=word) if word in NUMBERS:
                return NUMBERS[word]
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                return self.number(operand) * (-1 if isinstance(node.op, ast.USub) else 1)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.number(left) * self.number(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                if (divisor := self.number(right)) == 0:
                    raise self.refuse("it divides by zero")
                return self.number(left) / divisor
        raise self.refuse(f"{self.show(node)} is not a number")

    def show(self, node: ast.expr) -> str:
        """A part of the text, as it was written or nearly so."""
        words = {**self.places, **{word: repr(text) for word, text in self.texts.items()}}
        return re.sub(r"_\d+_", lambda match: words.get(match[0], match[0]), ast.unparse(node))


def build_scheme(name: str, arguments: list[Any], keywords: dict[str, Any]) -> Scheme:
    cls = find(name)
    known = [f.name for f in fields(cls)]
    for key in keywords:
        if key not in known:
            raise ConfigError(unknown(f"field of {name}", key, known))
    try:
        values = signature(cls).bind(*arguments, **keywords).arguments
    except TypeError as error:
        raise ConfigError(f"scheme {name!r}: {error}") from None
    for key, value in values.items():
        # a bare word that is also the name of a scheme means the word where the field takes words
        if isinstance(value, Scheme) and not takes_scheme(hints(cls)[key]):
            values[key] = str(value)
    return cls(**values)


def takes_scheme(hint: Any) -> bool:
    return any(isinstance(member, type) and issubclass(member, Scheme) for member in members(hint))


def parse(text: str | Scheme) -> Scheme:
    """The scheme of a string such as `geonorm(decay=sqrt, max_angle=pi/8)`; a Scheme passes through.

    Raises ConfigError, one line with the nearest valid name, for anything that is not one.

    >>> geonorm.parse("geonorm(max_angle=pi/8)").max_angle
    0.392...
    >>> geonorm.parse("geonrm")
    Traceback (most recent call last):
        ...
    geonorm.errors.ConfigError: unknown scheme 'geonrm': did you mean 'geonorm'? (valid: ...)
    """
    if isinstance(text, Scheme):
        return text
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"a scheme is a string such as 'pre' or 'geonorm(decay=sqrt)', got {text!r}")
    with elsewhere.mark_stored(text):
        return SchemeReader(text).read()
