"""Typed settings, in one way for all: runs, models, simulations, probes, benchmarks, commands, fields of schemes.

A configuration is a frozen dataclass below `Settings`. Its fields are checked when it is made: their types, the words
of a Literal, the limits of an `Annotated[int, Range(1)]`. The string under a field is its documentation. `from_dict`
and `to_dict` go from and to what YAML holds. Every error is one line, a ConfigError. No torch here: the command line
reads this file.
"""

import ast
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from math import inf, isfinite
from numbers import Integral, Real
from operator import attrgetter
from reprlib import Repr
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from .errors import ConfigError, require, unknown

NOTHING = object()
SHORT = Repr()
"""Of values in messages: of a long one beginning and end."""
SHORT.maxstring = SHORT.maxother = 100
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class Range:
    """The limits of a number, themselves included: `Annotated[int, Range(1)]`. rule: that in other words.

    >>> Range(1, 8).hold("layers", 4)
    >>> Range(1, 8).hold("layers", 9)
    Traceback (most recent call last):
    geonorm.errors.ConfigError: layers must be between 1 and 8, got 9
    """

    low: float
    high: float = inf
    rule: str = ""

    def hold(self, name: str, value: float) -> None:
        """ConfigError unless low <= value <= high and the value is finite."""
        if not self.low <= value <= self.high or value == inf:
            bound = f"at least {self.low:g}" if value != inf else "finite"
            bound = f"between {self.low:g} and {self.high:g}" if self.high < inf else bound
            number = f"{value:g}" if isinstance(value, float) else value
            raise ConfigError(f"{name} {self.rule or f'must be {bound}'}, got {number}")


Count = Annotated[int, Range(1), Range(1, 2**53)]  # two limits, so that 0 is told "at least 1" alone
Natural = Annotated[int, Range(0)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
TINIEST = sys.float_info.min
"""The least normal number: the limit of what must be more than 0. Smaller ones are 0 to a CPU that trains, and to all
comparisons there (devices.subnormals_as_zero)."""
Positive = Annotated[float, Range(TINIEST, rule="must be positive")]


class Settings:
    """Base of configurations. What a command says of itself on the command line stands in class attributes."""

    prefix: ClassVar[str] = ""
    """Of the names of its fields in messages: "optim."."""
    words: ClassVar[tuple[str, ...]] = ()
    """Fields that are given by position, without their name; the last may be a list."""
    common: ClassVar[tuple[str, ...]] = ()
    """Fields that --help shows; all where none is named."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Commands that --help ends with."""

    def __post_init__(self) -> None:
        check(self, self.prefix)

    def unused(self) -> Iterator[tuple[str, str]]:
        """Settings that do nothing beside the others: dotted names, each with what it needs. check_unused refuses them
        where somebody set them."""
        return iter(())


def check(config: Any, prefix: str = "") -> None:
    """Gives every field of a dataclass its type: whole numbers become floats and lists tuples where those are due."""
    for name, hint in hints(type(config)).items():
        object.__setattr__(config, name, convert_value(prefix + name, getattr(config, name), hint))


def hints(kind: type) -> dict[str, Any]:
    """The types of the fields of a dataclass, limits included."""
    every = get_type_hints(kind, include_extras=True)
    return {f.name: every[f.name] for f in fields(kind)}


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def bare(hint: Any) -> Any:
    """A type without its limits."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def choices(hint: Any) -> list[str]:
    """The words of the Literals of a type."""
    return [word for member in members(hint) if get_origin(member) is Literal for word in get_args(member)]


def convert_value(name: str, value: Any, hint: Any, typed: bool = False) -> Any:
    """The value as its type wants it. ConfigError names the field and what it takes. `typed`: a person or a YAML file
    wrote it, where a text may stand for a number; limits are not looked at."""
    for member in sorted(members(hint), key=lambda member: member is not NoneType):
        converted = convert_as(name, value, bare(member), typed)
        if converted is not NOTHING:
            for limit in () if typed or member is bare(member) else get_args(member)[1:]:
                limit.hold(name, converted)
            return converted
    if typed:
        wanted = describe_type(hint).replace("a number", "a finite number")
        raise ConfigError(f"{name} takes {wanted}, got {SHORT.repr(value)}")
    if isinstance(value, str) and choices(hint):
        raise ConfigError(unknown(name, value, choices(hint)))
    raise ConfigError(f"{name} must be {describe_type(hint)}, got {value!r}")


def convert_as(name: str, value: Any, kind: Any, typed: bool) -> Any:
    """The value as one type wants it, or NOTHING."""
    if typed:
        value = read_typed(name, value, kind)
    if get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else NOTHING
    if get_origin(kind) in (list, tuple):
        inner, many = get_args(kind), get_origin(kind)
        if not isinstance(value, (list, tuple)) or (many is tuple and len(value) != len(inner)):
            return NOTHING
        return many(convert_value(name, each, inner[0], typed) for each in value)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool):
        return value if kind is bool else NOTHING
    if kind is int and isinstance(value, Integral):
        return int(value)
    if kind is float and isinstance(value, Real):
        return NOTHING if typed and not isfinite(value) else float(value)
    return value if isinstance(kind, type) and isinstance(value, kind) else NOTHING


def read_typed(name: str, value: Any, kind: Any) -> Any:
    """What a person or a YAML file wrote, as what it stands for where something of a type is due."""
    if get_origin(kind) is list:
        return value if isinstance(value, list) else [value]
    if not isinstance(value, str):
        if kind is not str or isinstance(value, (list, dict)):
            return value
        return json.dumps(value) if isinstance(value, (bool, int, float, NoneType)) else str(value)  # YAML knows dates
    if not value.isascii() and value != value.encode(errors="replace").decode():
        raise ConfigError(f"{name} is not valid Unicode text: {value!r}; write it as UTF-8")
    require("\0" not in value, f"{name} holds a NUL character: {value!r}; leave it out")
    if kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    words: dict[Any, dict[str, Any]] = {NoneType: {"null": None}, bool: {"true": True, "false": False}}
    return words.get(kind, {}).get(value.lower(), value)


def describe_type(hint: Any, between: str = " or ") -> str:
    """What a type takes, in words."""
    parts: list[str] = []
    for member in map(bare, members(hint)):
        inner = get_args(member)
        if get_origin(member) is Literal:
            parts.extend(inner)
        elif get_origin(member) is list:
            parts.append(f"a list, each {describe_type(inner[0])}")
        elif get_origin(member) is tuple:
            parts.append(f"{len(inner)} values, each {describe_type(inner[0])}")
        elif member is not NoneType:
            parts.append(WORDS.get(member) or member.__name__)
    return between.join(parts)


@dataclass(frozen=True)
class Option:
    """One leaf of a configuration: its dotted name, type, default (MISSING: it has to be given) and documentation."""

    name: str
    hint: Any
    default: Any = None
    text: str = ""

    @property
    def many(self) -> bool:
        return any(get_origin(member) in (list, tuple) for member in members(self.hint))

    @property
    def switch(self) -> bool:
        return bool in map(bare, members(self.hint))

    @property
    def flag(self) -> str:
        return flag(self.name)


def flag(name: str) -> str:
    """The option of a setting."""
    return "--" + name.replace("_", "-")


def options(kind: type, prefix: str = "") -> dict[str, Option]:
    """Every leaf of a configuration, nested groups by dots, those that a class adds before those that it inherits.

    >>> from geonorm.lab.config import TrainConfig
    >>> options(TrainConfig)["optim.clip"].default
    1.0
    """
    documented, types = docs(kind), hints(kind)
    annotated = [getattr(base, "__annotations__", ()) for base in kind.__mro__]
    home = {name: place for place, names in reversed(list(enumerate(annotated))) for name in names}
    every: dict[str, Option] = {}
    for f in sorted(fields(kind), key=lambda f: (is_dataclass(types[f.name]), home[f.name])):
        name, hint = prefix + f.name, types[f.name]
        if is_dataclass(hint) and isinstance(hint, type):
            every.update(options(hint, f"{name}."))
            continue
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        every[name] = Option(name, hint, default, documented.get(f.name, ""))
    return every


def docs(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass, which Python itself does not keep."""
    texts: dict[str, str] = {}
    for base in reversed(getattr(kind, "documented_by", kind).__mro__):
        source = classes(base.__module__).get(base.__name__) if is_dataclass(base) else None
        for node, below in pairwise(source.body if source else ()):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr):
                texts[node.target.id] = " ".join(ast.literal_eval(below.value).split())
    return texts


@cache
def classes(module: str) -> dict[str, ast.ClassDef]:
    """The source of the classes of a module; none where it is installed without."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def setting_of(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a setting in a tree of them, by its dotted name; None where the tree has none."""
    group, _, leaf = name.rpartition(".")
    leaves = settings.get(group, {}) if group else settings
    return leaves.get(leaf) if isinstance(leaves, Mapping) else getattr(leaves, leaf, None)


def check_unused(config: Settings, settings: Mapping[str, Any]) -> None:
    """ConfigError for a setting of the tree `settings` that does nothing beside the others. One with its default value
    passes, as it may take back what a file says; so do settings of files, which name every one."""
    every = options(type(config))
    for name, need in config.unused():
        if name in every and setting_of(settings, name) is not None and attrgetter(name)(config) != every[name].default:
            raise ConfigError(f"{flag(name)} does nothing here, it needs {need}: see to that, or leave it out")


def check_out(out: str) -> None:
    """ConfigError where `out` cannot be a folder."""
    if out == "" or os.path.isfile(out):
        raise ConfigError(f"out is {'empty' if out == '' else f'a file: {out}'}; choose another --out")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain nested dict for YAML.

    >>> from geonorm.lab.config import Checkpoint
    >>> to_dict(Checkpoint(every=100))
    {'every': 100, 'keep': 2}
    """
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    for name, value in values.items():
        if is_dataclass(value):
            values[name] = to_dict(value)
        elif isinstance(value, tuple):
            values[name] = list(value)
    return values


def from_dict(kind: type, values: dict[str, Any], prefix: str = "", typed: bool = False) -> Any:
    """The configuration of a nested dict; ConfigError names unknown keys and the nearest valid one.

    >>> from geonorm.lab.config import Checkpoint
    >>> from_dict(Checkpoint, {"keep": "3"}, typed=True).keep
    3
    >>> from_dict(Checkpoint, {"keeps": 3})
    Traceback (most recent call last):
    geonorm.errors.ConfigError: unknown setting 'keeps': did you mean 'keep'? (valid: every, keep)
    """
    known = hints(kind)
    result: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            valid = [prefix + name for name in known]
            raise ConfigError(unknown("setting", prefix + str(key), valid, options(kind, prefix)))
        group = known[key]
        if is_dataclass(group) and isinstance(value, dict):
            value = from_dict(group, value, f"{prefix}{key}.", typed)  # type: ignore[arg-type]
        elif is_dataclass(group) and not isinstance(value, group):  # type: ignore[arg-type]
            raise ConfigError(f"{prefix}{key} must be a mapping of settings, got {value!r}")
        elif typed:
            value = convert_value(flag(prefix + key), value, group, typed)
        result[key] = value
    return kind(**result)
