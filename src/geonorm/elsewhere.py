"""Schemes from elsewhere: where their source is, and who said that it may run.

A place is `package.module` or a file such as `./file.py`; its source is the text of that file. A place that a person
typed is imported, from the working directory too. A place that stands in a text read from a folder (`Stored`) runs only
after `allow` (--trust-code, trust_remote_code=True), or where this process has loaded that very source already. The
source that the folder keeps is what runs. See docs/design/0004.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError, UntrustedCode


class Stored(str):
    """A scheme's text that came from a folder: `parse` runs no code for it unless that is allowed.

    sources: texts by place, as the folder keeps them; where one is missing, the source at hand counts. where: what the
    text was read from, for messages. strict: a source at hand that differs from the kept one is an error.
    """

    sources: Mapping[str, str]
    where: str
    strict: bool

    def __new__(
        cls, text: str, sources: Mapping[str, str] | None = None, where: str = "a folder", strict: bool = False
    ) -> Stored:
        stored = super().__new__(cls, text)
        stored.sources, stored.where, stored.strict = dict(sources or {}), where, strict
        return stored

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.sources, self.where, self.strict


READ: ContextVar[Stored | None] = ContextVar("read", default=None)
"""The stored text that is being parsed."""
ALLOWED: ContextVar[bool] = ContextVar("allowed", default=False)
"""Whether someone said that code named in a folder may run."""
SETTINGS: ContextVar[tuple[str, str] | None] = ContextVar("settings", default=None)
"""The file of settings that this command read, and the words that were typed beside it."""
LOADED: dict[tuple[str, str], ModuleType] = {}
"""Modules from elsewhere of this process, by place and sha256."""
BOUND: dict[str, ModuleType] = {}
"""What a place means in this process after a stored text that names it was parsed."""
OURS = __name__.partition(".")[0]
PLACE = "__geonorm_place__"
"""Attribute of a module that was made of a text: the place that it stands for."""
SOURCE = "__geonorm_source__"
"""Attribute of a module from elsewhere: its text when it was loaded."""


@contextmanager
def mark_stored(text: str) -> Iterator[None]:
    """Inside, the rule for text from a folder holds if `text` is a Stored, which is being parsed."""
    token = READ.set(text) if isinstance(text, Stored) else None
    try:
        yield
    finally:
        if token is not None:
            READ.reset(token)


@contextmanager
def allow_within(yes: bool = True) -> Iterator[None]:
    """Inside, code that a folder names may run: someone typed --trust-code or trust_remote_code=True."""
    token = ALLOWED.set(yes or ALLOWED.get())
    try:
        yield
    finally:
        ALLOWED.reset(token)


def allow() -> None:
    """From now on, code that a folder names may run."""
    ALLOWED.set(True)


def read_from(file: str, words: list[str]) -> None:
    """From now on a plain string may have come from that file: only a place that stands in `words` counts as typed."""
    SETTINGS.set((file, " ".join(words)))


@cache
def say(line: str) -> None:
    """One line on stderr, once."""
    print(line, file=sys.stderr)


def find_code(name: str) -> Any:
    """What `place:Name` names. ConfigError, one line, where there is nothing or where it cannot be imported;
    UntrustedCode where it may not run."""
    place, _, attribute = name.rpartition(":")
    stored = READ.get()
    if stored is None and place not in BOUND:
        file, words = SETTINGS.get() or ("", "")
        if file and not re.search(rf"(?<![\w./~-]){re.escape(place)}:", words):
            stored = Stored(name, None, file)
    module = import_stored(place, stored) if stored is not None else BOUND.get(place) or import_typed(place)
    if not hasattr(module, attribute):
        raise ConfigError(f"no scheme {name!r}: {place} has no attribute {attribute!r}; it must name a class")
    return getattr(module, attribute)


def import_typed(place: str) -> ModuleType:
    """The module of a place that a person named, from the working directory too."""
    if is_file(place):
        if (text := text_at_hand(place)) is None:
            raise ConfigError(f"no scheme of {place}: no file {place}; it must be named as ./file.py:Name")
        return LOADED.get((place, digest(text))) or run_text(place, text)
    with explain_failure(place), importing_from(os.getcwd()):
        module = importlib.import_module(place)
    if not hasattr(module, SOURCE) and (text := text_of_module(module)) is not None:
        setattr(module, SOURCE, text)
        LOADED[place, digest(text)] = module
    return module


def import_stored(place: str, stored: Stored) -> ModuleType:
    """The module of a place that a stored text names, if it may run."""
    copy, here = stored.sources.get(place), text_at_hand(place)
    text = here if copy is None else copy
    module = None if text is None else LOADED.get((place, digest(text)))
    if module is None and not ALLOWED.get():
        raise UntrustedCode(
            f"{stored.where} names code, {place}: read it, then say --trust-code, in Python trust_remote_code=True"
        )
    if copy is not None and here not in (None, copy):
        if stored.strict:
            raise ConfigError(
                f"{place} is not what it was for {stored.where}: put it back, or name the scheme with --scheme and "
                "choose another --out"
            )
        say(f"{place} has changed since {stored.where} was made; the source that is kept there is used")
    if module is None:
        module = import_typed(place) if copy in (None, here) else run_text(place, str(copy))
    BOUND[place] = module
    return module


def run_text(place: str, text: str) -> ModuleType:
    """A new module that a source makes, whatever stands in its file; what it imports may lie beside that file."""
    path = os.path.abspath(os.path.expanduser(place)) if is_file(place) else f"<{place}>"
    stem = Path(place).stem if is_file(place) else place
    name = re.sub(r"\W", "_", stem) + f"_{digest(f'{place} {text}')[:12]}"
    module = ModuleType(name)
    vars(module).update({"__file__": path, PLACE: place, SOURCE: text})
    if not is_file(place):
        module.__package__ = place.rpartition(".")[0]  # for its relative imports
    sys.modules[name] = module
    try:
        with explain_failure(place), importing_from(os.path.dirname(path) or os.getcwd()):
            exec(compile(text, path, "exec"), vars(module))  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    LOADED[place, digest(text)] = module
    return module


@contextmanager
def importing_from(folder: str) -> Iterator[None]:
    """Inside, modules of a folder can be imported, before all others."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def explain_failure(place: str) -> Iterator[None]:
    """Raises what goes wrong in a module from elsewhere as one line; a module that ends the program included."""
    try:
        yield
    except (KeyboardInterrupt, ConfigError):
        raise
    except BaseException as error:
        line = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(f"cannot import {place}: {type(error).__name__}{f': {line}' if line else ''}") from error


def is_file(place: str) -> bool:
    return place.endswith(".py")


def place_of(kind: type) -> str:
    """The place of a class: modules that `run_text` made say theirs."""
    return str(getattr(sys.modules.get(kind.__module__), PLACE, kind.__module__))


def source_of(kind: type) -> str | None:
    """The source of a class from elsewhere; None where it has none, as in a notebook."""
    module = sys.modules.get(kind.__module__)
    text: str | None = getattr(module, SOURCE, None)
    return text_of_module(module) if text is None else text


def text_at_hand(place: str) -> str | None:
    """The source of a place as it is now; None if there is none. To find a module that is not loaded runs its packages:
    that is done only where code may run."""
    if is_file(place):
        path = Path(place).expanduser()
        return text_of(path) if path.is_file() else None
    if not ALLOWED.get():
        return getattr(sys.modules.get(place), SOURCE, None)
    try:
        with explain_failure(place), importing_from(os.getcwd()):
            spec = find_spec(place)
    except ConfigError:
        return None
    return text_of(Path(spec.origin)) if spec and spec.origin and spec.origin.endswith(".py") else None


def text_of_module(module: ModuleType | None) -> str | None:
    file = getattr(module, "__file__", None)
    return text_of(Path(file)) if file and file.endswith(".py") and os.path.isfile(file) else None


def text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def digest(text: str) -> str:
    """sha256 of a source."""
    return hashlib.sha256(text.encode()).hexdigest()
