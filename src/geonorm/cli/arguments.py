"""Words of a command line to a configuration. No torch here.

tyro writes the help from the same fields. It does not read the words: its errors are boxes
of several lines (their parts are private to it), an option that is given twice passes in silence, and a file of
settings would have to hold every required option. A YAML file comes first, whatever its place; options override it.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import MISSING, field, make_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar

from .. import elsewhere
from ..errors import ConfigError, import_extra, require, unknown
from ..parsing import from_yaml
from ..settings import (
    Option,
    Settings,
    bare,
    check_unused,
    choices,
    convert_value,
    flag,
    from_dict,
    hints,
    members,
    options,
    setting_of,
)

C = TypeVar("C", bound=Settings)
FOR_ALL = (
    Option(
        "config", str | None, None, "YAML file of settings; options override it. A run's own goes on in its folder."
    ),
    Option("trust_code", bool, False, "Run code that a folder or file names: schemes from elsewhere."),
)
"""Options that every command has."""
SCHEMES = ("scheme", "schemes", "baseline")
"""Settings that name the schemes of a run, whose folder may keep their source."""
STARTS_CODE = ("trust_remote_code", "slurm.setup", "slurm.options", "ray.address")
"""Settings that start code which is not of this package, or say where: in a file they are not believed."""
PATHS = ("out", "to", "figures")
"""What is written: `--out=~/runs` reaches us as it is typed."""
HELP = ("-h", "--help", "--help-all")


class HelpAsked(Exception):
    """--help was among the arguments; the message is what is still to be printed."""


def read(kind: type[C], program: str, arguments: list[str]) -> C:
    """The configuration of a command line. ConfigError, one line, for anything wrong; HelpAsked for --help."""
    words = {word.replace("_", "-") for word in arguments}
    if words.intersection(HELP):
        raise HelpAsked(print_help(kind, program, every="--help-all" in words))
    typed = split(kind, arguments)
    if convert_value("--trust-code", typed.pop("trust_code", "false"), bool, typed=True):
        elsewhere.allow()
    file = typed.pop("config", None)
    settings = {}
    if file is not None:
        settings = from_file(Path(file))
        if "out" in settings and "out" not in typed:
            settings["out"] = folder_of(Path(file), settings["out"])
        admit(Path(file), [settings[name] for name in SCHEMES if name in settings and name not in typed])
        elsewhere.read_from(file, arguments)
    for name in STARTS_CODE:
        if setting_of(settings, name) and setting_of(typed, name) is None:
            raise ConfigError(f"{name} of {file} would run code: say {flag(name)} on the command line if it may")
    for name, value in typed.items():
        group = settings.get(name)
        settings[name] = {**group, **value} if isinstance(group, dict) and isinstance(value, dict) else value
    for option in options(kind).values():
        if option.default is MISSING and settings.get(option.name, []) == []:
            name = option.name.upper() if option.name in kind.words else option.flag
            raise ConfigError(f"{name} is missing: {option.text} (see --help)")
    for name in PATHS:
        if isinstance(settings.get(name), str):
            settings[name] = os.path.expanduser(settings[name])
    config: C = from_dict(kind, settings, typed=True)
    check_unused(config, typed)
    return config


def split(kind: type[Settings], arguments: list[str]) -> dict[str, Any]:
    """The texts of each option, groups nested. ConfigError for an option that does not exist, is repeated or lacks its
    value, and for a word that belongs to none."""
    every = options(kind)
    known = {o.name: o for o in (*every.values(), *FOR_ALL) if o.name not in kind.words}
    positions = [every[name] for name in kind.words]
    settings: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        word, equals, value = waiting.pop(0).partition("=")
        if not word.startswith("-"):
            word = word + equals + value
            require(positions, f"unexpected argument {word!r}; options begin with -- (see --help)")
            place = positions[0] if positions[0].many else positions.pop(0)
            settings[place.name] = [*settings.get(place.name, []), word] if place.many else word
            continue
        option = known.get(word[2:].replace("-", "_")) if word.startswith("--") else None
        if option is None:  # the nearest option, not all of them: there are too many for a line
            message = unknown("option", word, [option.flag for option in known.values()])
            raise ConfigError(message.split(" (valid:")[0] + " (see --help)")
        values = [value] if equals else values_of(option, waiting, among_words=bool(kind.words))
        group, _, leaf = option.name.rpartition(".")
        settings_of_group = settings.setdefault(group, {}) if group else settings
        require(leaf not in settings_of_group, f"{option.flag} is given twice")
        settings_of_group[leaf] = values if option.many else values[0]
    return settings


def values_of(option: Option, waiting: list[str], among_words: bool) -> list[str]:
    """Takes the values of an option off the words that wait; true for a switch without one. among_words: of a command
    with words by position, where a switch takes only true or false."""
    values: list[str] = []
    while waiting and not waiting[0].startswith("--") and (option.many or not values):
        if option.switch and among_words and waiting[0] not in ("true", "false"):
            break
        values.append(waiting.pop(0))
    require(values or option.switch, f"{option.flag} needs a value ({option.flag}=VALUE if it begins with --)")
    return values or ["true"]


def admit(file: Path, named: list[Any]) -> None:
    """Schemes that a file of settings names: text from a folder, which runs no code without --trust-code. Beside the
    settings of a run lies the source of its schemes."""
    from ..lab.runs.provenance import read_sources

    schemes = [text for each in named for text in (each if isinstance(each, list) else [each]) if isinstance(text, str)]
    sources = read_sources(file.parent) if schemes and file.absolute().parent.name != "configs" else {}
    for text in schemes if sources else [text for text in schemes if ":" in text]:
        from ..schemes import parse, stored

        parse(stored(text, sources, str(file)))


def folder_of(file: Path, out: Any) -> Any:
    """The `out` of a file of settings: for the config.yaml that a command left in its folder, that folder, wherever it
    has been copied to or is called from."""
    stored = file.name == "config.yaml" and (file.parent / ".lock").exists() and isinstance(out, str)
    return str(file.parent) if stored and Path(out).resolve() != file.parent.resolve() else out


def from_file(path: Path) -> dict[str, Any]:
    """The settings of a YAML file, whose names `from_dict` checks."""
    try:
        return from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read --config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--config {path} is not readable YAML: {error}") from None


def tyro_type(tyro: Any, kind: type[Settings], names: Collection[str] = ()) -> Any:
    """A configuration for tyro: all options, or those of some names, with their documentation beside them."""
    every = {option.name: option for option in (*options(kind).values(), *FOR_ALL)}
    groups: dict[str, list[Any]] = {"": []}
    for option in [every[name] for name in (*kind.words, *names, "config")] if names else every.values():
        marks = [tyro.conf.FlagCreatePairsOff if option.default is False else tyro.conf.FlagConversionOff]
        about: dict[str, Any] = {"help": option.text}
        if option.name in kind.words:
            marks.append(tyro.conf.Positional)
            about["metavar"] = option.name.upper() + " ..." * option.many
        elif option.default is None:  # without the word None, which nobody has to write
            names = [bare(member).__name__.upper() for member in members(option.hint) if member is not NoneType]
            about["metavar"] = "|".join(choices(option.hint) or names)
        if not option.default:  # None, False, an empty list: the documentation says what holds then
            about["help_behavior_hint"] = ""
        default: Any = MISSING if option.default is MISSING else lambda value=option.default: value
        group, _, leaf = option.name.rpartition(".")
        hint: Any = Annotated[(option.hint, tyro.conf.arg(**about), *marks)]
        groups.setdefault(group, []).append((leaf, hint, field(default_factory=default)))
    for name, fields in groups.items():
        if name:
            group_type: Any = make_dataclass(name, fields, kw_only=True)
            hint = Annotated[group_type, tyro.conf.arg(help=hints(kind)[name].__doc__)]
            groups[""].append((name, hint, field(default_factory=group_type)))
    return make_dataclass(kind.__name__, groups[""], kw_only=True, namespace={"__doc__": kind.__doc__})


def print_help(kind: type[Settings], program: str, every: bool) -> str:
    """Prints the help: of the options that people set most, or of all. Returns its last lines."""
    tyro = import_extra("tyro", "the command line", "train")
    common: tuple[str, ...] = () if every else kind.common
    about = " ".join((kind.__doc__ or "").split())
    with suppress(SystemExit, BrokenPipeError):  # its end of the program; `| head` has seen enough
        tyro.cli(tyro_type(tyro, kind, common), prog=program, args=["--help"], description=about)
    lines = ["examples:", *(f"  {example}" for example in kind.examples)]
    more = [f"{program} --help-all: all {len(options(kind)) + len(FOR_ALL)} options"] if common else []
    return "\n".join([*(lines if lines[1:] else []), *more])
