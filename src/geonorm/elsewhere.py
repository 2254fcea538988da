"""Schemes from elsewhere: where their source is, and whether it may run.

A place is `package.module` or a file such as `./file.py`; its source is the text of that file. A place that a person
typed is imported, from the working directory too. A place that stands in a text read from a folder (`Stored`) runs only
after `allow` (--trust-code, trust_remote_code=True), or where this process has loaded that very source already. The
source that the folder keeps is what runs. See docs/design/0004.

A class of a notebook or a script has the place `__main__.Name`, and a source that is gathered from the cells or the
file: its definition, and those of the names that it uses.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import re
import symtable
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError, UntrustedCode


class Stored(str):
    """A scheme's text that came from a folder: `parse` runs no code for it unless that is allowed.

    sources: texts by place, as the folder keeps them; where one is missing, the source at hand counts. where: the file
    or folder that the text was read from; messages name it, and sources of notebooks are looked for beside it.
    """

    sources: Mapping[str, str]
    where: str

    def __new__(cls, text: str, sources: Mapping[str, str] | None = None, where: str = "a folder") -> Stored:
        stored = super().__new__(cls, text)
        stored.sources, stored.where = dict(sources or {}), where
        return stored


READ: ContextVar[Stored | None] = ContextVar("read", default=None)
"""The stored text that is being parsed."""
ALLOWED: ContextVar[bool] = ContextVar("allowed", default=False)
"""True once someone permitted code named in a folder."""
SETTINGS: ContextVar[tuple[str, str]] = ContextVar("settings", default=("", ""))
"""The file of settings that this command read, and the words that were typed beside it."""
MODULES: dict[str, ModuleType] = {}
"""What a place means in this process: the module that was loaded for it last."""
OURS = __name__.partition(".")[0]
MAIN = "__main__."
"""How the places of classes of a notebook or a script begin."""
PLACE = "__geonorm_place__"
"""Attribute of a module that was made of a text: the place that it stands for."""
ASSIGNMENT = (ast.Assign, ast.AnnAssign)
BINDING = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom, *ASSIGNMENT)
SOURCE = "__geonorm_source__"
"""Attribute of a module from elsewhere: its text when it was loaded, or None."""


@contextmanager
def set_within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def mark_stored(text: str) -> AbstractContextManager[None]:
    """Inside, the rule for text from a folder holds if `text` is a Stored, which is being parsed."""
    return set_within(READ, text if isinstance(text, Stored) else READ.get())


def allow_within(yes: bool = True) -> AbstractContextManager[None]:
    """Inside, code that a folder names may run: someone typed --trust-code or trust_remote_code=True."""
    return set_within(ALLOWED, yes or ALLOWED.get())


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
    stored, (file, words) = READ.get(), SETTINGS.get()
    if stored is None and file and not re.search(rf"(?<![\w./~-]){re.escape(place)}:", words):
        stored = Stored(name, None, file)
    module = load_module(place, stored)
    if not hasattr(module, attribute):
        raise ConfigError(f"no scheme {name!r}: {place} has no attribute {attribute!r}; it must name a class")
    return getattr(module, attribute)


def load_module(place: str, stored: Stored | None) -> ModuleType:
    """The module of a place, run at most once in a process, unless a stored text brings another source."""
    if stored is None and place.startswith(MAIN):
        return sys.modules["__main__"]
    text = (stored.sources.get(place) or source_beside(stored.where, place)) if stored else None
    module = MODULES.get(place)
    if module is not None and text in (None, getattr(module, SOURCE)):
        return module
    if stored is not None and not ALLOWED.get():
        raise UntrustedCode(
            f"{stored.where} names code, {place}: read it, then say --trust-code, in Python trust_remote_code=True"
        )
    here = text_at_hand(place)
    if stored is not None and text is not None and here not in (None, text):
        say(f"{place} has changed since {stored.where} was made; the source that is kept there is used")
    if text in (None, here) and not is_file(place):
        with explain_failure(place), importing_from(os.getcwd()):
            module = importlib.import_module(place)
        setattr(module, SOURCE, here)
    else:
        module = run_text(place, here if text is None else text)
    MODULES[place] = module
    return module


def run_text(place: str, text: str | None) -> ModuleType:
    """A new module that a source makes, whatever stands in its file; what it imports may lie beside that file."""
    if text is None:
        raise ConfigError(f"no scheme of {place}: no file {place}; it must be named as ./file.py:Name")
    path = os.path.abspath(os.path.expanduser(place)) if is_file(place) else f"<{place}>"
    stem = Path(place).stem if is_file(place) else place
    name = re.sub(r"\W", "_", stem) + f"_{digest(f'{place} {text}')[:12]}"
    module = ModuleType(name)
    vars(module).update({"__file__": path, PLACE: place, SOURCE: text})
    if not is_file(place):
        module.__package__ = place.rpartition(".")[0]  # for its relative imports
    sys.modules[name] = module
    with explain_failure(place), importing_from(os.path.dirname(path) or os.getcwd()):
        exec(compile(text, path, "exec"), vars(module))  # noqa: S102
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
    if kind.__module__ == "__main__":
        return MAIN + kind.__name__
    return str(getattr(sys.modules.get(kind.__module__), PLACE, kind.__module__))


def source_of(kind: type) -> str | None:
    """The source of a class from elsewhere; None where it has none, as at the prompt of Python."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__":
        # what `__main__` ran, in order: the cells of a notebook, else its file
        cells = list(vars(module).get("In", ())) or [text_of(getattr(module, "__file__", None)) or ""]
        return gather_source(kind.__name__, cells) if kind.__name__ == kind.__qualname__ else None
    file = getattr(module, "__file__", None)
    return getattr(module, SOURCE) if hasattr(module, SOURCE) else text_of(file)


def gather_source(name: str, cells: list[str]) -> str | None:
    """A text that defines a name as some cells do, the last definition of each name and what changes it afterwards;
    with the definitions and imports that it needs, in order, and nothing else. None if no cell defines the name."""
    statements: list[tuple[str, ast.stmt]] = []
    for cell in cells:
        with suppress(SyntaxError):  # a cell that Python refused
            statements += [(cell, statement) for statement in ast.parse(cell).body]
    definitions: dict[str, list[int]] = {}
    for number, (_, node) in enumerate(statements):
        for bound in names_bound(node):
            definitions[bound] = [number]
        for changed in names_changed(node):
            known = definitions.setdefault(changed, [])
            if not isinstance(node, ast.Expr) or (known and isinstance(statements[known[0]][1], ASSIGNMENT)):
                known.append(number)  # a call changes what was assigned; `geonorm.compare(...)` is none of these
    if name not in definitions:
        return None
    waiting, needed = [name], set[int]()
    while waiting:
        for number in definitions.get(waiting.pop(), ()):
            if number not in needed:
                needed.add(number)
                waiting += names_used(ast.unparse(statements[number][1]))
    future = [node for _, node in statements if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    parts = [ast.unparse(node) for node in future]
    for number in sorted(needed):
        cell, node = statements[number]
        first = min([node, *getattr(node, "decorator_list", ())], key=lambda part: part.lineno).lineno
        parts.append("\n".join(cell.split("\n")[first - 1 : node.end_lineno]))
    return "\n\n".join(dict.fromkeys(parts)) + "\n"


def names_bound(node: ast.stmt) -> list[str]:
    """The names that a definition, an import or an assignment of a module binds.

    >>> names_bound(ast.parse("a, b = 1, 2").body[0])
    ['a', 'b']
    """
    return names_assigned(node) if isinstance(node, BINDING) else []


def names_changed(node: ast.stmt) -> list[str]:
    """The names that any other statement of a module may change: `A += 1`, `A[0] = 1`, `A.append(1)`, `if`, `for`.

    >>> [names_changed(node) for node in ast.parse("a.b[0] = 1; c.append(2); d = 3; e += 1").body]
    [['a'], ['c'], [], ['e']]
    """
    if isinstance(node, ast.Expr):
        targets: list[ast.AST] = [node.value.func] if isinstance(node.value, ast.Call) else []
    else:
        targets = [part for part in ast.walk(node) if isinstance(getattr(part, "ctx", None), ast.Store)]
    names = [] if isinstance(node, BINDING) else names_assigned(node)
    for target in targets:
        within = target
        while isinstance(within, (ast.Attribute, ast.Subscript)):
            within = within.value
        if isinstance(within, ast.Name) and within is not target:
            names.append(within.id)
    return names


def names_assigned(node: ast.stmt) -> list[str]:
    """The names that a statement gives a value, loops and branches included.

    >>> names_assigned(ast.parse("for a in b: c = a").body[0])
    ['a', 'c']
    """
    symbols = symtable.symtable(ast.unparse(node), "<cell>", "exec").get_symbols()
    return [symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()]


def names_used(text: str) -> list[str]:
    """The names of its module that a text refers to, in functions and classes too."""
    tables, names = [symtable.symtable(text, "<cell>", "exec")], []
    for table in tables:
        tables += table.get_children()
        names += [
            symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() or table.get_type() == "module"
        ]
    return names


def source_beside(file: str, place: str) -> str | None:
    """The source of a class of a notebook or a script that a comparison keeps. file: of settings of the comparison or
    of one of its runs; those that it hands to a process, in `configs`, have no source beside them."""
    folders = Path(file).absolute().parents[:3] if place.startswith(MAIN) else ()
    texts = (text_of(str(folder / "schemes" / f"{place}.py")) for folder in folders if folder.name != "configs")
    return next((text for text in texts if text is not None), None)


def forget_changed() -> None:
    """Files whose text is another now are read again when a scheme names them next."""
    for place in [place for place in MODULES if is_file(place)]:
        if text_at_hand(place) not in (None, getattr(MODULES[place], SOURCE)):
            del MODULES[place]


def text_at_hand(place: str) -> str | None:
    """The source of a place as it is now; None if there is none. To find a module runs the packages around it."""
    if is_file(place):
        return text_of(os.path.expanduser(place))
    with importing_from(os.getcwd()):
        try:
            spec = find_spec(place)
        except (ImportError, ValueError):
            return None
    return text_of(spec.origin) if spec else None


def text_of(file: str | None) -> str | None:
    """The text of a file of Python; None if it is none."""
    try:
        return Path(file).read_bytes().decode("utf-8") if file and file.endswith(".py") else None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def digest(text: str) -> str:
    """sha256 of a source."""
    return hashlib.sha256(text.encode()).hexdigest()
