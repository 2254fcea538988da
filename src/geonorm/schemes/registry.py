"""Names of schemes: which class has which, and how a scheme is written as text (grammar.py reads it)."""

import re
from dataclasses import MISSING, fields
from fractions import Fraction
from functools import cache
from importlib.metadata import entry_points
from math import pi
from typing import Any

from .. import elsewhere
from ..errors import require

REGISTRY: dict[str, type[Any]] = {}
RESERVED = ("pi", "inf", "true", "false")


def register(name: str) -> Any:
    """Class decorator that gives a scheme its name.

    >>> @geonorm.schemes.register("plain_sum")
    ... class PlainSum(geonorm.schemes.Pre):
    ...     pass
    >>> print(geonorm.parse("plain_sum"))
    plain_sum
    >>> del geonorm.schemes.registry.REGISTRY["plain_sum"]
    """

    def add(cls: type[Any]) -> type[Any]:
        require(name not in REGISTRY, f"two schemes want the name {name!r}")
        REGISTRY[name] = cls
        return cls

    return add


def names() -> list[str]:
    """Every scheme known by a bare name: ours in the order of definition, then those of installed packages.

    >>> geonorm.names()[:3]
    ['pre', 'post', 'peri']
    """
    return [*REGISTRY, *(name for name in sorted(installed()) if name not in REGISTRY)]


@cache
def installed() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group="geonorm.schemes")}


def name_of(kind: type[Any]) -> str:
    for name, cls in REGISTRY.items():
        if kind is cls:
            return name
    path = f"{elsewhere.place_of(kind)}:{kind.__qualname__}"
    return next((name for name, point in installed().items() if point.value == path), path)


def format_scheme(scheme: Any) -> str:
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
        share = Fraction(value / pi if abs(value) < 100 else 0).limit_denominator(64)
        if share.numerator in (1, 3, 5, 7) and value == share.numerator * pi / share.denominator:
            text = "pi" if share.numerator == 1 else f"{share.numerator}*pi"
            return text if share.denominator == 1 else f"{text}/{share.denominator}"
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    if isinstance(value, str) and (value in RESERVED or not re.fullmatch(r"[A-Za-z_]\w*", value)):
        return f'"{value}"' if "'" in value else f"'{value}'"
    return str(value)
