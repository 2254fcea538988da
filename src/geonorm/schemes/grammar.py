"""From text to a scheme: a small literal grammar that reads what registry.py writes.

    scheme  = name [ "(" argument { "," argument } ")" ]
    value   = number | pi | pi/number | number*pi | number*pi/number | inf | true | false | 'text' | bare | scheme
A name is registered, or is `package.module:Name` or `./file.py:Name`, or stands in the entry-point group
`geonorm.schemes`. At most eight schemes stand in each other. Nothing is evaluated. A plain string is what a person
typed: naming a module or file imports it. Text that was read from a folder is a `Stored`, which runs code only
where that is allowed (elsewhere.py).
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from math import inf, pi
from typing import Any

from .. import elsewhere
from ..errors import ConfigError, unknown
from ..settings import hints, members
from .base import Scheme
from .registry import REGISTRY, installed, names


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


TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
          |(?P<word>[\w.~-]*/[^\s'"(),=:]*\.py:\w+
                   |[A-Za-z_]\w*(?:\.\w+)*(?::\w+)?)
          |(?P<text>'[^']*'|"[^"]*")
          |(?P<mark>[(),=/*+-]))""",
    re.VERBOSE,
)


FORMS = {"plain": "pre", "scaled": "polar"}
"""What `pre(form=...)` is called now."""
DEEPEST = 8


class SchemeReader:
    """Recursive descent over the tokens of one string."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = TOKEN.match(text, position)
            if not match:
                raise ConfigError(f"cannot read scheme {text!r} at {text[position:].strip()!r}")
            self.tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            position = match.end()

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        if self.at >= len(self.tokens) or (expected and self.peek() != expected):
            token = repr(self.peek()) if self.at < len(self.tokens) else "the end"
            raise ConfigError(f"cannot read scheme {self.text!r}: expected {expected or 'a value'!r}, found {token}")
        self.at += 1
        return self.tokens[self.at - 1]

    def scheme(self) -> Scheme:
        self.depth += 1
        if self.depth > DEEPEST:  # what holds a scheme asks it about every site, and so on: the work doubles each time
            raise ConfigError(f"cannot read a scheme nested that deeply: at most {DEEPEST} in each other")
        kind, name = self.take()
        if kind != "word":
            raise ConfigError(f"cannot read scheme {self.text!r}: {name!r} is not a name")
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        if self.peek() == "(":
            self.take("(")
            while self.peek() != ")":
                if self.peek(1) == "=":
                    key = self.take()[1]
                    self.take("=")
                    if key in keywords:
                        raise ConfigError(f"scheme {self.text!r} sets {key!r} twice")
                    keywords[key] = self.value()
                elif keywords:
                    raise ConfigError(f"cannot read scheme {self.text!r}: a bare value after key=value")
                else:
                    arguments.append(self.value())
                if self.peek() != ")":
                    self.take(",")
            self.take(")")
        self.depth -= 1
        return build_scheme(name, arguments, keywords)

    def value(self) -> Any:
        sign = 1.0
        while self.peek() in ("-", "+"):
            sign = -sign if self.take()[1] == "-" else sign
        kind, token = self.take()
        if kind == "number" or token in ("pi", "inf"):
            number: float | int = pi if token == "pi" else inf if token == "inf" else literal(token)
            while self.peek() in ("*", "/"):
                mark = self.take()[1]
                factor_kind, factor = self.take()
                if factor_kind != "number" and factor != "pi":
                    raise ConfigError(f"cannot read scheme {self.text!r}: {factor!r} is not a number")
                operand = pi if factor == "pi" else literal(factor)
                if mark == "/" and operand == 0:
                    raise ConfigError(f"scheme {self.text!r} divides by zero")
                number = number * operand if mark == "*" else number / operand
            return -number if sign < 0 else number
        if sign < 0:
            raise ConfigError(f"cannot read scheme {self.text!r}: {token!r} is not a number")
        if kind == "text":
            return token[1:-1]
        if token in ("true", "false"):
            return token == "true"
        if kind == "word" and (self.peek() == "(" or ":" in token or token in names()):
            self.at -= 1
            return self.scheme()
        if kind == "word":
            return token
        raise ConfigError(f"cannot read scheme {self.text!r}: unexpected {token!r}")


def literal(token: str) -> int | float:
    return int(token) if re.fullmatch(r"[+-]?\d{1,18}", token) else float(token)


def build_scheme(name: str, arguments: list[Any], keywords: dict[str, Any]) -> Scheme:
    if name == "pre" and keywords.get("form") in FORMS:
        keywords = dict(keywords)
        name = FORMS[keywords.pop("form")]
    cls = find(name)
    known = {f.name: f for f in fields(cls)}
    positional = [f.name for f in fields(cls) if not f.kw_only]
    if len(arguments) > len(positional):
        takes = f"at most {len(positional)}" if positional else "no"
        raise ConfigError(f"scheme {name!r} takes {takes} values without a key, got {len(arguments)}")
    values = dict(zip(positional, arguments, strict=False))
    for key, value in keywords.items():
        if key not in known:
            raise ConfigError(unknown(f"field of {name}", key, known))
        if key in values:
            raise ConfigError(f"scheme {name!r} got {key!r} twice")
        values[key] = value
    missing = [
        f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING and f.name not in values
    ]
    if missing:
        raise ConfigError(f"scheme {name!r} needs {', '.join(missing)}")
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
    reader = SchemeReader(text)
    try:
        with elsewhere.mark_stored(text):
            scheme = reader.scheme()
    except RecursionError:
        raise ConfigError("cannot read a scheme nested that deeply") from None
    if reader.at < len(reader.tokens):
        hint = "; several schemes are separated by spaces" if reader.peek() == "," else ""
        raise ConfigError(f"cannot read scheme {text!r}: {reader.peek()!r} after the end{hint}")
    return scheme
