"""Modules made of texts that were checked, in a package of their own: `PACKAGE.rule` and, beside it, `PACKAGE.helper`.

Imports of one another are written, in their syntax trees, as imports from that package. So no file that lies somewhere
under such a name is ever run for it, whether a module is imported at the top of another or in one of its functions.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Checked(Loader, MetaPathFinder):
    """Finds and makes the modules of a package. files: texts by module name; places: files in which a text stands
    unchanged, by module name; marks: attributes of modules, by module name."""

    def __init__(
        self, package: str, files: Mapping[str, str], places: Mapping[str, str], marks: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.package, self.files, self.places, self.marks = package, files, places, marks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        head, _, own = name.partition(".")
        inner = any(other.startswith(f"{own}.") for other in self.files)
        if head != self.package or not (own in self.files or inner or not own):
            return None
        return ModuleSpec(name, self, is_package=inner or not own)

    def exec_module(self, module: ModuleType) -> None:
        own = module.__name__.partition(".")[2]
        text = self.files.get(own, "").lstrip("\ufeff")
        module.__file__ = self.places.get(own, f"<{module.__name__}>")
        linecache.cache[module.__file__] = (len(text), None, text.splitlines(keepends=True), module.__file__)
        vars(module).update(self.marks.get(own, {}))
        tree = Inside(self.package, self.files).visit(ast.parse(text, module.__file__))
        exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), vars(module))  # noqa: S102 it is trusted


class Inside(ast.NodeTransformer):
    """Imports of modules whose first name is one of these, as those from a package."""

    def __init__(self, package: str, files: Mapping[str, str]) -> None:
        self.package, self.first = package, {name.partition(".")[0] for name in files}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module and not node.level and node.module.partition(".")[0] in self.first:
            node.module = f"{self.package}.{node.module}"
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:
        made: list[ast.AST] = []
        for alias in node.names:
            above, _, last = f"{self.package}.{alias.name}".rpartition(".")
            first = alias.name.partition(".")[0]
            if first not in self.first:
                made.append(ast.Import([alias]))
            elif alias.asname:
                made.append(ast.ImportFrom(above, [ast.alias(last, alias.asname)], 0))
            else:  # `import a.b` names a, and b is there
                made += [ast.Import([ast.alias(f"{self.package}.{alias.name}")])] if last != first else []
                made.append(ast.ImportFrom(self.package, [ast.alias(first)], 0))
        return [ast.copy_location(each, node) for each in made]
