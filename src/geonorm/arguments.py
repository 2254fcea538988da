"""The command line's parser: jsonargparse over the config dataclasses, with the manners this project wants.

No abbreviations; lists by spaces (`--lrs 1e-3 2e-3`); switches without a value (`--tune`); dashes and underscores are the
same (`--dry-run`); every error is one line that names the nearest valid choice. No torch here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from .errors import ConfigError, unknown

C = TypeVar("C")


@dataclass(frozen=True)
class Option:
    """One leaf of a config: its dotted name, its type, and whether it takes many values or none."""

    hint: Any
    many: bool
    switch: bool


def options(kind: type, prefix: str = "") -> dict[str, Option]:
    """Every leaf of a dataclass, nested groups by dots."""
    hints = get_type_hints(kind)
    found: dict[str, Option] = {}
    for f in fields(kind):
        hint = hints[f.name]
        if is_dataclass(hint):
            found.update(options(hint, f"{prefix}{f.name}."))
        else:
            many = get_origin(hint) in (list, tuple)
            switch = hint is bool or bool in get_args(hint)
            found[prefix + f.name] = Option(hint, many, switch)
    return found


def normalise(arguments: list[str], known: dict[str, Option], positional: int) -> list[str]:
    """Arguments as jsonargparse takes them: `--key=value` with underscores, lists as JSON, switches as true.

    ConfigError for an option that does not exist or lacks its value, or for a word that belongs to none.
    """
    result: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word in ("-h", "--help", "--print_config"):
            result.append(word)
            continue
        if not word.startswith("--"):
            positional -= 1
            if positional < 0:
                raise ConfigError(f"unexpected argument {word!r}; options begin with -- (see --help)")
            result.append(word)
            continue
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if key not in known:
            raise ConfigError(unknown_option(key, known))
        option = known[key]
        values = [value] if equals else []
        limit = 0 if equals else sys.maxsize if option.many else 1
        while at < len(arguments) and len(values) < limit and not arguments[at].startswith("--"):
            if option.switch and arguments[at] not in ("true", "false"):
                break
            values.append(arguments[at])
            at += 1
        if option.switch and not values:
            values = ["true"]
        if not values:
            raise ConfigError(f"--{key} needs a value")
        result.append(f"--{key}={as_list(values, option) if option.many else values[0]}")
    return result


def unknown_option(key: str, known: dict[str, Option]) -> str:
    """The nearest option, not all of them: there are too many for a line."""
    text = unknown("option", "--" + key, ["--" + name for name in known])
    return text.split(" (valid:")[0] + " (see --help)"


def as_list(values: list[str], option: Option) -> str:
    if len(values) == 1 and values[0].startswith("["):
        return values[0]
    member = get_args(option.hint)[0]
    if member is str:
        return json.dumps(values)
    return "[" + ", ".join(values) + "]"


def parser(kind: type, program: str, words: dict[str, str] | None = None) -> Any:
    """A jsonargparse parser for a config dataclass; `words` are positional arguments with their help."""
    try:
        import jsonargparse
    except ImportError:
        raise ConfigError("the command line needs the train extra: pip install 'geonorm[train]'") from None

    class Parser(jsonargparse.ArgumentParser):  # type: ignore[misc]
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            raise ConfigError(one_line(message))

    built = Parser(prog=program, description=(kind.__doc__ or "").strip(), allow_abbrev=False)
    built.add_argument("--config", action="config", help="YAML file of settings; options after it override it.")
    for name, text in (words or {}).items():
        built.add_argument(name, type=str, help=text)
    built.add_class_arguments(kind, skip=set(words or {}))
    return built


def read(kind: type[C], program: str, arguments: list[str], words: dict[str, str] | None = None) -> C:
    """The config dataclass of a command line. ConfigError, one line, for anything wrong with it."""
    from .lab.config import from_dict

    known = {**options(kind), "config": Option(str, many=False, switch=False)}
    clean = normalise(arguments, known, positional=len(words or {}))
    for word in clean:
        if word.startswith("--config="):
            check_file(Path(word.partition("=")[2]), known)
    namespace = parser(kind, program, words).parse_args(clean)
    values = namespace.as_dict()
    values.pop("config", None)
    config: C = from_dict(kind, plain(values))
    return config


def check_file(path: Path, known: dict[str, Option]) -> None:
    """Every key of a YAML file exists; said with the nearest one otherwise."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read --config {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"--config {path} is not readable YAML") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path} is not a mapping of settings")
    groups = {name.split(".")[0] for name in known if "." in name}
    for key, value in values.items():
        leaves = [f"{key}.{name}" for name in value] if key in groups and isinstance(value, dict) else [str(key)]
        for leaf in leaves:
            if leaf not in known:
                raise ConfigError(unknown("setting", leaf, known).split(" (valid:")[0] + f" in {path}")


def plain(values: Any) -> Any:
    """Dataclasses that the parser built become dicts again."""
    if is_dataclass(values) and not isinstance(values, type):
        return {f.name: plain(getattr(values, f.name)) for f in fields(values)}
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    return values


def one_line(message: str) -> str:
    """jsonargparse explains itself over several lines; the first two hold the key and the reason."""
    lines = [line.strip(" -") for line in str(message).splitlines() if line.strip()]
    text = " ".join(lines[:2]).replace("Parser key", "option").replace("typing.Literal", "one of ")
    return text.replace("<class '", "").replace("'>", "").rstrip(".")
