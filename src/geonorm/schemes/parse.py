"""Names of schemes: the registry, and a small literal grammar in which `str` and `parse` round-trip.

    scheme  = name [ "(" argument { "," argument } ")" ]
    value   = number | pi | pi/number | number*pi | number*pi/number | inf | true | false | 'text' | bare | scheme
A name is registered here, or is `package.module:Name` or `./file.py:Name`, or stands in the entry-point group
`geonorm.schemes`. At most eight schemes stand in each other. Nothing is evaluated. A plain string is what a person
typed: naming a module or file imports it. Text that was read from a folder is a `Stored`, which runs only what is
trusted (elsewhere.py).
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import cache
from importlib.metadata import entry_points
from math import inf, pi
from typing import Any, TypeVar

from .. import elsewhere
from ..errors import ConfigError, unknown
from ..settings import check, hints, members
from .base import Scheme

REGISTRY: dict[str, type[Scheme]] = {}
S = TypeVar("S", bound=type[Scheme])


def register(name: str) -> Any:
    """Class decorator that gives a scheme its name."""

    def add(cls: S) -> S:
        if name in REGISTRY:
            raise ConfigError(f"two schemes want the name {name!r}")
        REGISTRY[name] = cls
        return cls

    return add


def names() -> list[str]:
    """Every scheme known by a bare name: ours in the order of definition, then those of installed packages."""
    return [*REGISTRY, *(name for name in sorted(installed()) if name not in REGISTRY)]


@cache
def installed() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group="geonorm.schemes")}


def find(name: str) -> type[Scheme]:
    """The class of a name. ConfigError with the nearest valid name when there is none."""
    if name in REGISTRY:
        return REGISTRY[name]
    if name in installed():
        point = installed()[name]
        found = elsewhere.find_code(point.value, point.load)
    elif ":" in name:
        found = elsewhere.find_code(name)
    else:
        raise ConfigError(unknown("scheme", name, names()))
    if not (isinstance(found, type) and issubclass(found, Scheme)):
        raise ConfigError(f"{name!r} is not a subclass of geonorm.schemes.Scheme")
    return found


def name_of(kind: type[Scheme]) -> str:
    for name, cls in REGISTRY.items():
        if kind is cls:
            return name
    own = f"{elsewhere.place_of(kind)}:{kind.__qualname__}"
    return next((name for name, point in installed().items() if point.value == own), own)


RESERVED = ("pi", "inf", "true", "false")

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
LARGEST = 1e30  # what fp32 can still be multiplied with


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
            found = repr(self.peek()) if self.at < len(self.tokens) else "the end"
            raise ConfigError(f"cannot read scheme {self.text!r}: expected {expected or 'a value'!r}, found {found}")
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
        return build(name, arguments, keywords)

    def value(self) -> Any:
        sign = 1.0
        while self.peek() in ("-", "+"):
            sign = -sign if self.take()[1] == "-" else sign
        kind, token = self.take()
        if kind == "number" or token in ("pi", "inf"):
            number: float | int = pi if token == "pi" else inf if token == "inf" else literal(token)
            while self.peek() in ("*", "/") and self.peek():
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


def build(name: str, arguments: list[Any], keywords: dict[str, Any]) -> Scheme:
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


def check_fields(scheme: Scheme) -> None:
    """Every field has its declared type, strings become schemes where those are due, and numbers are finite."""
    for name, hint in hints(type(scheme)).items():
        if isinstance(value := getattr(scheme, name), str) and takes_scheme(hint):
            object.__setattr__(scheme, name, parse(value))
    try:
        for name, value in vars(scheme).items():
            if isinstance(value, (int, float)) and not abs(value) <= LARGEST:
                raise ConfigError(f"{name} must be a finite number of at most {LARGEST:g}, got {float(value):g}")
        check(scheme)
    except ConfigError as error:
        raise ConfigError(f"scheme {name_of(type(scheme))}: {error}") from None


def parse(text: str | Scheme) -> Scheme:
    """The scheme of a string such as `geonorm(decay=sqrt, max_angle=pi/8)`; a Scheme passes through.

    Raises ConfigError, one line with the nearest valid name, for anything that is not one.
    """
    if isinstance(text, Scheme):
        return text
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"a scheme is a string such as 'pre' or 'geonorm(decay=sqrt)', got {text!r}")
    reader = SchemeReader(text)
    try:
        with elsewhere.reading(text):
            scheme = reader.scheme()
    except RecursionError:
        raise ConfigError("cannot read a scheme nested that deeply") from None
    if reader.at < len(reader.tokens):
        hint = "; several schemes are separated by spaces" if reader.peek() == "," else ""
        raise ConfigError(f"cannot read scheme {text!r}: {reader.peek()!r} after the end{hint}")
    return scheme


def format_scheme(scheme: Scheme) -> str:
    """Canonical string: the name and the fields that differ from their defaults, in the order of definition."""
    parts = []
    for f in fields(scheme):
        value = getattr(scheme, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if value != default:
            parts.append(f"{f.name}={format_value(value)}")
    name = name_of(type(scheme))
    return f"{name}({', '.join(parts)})" if parts else name


def format_value(value: Any) -> str:
    """Numbers that are small fractions of pi are written so; `parse` reads back the same double."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        for denominator in range(1, 65):
            for numerator in (1, 3, 5, 7):
                text = ("pi" if numerator == 1 else f"{numerator}*pi") + (f"/{denominator}" if denominator > 1 else "")
                if value == numerator * pi / denominator:
                    return text
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    if isinstance(value, str) and (value in RESERVED or not re.fullmatch(r"[A-Za-z_]\w*", value)):
        return f'"{value}"' if "'" in value else f"'{value}'"
    return str(value)
