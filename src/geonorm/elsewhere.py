"""Schemes from elsewhere: where their source is, which source it was, and who said that it may run.

A place is `package.module` or a file such as `./file.py`; its source is the text of that file and of the modules beside
it that it imports, its sha256 that of the file alone where it is one. A place that a person typed is imported, from the
working directory too, and its sha256 remembered in the user's cache. A place that stands in a text read from a folder
(`Stored`) runs only if its sha256 is known, or after `allow`, and what runs is the text that was checked. Nothing is
run to find that out. See docs/design/0004.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from .checked import Checked
from .errors import ConfigError, DataError, UntrustedCode

Files = dict[str, str]
"""Texts of a source by module name, that of the place first."""


class Stored(str):
    """A scheme's text that came from a folder: `parse` runs no code for it that is not trusted.

    sources: files by place, as the folder keeps them; where they are missing, the source at hand counts. where: what
    the text was read from, for messages. strict: a source at hand that differs from the kept one is an error.
    """

    sources: Mapping[str, Files]
    where: str
    strict: bool

    def __new__(
        cls, text: str, sources: Mapping[str, Files] | None = None, where: str = "a folder", strict: bool = False
    ) -> Stored:
        made = super().__new__(cls, text)
        made.sources, made.where, made.strict = dict(sources or {}), where, strict
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.sources, self.where, self.strict


READ: ContextVar[Stored | None] = ContextVar("read", default=None)
"""The stored text that is being parsed."""
ALLOWED: ContextVar[bool] = ContextVar("allowed", default=False)
"""Whether someone said that code named in a folder may run."""
SETTINGS: ContextVar[tuple[str, str] | None] = ContextVar("settings", default=None)
"""The file of settings that this command read, and the words that were typed beside it."""
BOUND: dict[str, ModuleType] = {}
"""What a place means in this process after a stored text that names it was admitted."""
HERE: set[str] = set()
"""sha256 that this process trusts, where no cache can be written."""
SAID: set[str] = set()
FILES = "__geonorm_files__"
"""Attribute of an imported module: its files as they were then."""
PLACE = "__geonorm_place__"
"""Attribute of a module that was made of a checked text: the place that it stands for."""


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


def say(line: str) -> None:
    """One line on stderr, once."""
    if line not in SAID:
        SAID.add(line)
        print(line, file=sys.stderr)


def find_code(name: str, load: Callable[[], Any] | None = None) -> Any:
    """What `place:Name` names. `load` loads what an installed package offers, which is trusted. ConfigError, one line,
    where there is nothing or where it cannot be imported; UntrustedCode where it may not run."""
    place, _, attribute = name.rpartition(":")
    stored = READ.get()
    if stored is None:
        module = BOUND.get(place) or (None if load else import_plain(place))
    elif load and stored.sources.get(place) in (None, gather(place)):
        module = None
    else:
        module = import_stored(place, stored)
    if module is None and load:
        return load()
    if not hasattr(module, attribute):
        raise ConfigError(f"no scheme {name!r}: {place} has no attribute {attribute!r}; it must name a class")
    return getattr(module, attribute)


def import_plain(place: str) -> ModuleType:
    """The module of a place in a plain string: what a person typed, or what a file of settings says."""
    file, words = SETTINGS.get() or ("", "")
    if file and not re.search(rf"(?<![\w./~-]){re.escape(place)}:", words):
        return import_stored(place, Stored("", None, file))
    return import_typed(place)


def import_typed(place: str) -> ModuleType:
    """The module of a place that a person named, from the working directory too. What Python would not find by itself
    is made of its text: what it imports later it would not find either."""
    files = gather(place)
    if is_file(place) and not files:
        raise missing_error(place)
    if files and (is_file(place) or (place not in sys.modules and find_file(place, None) is None)):
        module = run_source(place, files)
    else:
        sys.path.insert(0, folder := os.getcwd())
        importlib.invalidate_caches()
        try:
            with explain_failure(place):
                module = importlib.import_module(place)
        finally:
            sys.path.remove(folder)
        if not hasattr(module, FILES):
            setattr(module, FILES, files or gather(place))
    if known := getattr(module, FILES, None):
        remember(digest(known))
    return module


def import_stored(place: str, stored: Stored) -> ModuleType:
    """The module of a place that a stored text names, if it may run."""
    kept, at_hand = stored.sources.get(place), gather(place)
    files = at_hand if kept is None else kept
    if not files:
        raise missing_error(place)
    found = digest(files)
    if not is_trusted(found):
        if not ALLOWED.get():
            raise UntrustedCode(
                f"{stored.where} names code, {place} (sha256 {found[:12]}...), that you have not typed before; read "
                "it, then say --trust-code, in Python trust_remote_code=True or geonorm.parse of its name"
            )
        say(f"{place} (sha256 {found[:12]}...) of {stored.where} runs, as you said")
        remember(found)
    if kept is not None and at_hand and digest(at_hand) != found:
        if stored.strict:
            raise ConfigError(
                f"{place} is not what it was for {stored.where} (sha256 {found[:12]}..., now "
                f"{digest(at_hand)[:12]}...): put it back, or name the scheme with --scheme and choose another --out"
            )
        say(f"{place} has changed since {stored.where} was made; the source that is kept there is used")
    already = sys.modules.get(place)
    module = already if already and getattr(already, FILES, None) == files else run_source(place, files)
    package = module.__name__.removesuffix(own(place))
    BOUND.update({name: sys.modules[package + name] for name in files if package + name in sys.modules})
    BOUND[place] = module
    return module


def run_source(place: str, files: Files) -> ModuleType:
    """The module that a source makes, run once for each sha256. Modules that it imports come from the same source."""
    package = f"checked_{hashlib.sha256(f'{place} {digest(files)}'.encode()).hexdigest()[:12]}"
    name = f"{package}.{own(place)}"
    if package not in sys.modules:
        path = path_of(place)
        unchanged = {own(place): str(path)} if path and text_of(path) == files[own(place)] else {}
        marks: dict[str, dict[str, Any]] = {module: {PLACE: module} for module in files}
        marks[own(place)] = {PLACE: place, FILES: files}
        sys.meta_path.insert(0, Checked(package, files, unchanged, marks))
    with explain_failure(place):
        return importlib.import_module(name)


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


def own(place: str) -> str:
    """The name under which the text of a place stands among its files."""
    return Path(place).stem if is_file(place) else place


def place_of(kind: type) -> str:
    """The place of a class: modules that `run_source` made say theirs."""
    return str(getattr(sys.modules.get(kind.__module__), PLACE, kind.__module__))


def files_of(kind: type) -> Files:
    """The source of a class from elsewhere; empty where it has none, as in a notebook."""
    return getattr(sys.modules.get(kind.__module__), FILES, None) or gather(place_of(kind))


def missing_error(place: str) -> ConfigError:
    what = f"no file {place}" if is_file(place) else f"No module named {place!r}"
    return ConfigError(f"no scheme of {place}: {what}; it must be named as package.module:Name or ./file.py:Name")


def path_of(place: str) -> Path | None:
    """The file of a place, found without running anything; None if there is none."""
    if is_file(place):
        return path if (path := Path(place).expanduser()).is_file() else None
    module = sys.modules.get(place)
    if module is not None:
        file = getattr(module, "__file__", None)
        return Path(file) if file and file.endswith(".py") and os.path.isfile(file) else None
    return find_file(place, [os.getcwd(), *sys.path]) or find_file(place, None)


def find_file(name: str, folders: list[str] | None) -> Path | None:
    """The source file of a module below some folders, or wherever Python would find its package."""
    path: Any = folders
    for end in [match.start() for match in re.finditer(r"\.|$", name)]:
        try:
            spec = find_spec(name[:end]) if path is None else PathFinder.find_spec(name[:end], path)
        except (ImportError, ValueError, OSError):
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def gather(place: str) -> Files:
    """The text of a place and of the modules beside it that it imports, and they in turn; nothing is run. Beside it is
    what lies below the folder from which it is imported, of a file its own, and where that is one of installed
    packages, its own package. Empty where there is no such place, or no source of it."""
    path = path_of(place)
    if path is None:
        return {}
    name = own(place)
    package = path.name == "__init__.py" and not is_file(place)
    above = 0 if is_file(place) else name.count(".") + package  # dots in the name of a file are no packages
    base = Path(os.path.abspath(path)).parents[above]
    top = name.partition(".")[0]
    installed = any(base.is_relative_to(folder) for folder in INSTALLED)
    files: Files = {name: text_of(path)}
    packages = {name} if package else set[str]()
    waiting = [name]
    while waiting:
        now = waiting.pop()
        for wanted in named_modules(files[now], now, now in packages, now == name and not is_file(place)):
            first = wanted.partition(".")[0]
            if wanted in files or first == OURS or (installed and first != top):
                continue
            found = find_file(wanted, [str(base)])
            if found is not None:
                files[wanted] = text_of(found)
                waiting.append(wanted)
                if found.name == "__init__.py":
                    packages.add(wanted)
    return order_files(place, files)


def order_files(place: str, files: Mapping[str, Any]) -> Files:
    """The text of the place first, then the others by name: the order that the sha256 is of."""
    name = own(place)
    return {name: str(files[name]), **{key: str(files[key]) for key in sorted(files) if key != name}}


OURS = __name__.partition(".")[0]
INSTALLED = [Path(folder).resolve() for folder in map(sysconfig.get_path, ("purelib", "platlib", "stdlib")) if folder]


def named_modules(text: str, name: str, package: bool, root: bool) -> Iterator[str]:
    """Modules that a source may import, its packages included. Names that are no modules are sorted out later."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return  # importing it will say so
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: len(name.split(".")) + package - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    for wanted in [*found, *([name.rpartition(".")[0]] if root else [])]:
        parts = wanted.split(".")
        yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1) if all(parts[:end]))


def digest(files: Files) -> str:
    """sha256 of the one file, or of all with their names where there are several."""
    text = next(iter(files.values()), "") if len(files) < 2 else json.dumps(list(files.items()), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def cache_folder() -> Path:
    """``$GEONORM_CACHE``, or ``~/.cache/geonorm`` where it is not set. DataError where there is no home either."""
    try:
        return Path(os.environ.get("GEONORM_CACHE") or Path.home() / ".cache" / "geonorm")
    except RuntimeError:  # neither $HOME nor an entry in the list of users
        raise DataError("there is no home directory for the cache: set GEONORM_CACHE to a writable folder") from None


def is_trusted(sha256: str) -> bool:
    """Whether this user has typed the name of that source before."""
    try:
        return sha256 in HERE or (cache_folder() / "trusted" / sha256).is_file()
    except (OSError, DataError):
        return sha256 in HERE


def remember(sha256: str) -> None:
    """From now on that source may run, whoever names it."""
    HERE.add(sha256)
    try:
        mark = cache_folder() / "trusted" / sha256
        if not mark.is_file():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    except (OSError, DataError):  # this process trusts it all the same
        pass
