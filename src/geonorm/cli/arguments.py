"""The command line's parser: typed options from config dataclasses, with the manners this project wants.

No abbreviations; lists by spaces (`--lrs 1e-3 2e-3`); switches without a value (`--tune`); dashes and underscores are
the same (`--dry-run`); an option is given once; a YAML file comes first, whatever its place, and options override it;
every error is one line that names the nearest valid choice. jsonargparse turns text into typed values. No torch here.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import sys
import textwrap
from dataclasses import MISSING, dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from .. import elsewhere
from ..errors import ConfigError, unknown
from ..parsing import from_yaml

C = TypeVar("C")
CONFIG = "YAML file of settings; options override it."
TRUST = "Run code that a folder or file names: schemes from elsewhere that you have not typed before."
SCHEMES = ("scheme", "schemes", "baseline")
"""Settings that name schemes."""


class HelpAsked(Exception):
    """--help was among the arguments; the message is the help."""


@dataclass(frozen=True)
class Option:
    """One leaf of a config: its dotted name, type, default (MISSING: it has to be given), documentation and group."""

    name: str
    hint: Any
    default: Any = None
    text: str = ""
    group: str = ""

    @property
    def many(self) -> bool:
        return get_origin(self.hint) in (list, tuple)

    @property
    def switch(self) -> bool:
        return self.hint is bool or bool in get_args(self.hint)

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def options(kind: type, prefix: str = "", group: str = "") -> dict[str, Option]:
    """Every leaf of a dataclass, nested groups by dots, those that a class adds before those that it inherits."""
    hints, documented = get_type_hints(kind), docs(kind)
    classes = [vars(base).get("__annotations__", ()) for base in kind.__mro__]
    home = {name: place for place, names in reversed(list(enumerate(classes))) for name in names}
    found: dict[str, Option] = {}
    for f in sorted(fields(kind), key=lambda f: (is_dataclass(hints[f.name]), home[f.name])):
        name, hint = prefix + f.name, hints[f.name]
        if is_dataclass(hint) and isinstance(hint, type):
            found.update(options(hint, f"{name}.", f"{name}: {(hint.__doc__ or '').strip()}"))
            continue
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        found[name] = Option(name, hint, default, documented.get(f.name, ""), group)
    return found


def docs(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass, which Python itself does not keep."""
    found: dict[str, str] = {}
    for base in reversed(getattr(kind, "documented_by", kind).__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base))) if is_dataclass(base) else None
        except (OSError, TypeError):  # installed without source files
            continue
        for node, below in pairwise(tree.body[0].body if tree and isinstance(tree.body[0], ast.ClassDef) else ()):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr):
                found[node.target.id] = ast.literal_eval(below.value)
    return found


def read(kind: type[C], program: str, arguments: list[str], words: tuple[str, ...] = ()) -> C:
    """The config dataclass of a command line. `words` are fields that are given by position, without their name; the
    last may be a list. ConfigError, one line, for anything wrong; HelpAsked for --help."""
    from ..lab.config import from_dict

    known = options(kind)
    if "-h" in arguments or "--help" in arguments:
        raise HelpAsked(help_text(kind, program, known, words))
    given = split(
        arguments, {**known, "config": Option("config", str), "trust_code": Option("trust_code", bool)}, words
    )
    if given.pop("trust_code", ["false"]) == ["true"]:
        elsewhere.allow()
    file = Path(given.pop("config")[0]) if "config" in given else None
    settings = from_file(file, known) if file else {}
    if file:
        admit(file, [text for name in SCHEMES if name not in given for text in settings.get(name, ())])
    settings.update(given)
    for option in known.values():
        if option.default is MISSING and option.name not in settings:
            wanted = option.name.upper() if option.name in words else option.flag
            raise ConfigError(f"{wanted} is missing: {option.text} (see --help)")
    nested: dict[str, Any] = {}
    for name, values in settings.items():
        *groups, leaf = name.split(".")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = convert(known[name], values)
    config: C = from_dict(kind, nested)
    return config


def admit(file: Path, schemes: list[str]) -> None:
    """Schemes that a file of settings names: text from a folder, which runs no code that is not trusted. Beside the
    settings of a run lies the source of its schemes."""
    from ..lab.runs.made import kept_sources

    kept = kept_sources(file.parent) if schemes else {}
    for text in schemes if kept else [text for text in schemes if ":" in text]:
        from ..schemes import parse, stored

        parse(stored(text, kept, str(file), strict=True))


def split(arguments: list[str], known: dict[str, Option], words: tuple[str, ...]) -> dict[str, list[str]]:
    """The texts given for each option. ConfigError for an option that does not exist, is repeated or lacks its value,
    and for a word that belongs to none."""
    given: dict[str, list[str]] = {}
    waiting = list(words)
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if not word.startswith("-"):
            if not waiting:
                raise ConfigError(f"unexpected argument {word!r}; options begin with -- (see --help)")
            given.setdefault(waiting[0], []).append(word)
            if not known[waiting[0]].many:
                del waiting[0]
            continue
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if key not in known or not word.startswith("--"):
            raise ConfigError(unknown_option(word.partition("=")[0], known))
        if key in given:
            raise ConfigError(f"{known[key].flag} is given twice")
        option = known[key]
        values = [value] if equals else []
        limit = 0 if equals else sys.maxsize if option.many else 1
        while at < len(arguments) and len(values) < limit and not arguments[at].startswith("--"):
            if option.switch and waiting and arguments[at] not in ("true", "false"):
                break
            values.append(arguments[at])
            at += 1
        if option.switch and not values:
            values = ["true"]
        if not values:
            raise ConfigError(f"{option.flag} needs a value ({option.flag}=VALUE if it begins with --)")
        given[key] = values
    return given


def unknown_option(flag: str, known: dict[str, Option]) -> str:
    """The nearest option, not all of them: there are too many for a line."""
    return unknown("option", flag, [option.flag for option in known.values()]).split(" (valid:")[0] + " (see --help)"


def from_file(path: Path, known: dict[str, Option]) -> dict[str, list[str]]:
    """The texts of a YAML file's settings by dotted name, as if they stood on the command line."""
    try:
        tree = from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read --config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--config {path} is not readable YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"--config {path} is not a mapping of settings")
    found: dict[str, list[str]] = {}
    groups = {name.split(".")[0] for name in known if "." in name}
    for key, value in tree.items():
        if key in groups and not isinstance(value, dict):
            raise ConfigError(f"{key} must be a mapping of settings in {path}, got {value!r}")
        leaves = {f"{key}.{name}": leaf for name, leaf in value.items()} if key in groups else {str(key): value}
        for name, leaf in leaves.items():
            if name not in known:
                raise ConfigError(unknown("setting", name, known).split(" (valid:")[0] + f" in {path}")
            found[name] = [text_of(each) for each in leaf] if isinstance(leaf, list) else [text_of(leaf)]
    return found


def text_of(value: Any) -> str:
    """A YAML scalar as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def convert(option: Option, texts: list[str]) -> Any:
    """The typed value of an option. ConfigError says what it takes."""
    texts = [usable(option, text) for text in texts]
    try:
        import jsonargparse
    except ImportError:
        raise ConfigError("the command line needs the train extra: pip install 'geonorm[train]'") from None

    class Parser(jsonargparse.ArgumentParser):
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            raise ConfigError(f"{option.flag} takes {takes(option.hint)}, got {' '.join(texts)!r}")

    if option.many:
        hint = get_args(option.hint)[0]
        values = [convert(Option(option.name, hint), [text]) for text in texts]
        if get_origin(option.hint) is tuple and len(values) != len(get_args(option.hint)):
            raise ConfigError(f"{option.flag} takes {takes(option.hint)}, got {' '.join(texts)!r}")
        return values if get_origin(option.hint) is list else tuple(values)
    parser = Parser()
    parser.add_argument("--value", type=option.hint)
    if len(texts) != 1:
        parser.error("a list")
    return parser.parse_args([f"--value={texts[0]}"]).value


LONGEST = 100
"""Characters of a number: Python reads no whole number of more than some thousand digits."""
PATHS = ("out", "to", "figures", "cache", "tokens.cache")
"""What is written: `--out=~/runs` reaches us as it is typed."""


def usable(option: Option, text: str) -> str:
    """A text that can be read, printed and written; of a path with its ~ resolved. ConfigError for any other."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{option.flag} is not valid Unicode text: {text!r}; use another name") from None
    if "\0" in text:
        raise ConfigError(f"{option.flag} holds a NUL character: {text!r}; use another name")
    if len(text) > LONGEST and {int, float} & {option.hint, *get_args(option.hint)}:
        raise ConfigError(f"{option.flag} takes {takes(option.hint)}, got {text[:20]}... of {len(text)} characters")
    return os.path.expanduser(text) if option.name in PATHS else text


PLAIN = {
    int: ("N", "a whole number"),
    float: ("X", "a finite number"),
    str: ("TEXT", "text"),
    bool: ("true|false", "true or false"),
}


def takes(hint: Any, short: bool = False) -> str:
    """What an option of this type takes: in words, or as a placeholder for the help."""
    members = [member for member in get_args(hint) if member is not NoneType]
    if get_origin(hint) is Literal:
        return "|".join(members) if short else " or ".join(members)
    if get_origin(hint) is list:
        return f"{takes(members[0], short)} ..." if short else f"a list, each {takes(members[0])}"
    if get_origin(hint) is tuple:
        return (
            " ".join(takes(m, short) for m in members) if short else f"{len(members)} values, each {takes(members[0])}"
        )
    return PLAIN[hint][not short] if hint in PLAIN else takes(members[0], short)


def help_text(kind: type, program: str, known: dict[str, Option], words: tuple[str, ...]) -> str:
    """Usage, then every option with its documentation and default, group by group."""
    width = min(110, shutil.get_terminal_size().columns)
    rows: dict[str, list[tuple[str, str]]] = {"": []}
    for word in words:
        rows[""].append((word.upper(), known[word].text))
    for option in known.values():
        if option.name not in words:
            value = "" if option.default is False else takes(option.hint, short=True)
            usage = f"{option.flag} {value}".rstrip()
            rows.setdefault(option.group, []).append((usage, f"{option.text}{default_text(option)}"))
    rows[""] += [("--config FILE", CONFIG), ("--trust-code", TRUST)]
    places = " ".join(word.upper() + (" ..." if known[word].many else "") for word in words)
    about = textwrap.wrap(" ".join((kind.__doc__ or "").split()), width)
    lines = [f"usage: {program}{' ' if places else ''}{places} [options]", "", *about]
    for group, entries in rows.items():
        lines += ["", group] if group else [""]
        for usage, text in entries:
            first = f"  {usage:<28}"
            if len(usage) > 27:
                lines.append(first.rstrip())
                first = " " * 30
            text = " ".join(text.split())
            lines += textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * 30) or [first]
    return "\n".join(lines)


def default_text(option: Option) -> str:
    """What holds when the option is not given, where the documentation does not say it already."""
    if option.default is MISSING:
        return " (required)"
    if option.default is None or option.default is False or option.default == "":
        return ""
    values = option.default if isinstance(option.default, (list, tuple)) else [option.default]
    words = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return f" [{' '.join(words)}]" if words else ""
