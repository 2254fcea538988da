"""Words of a command line to a configuration, through tyro, which takes them apart, writes the help and completes them
in a shell.

What this adds to tyro: an option is given once, a switch needs no value, a YAML file comes first, whatever its place,
and options override it, --help shows what people set most, and every error is one line that names the nearest valid
choice. No torch here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypedDict, TypeVar, Union, get_origin

from .. import elsewhere
from ..errors import ConfigError, unknown
from ..parsing import from_yaml
from ..settings import (
    Option,
    Settings,
    bare,
    check_unused,
    choices,
    find,
    flag,
    from_dict,
    hints,
    members,
    options,
)

C = TypeVar("C", bound=Settings)
OURS = (
    Option("config", str, None, "YAML file of settings; options override it. A run's own goes on in its folder."),
    Option("trust_code", bool, False, "Run code that a folder or file names: schemes from elsewhere."),
)
"""Options that every command has."""
SCHEMES = ("scheme", "schemes", "baseline")
"""Settings that name the schemes of a run, whose folder may keep their source."""
BY_HAND = ("trust_remote_code", "slurm.setup", "slurm.options", "ray.address")
"""Settings that start code which is not of this package, or say where: in a file they are not believed."""
PATHS = ("out", "to", "figures")
"""What is written: `--out=~/runs` reaches us as it is typed."""
HELP = ("-h", "--help", "--help-all")
SHELLS = ("bash", "zsh", "fish")


class HelpAsked(Exception):
    """--help was among the arguments; the message is what is still to be printed."""


def read(kind: type[C], program: str, arguments: list[str]) -> C:
    """The configuration of a command line. ConfigError, one line, for anything wrong; HelpAsked for --help."""
    asked = {word.replace("_", "-") for word in arguments}
    if asked.intersection(HELP):
        raise HelpAsked(print_help(kind, program, every="--help-all" in asked))
    given = split(kind, program, arguments)
    trusted = str(given.pop("trust_code", "false")).lower()
    if trusted not in ("true", "false"):
        raise ConfigError(f"--trust-code takes true or false, got {trusted!r}")
    if trusted == "true":
        elsewhere.allow()
    file = given.pop("config", None)
    settings = from_file(Path(file), kind) if file else {}
    if file and "out" in settings and "out" not in given:
        settings["out"] = folder_of(Path(file), settings["out"])
    if file:
        admit(Path(file), [settings[name] for name in SCHEMES if name in settings and name not in given])
        elsewhere.read_from(file, arguments)
    for name in BY_HAND:
        if find(settings, name) and find(given, name) is None:
            raise ConfigError(f"{name} of {file} would run code: say {flag(name)} on the command line if it may")
    for name, value in given.items():
        settings[name] = {**settings.get(name, {}), **value} if isinstance(value, dict) else value
    for option in options(kind).values():
        if option.default is MISSING and option.name not in settings:
            wanted = option.name.upper() if option.name in kind.words else option.flag
            raise ConfigError(f"{wanted} is missing: {option.text} (see --help)")
    for name in PATHS:
        if isinstance(settings.get(name), str):
            settings[name] = os.path.expanduser(settings[name])
    config: C = from_dict(kind, settings, typed=True)
    check_unused(config, given)
    return config


def split(kind: type[Settings], program: str, arguments: list[str]) -> dict[str, Any]:
    """The texts given for each option, groups nested. ConfigError for an option that does not exist, is repeated or
    lacks its value, and for a word that belongs to none."""
    known = {o.name: o for o in (*options(kind).values(), *OURS) if o.name not in kind.words}
    seen: set[str] = set()
    told: list[str] = []
    waiting = list(reversed(arguments))
    while waiting:
        word = waiting.pop()
        option = known.get(word[2:].partition("=")[0].replace("-", "_")) if word.startswith("--") else None
        if option is not None:
            if option.name in seen:
                raise ConfigError(f"{option.flag} is given twice")
            seen.add(option.name)
            value = waiting[-1] if waiting and not waiting[-1].startswith("--") else None
            if option.switch and "=" not in word and (value is None or (kind.words and value not in ("true", "false"))):
                word += "=true"
            elif value is None and "=" not in word:
                raise ConfigError(f"{option.flag} needs a value ({option.flag}=VALUE if it begins with --)")
            elif "=" not in word and not option.many:
                word += f"={waiting.pop()}"
        told.append(word)
    found, left = tyro_cli(tyro_type(kind), program, told)
    if left and left[0].startswith("-"):  # the nearest option, not all of them: there are too many for a line
        said = unknown("option", left[0].partition("=")[0], [option.flag for option in known.values()])
        raise ConfigError(said.split(" (valid:")[0] + " (see --help)")
    if left:
        raise ConfigError(f"unexpected argument {left[0]!r}; options begin with -- (see --help)")
    return dict(found)


def admit(file: Path, named: list[Any]) -> None:
    """Schemes that a file of settings names: text from a folder, which runs no code without --trust-code. Beside the
    settings of a run lies the source of its schemes."""
    from ..lab.runs.provenance import read_sources

    schemes = [text for each in named for text in (each if isinstance(each, list) else [each]) if isinstance(text, str)]
    kept = read_sources(file.parent) if schemes else {}
    for text in schemes if kept else [text for text in schemes if ":" in text]:
        from ..schemes import parse, stored

        parse(stored(text, kept, str(file), strict=True))


def folder_of(file: Path, out: Any) -> Any:
    """The `out` of a file of settings: for the config.yaml that a command left in its folder, that folder, wherever it
    has been copied to or is called from."""
    stored = file.name == "config.yaml" and (file.parent / ".lock").exists() and isinstance(out, str)
    return str(file.parent) if stored and Path(out).resolve() != file.parent.resolve() else out


def from_file(path: Path, kind: type[Settings]) -> dict[str, Any]:
    """A YAML file's settings, of which all names are known."""
    try:
        tree = from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read --config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--config {path} is not readable YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"--config {path} is not a mapping of settings")
    for key, value in tree.items():
        group = hints(kind).get(key)
        if is_dataclass(group) and not isinstance(value, dict):
            raise ConfigError(f"{key} must be a mapping of settings in {path}, got {value!r}")
        for name in [f"{key}.{leaf}" for leaf in value] if is_dataclass(group) else [str(key)]:
            if name not in options(kind):
                raise ConfigError(unknown("setting", name, options(kind)).split(" (valid:")[0] + f" in {path}")
    return tree


def tyro_library() -> Any:
    try:
        import tyro
    except ImportError:
        raise ConfigError("the command line needs the train extra: pip install 'geonorm[train]'") from None
    return tyro


def tyro_cli(kind: Any, program: str, words: list[str], **more: Any) -> Any:
    return tyro_library().cli(kind, prog=program, args=words, return_unknown_args=True, **more)


def tyro_type(kind: type[Settings], shown: Collection[str] = (), complete: bool = False) -> Any:
    """What tyro is told of a configuration: its options, or those that are `shown`, all of which take texts and none of
    which has to be given; for a shell that completes them the words of a Literal, too."""
    groups: dict[str, dict[str, Any]] = {"": {}}
    every = {option.name: option for option in (*options(kind).values(), *OURS)}
    for option in [every[name] for name in (*kind.words, *shown, "config")] if shown else every.values():
        group, _, leaf = option.name.rpartition(".")
        groups.setdefault(group, {})[leaf] = tyro_field(option, option.name in kind.words, complete)
    for name, leaves in groups.items():
        if name:
            about = tyro_library().conf.arg(help=hints(kind)[name].__doc__)
            groups[""][name] = Annotated[typed_dict(name, leaves), about]
    return typed_dict(kind.__name__, groups[""], kind.__doc__)


def typed_dict(name: str, leaves: dict[str, Any], about: str | None = None) -> Any:
    found: Any = TypedDict(name, leaves, total=False)  # type: ignore[misc]
    found.__doc__ = about
    return found


def tyro_field(option: Option, by_position: bool, complete: bool) -> Any:
    tyro = tyro_library()
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs="*" if option.many else 1,
        metavar="",
        instance_from_str=lambda texts: list(texts) if option.many else texts[0],
        is_instance=lambda value: True,
        str_from_instance=list,
        choices=tuple(choices(option.one)) or None if complete else None,
    )
    plain = {int: "N", float: "X", str: "TEXT", bool: "true|false"}
    taken = choices(option.one) or [plain[bare(hint)] for hint in members(option.one) if hint is not NoneType]
    metavar = option.name.upper() if by_position else "" if option.default is False else "|".join(taken)
    about = tyro.conf.arg(metavar=metavar + " ..." * option.many, help=option.text, help_behavior_hint=default(option))
    return Annotated[(str, spec, about, *[tyro.conf.Positional] * by_position)]


def default(option: Option) -> str:
    """What holds when the option is not given, where the documentation does not say it already."""
    if option.default is MISSING:
        return "(required)"
    if option.default is None or option.default is False or option.default == "":
        return ""
    values = option.default if isinstance(option.default, (list, tuple)) else [option.default]
    words = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return f"[{' '.join(words)}]" if words else ""


def print_help(kind: type[Settings], program: str, every: bool) -> str:
    """Prints the help: of the options that people set most, or of all. Returns its last lines."""
    common: tuple[str, ...] = () if every else kind.common
    about = " ".join((kind.__doc__ or "").split())
    with suppress(SystemExit, BrokenPipeError):  # `| head` has seen enough
        tyro_cli(tyro_type(kind, common), program, ["--help"], description=about)
    lines = ["examples:", *(f"  {example}" for example in kind.examples)]
    more = [f"{program} --help-all: all {len(options(kind)) + len(OURS)} options"] if common else []
    return "\n".join([*(lines if lines[1:] else []), *more])


def print_completion(shell: str, kinds: Mapping[str, type[Settings]]) -> None:
    """Prints what makes a shell complete verbs, options and words: `eval "$(geonorm --completion bash)"`."""
    if shell not in SHELLS:
        raise ConfigError(unknown("shell", shell, SHELLS))
    conf = tyro_library().conf
    verbs: dict[str, Any] = {}
    for name, kind in kinds.items():
        verb, _, what = name.partition(" ")
        made: Any = Annotated[tyro_type(kind, complete=True), conf.subcommand(what or verb)]
        verbs[verb] = verbs[verb] | made if verb in verbs else made
    every: Any = [
        Annotated[typed_dict(verb, {"what": made}), conf.subcommand(verb)] if get_origin(made) is Union else made
        for verb, made in verbs.items()
    ]
    with suppress(SystemExit):
        tyro_cli(
            Union[tuple(every)],  # noqa: UP007
            "geonorm",
            ["--tyro-print-completion", shell],
            config=(conf.OmitSubcommandPrefixes,),
        )
