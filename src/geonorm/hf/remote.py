"""One readable modeling file that needs torch and transformers alone: what a model folder carries for `auto_map`.

It is made from the source of this package: the definitions that the model classes and the schemes of one model reach,
in an order of their modules, docstrings included, imports among modules left out. No name may be that of
two things. The fused kernels stay behind: the geodesic update is the closed form in plain PyTorch, which is what runs
on a CPU here too (single_file.py).
"""

import ast
import builtins
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dis import get_instructions
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from .. import PUBLIC, __version__, elsewhere
from ..errors import ConfigError
from ..models.config import DecoderConfig
from ..schemes import GeoNorm, Scheme, schemes_in
from ..schemes.registry import name_of


class Use(NamedTuple):
    """A name that is bound nowhere around it."""

    name: str
    attribute: str | None
    """What is asked of it: dot in sphere.dot."""


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def free_names(code: CodeType) -> Iterator[Use]:
    """As the compiler sees them, in functions inside too. The code is compiled without annotations as text."""
    steps = list(get_instructions(code))
    bound = {step.argval for step in steps if step.opname == "STORE_NAME"} if code.co_name != "<module>" else set()
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval not in bound:
            is_attribute = after is not None and after.opname in ("LOAD_ATTR", "LOAD_METHOD")
            yield Use(step.argval, after.argval if after is not None and is_attribute else None)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from free_names(inner)


PACKAGE = Path(__file__).parent.parent
KINDS = {"Config": "hf.config", "Model": "hf.modeling", "ForCausalLM": "hf.modeling", "ForMaskedLM": "hf.modeling"}
"""What of ours an Auto class may ask for, and where it is."""
FILE = "modeling_geonorm.py"
STAND_IN = "hf.single_file"
STAND_INS = {
    "elsewhere": ("mark_stored", "allow_within"),
    "schemes.origin": ("stored", "sources_of"),
    "schemes.grammar": ("find",),
    "schemes.registry": ("installed",),
    "ops.geodesic": ("geodesic_step",),
    "ops.sums": ("fused_write",),
}
"""What hf.single_file defines in the place of definitions that would bring kernels along, or code from elsewhere."""
LEFT_OUT = "# an import among modules"

Place = tuple[str, str]  # (module, name of a definition)


@dataclass
class Definition:
    """A function, class or constant at the top of a module: its text, and the names that it takes from outside."""

    text: str
    uses: list[Use]


class Module:
    """One source file, as the names that it defines and imports. text: of a scheme from elsewhere."""

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name = name
        self.definitions: dict[str, Definition] = {}
        self.ours: dict[str, Place] = {}
        """Imported from the package: (module, name), the name empty for a module itself."""
        self.outside: dict[str, tuple[str, str]] = {}
        """Imported from elsewhere: (module or nothing, what is imported from it)."""
        self.path = PACKAGE.joinpath(*name.split("."))
        self.path = self.path / "__init__.py" if self.path.is_dir() else self.path.with_suffix(".py")
        text = self.path.read_text("utf-8") if text is None else text
        tree, lines = ast.parse(text), text.split("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.level or of_ours(node.module)):
                self.take(node)
                lines[node.lineno - 1 : node.end_lineno] = [LEFT_OUT] * ((node.end_lineno or 0) - node.lineno + 1)
            elif isinstance(node, (ast.Import, ast.ImportFrom)) and node in tree.body:
                for alias in node.names:
                    home = str(node.module) if isinstance(node, ast.ImportFrom) else ""
                    name = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                    self.outside[alias.asname or alias.name.split(".")[0]] = home, name
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(node, (ast.Import, ast.ImportFrom)) or not (names := elsewhere.names_bound(node)):
                continue
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            last = after.end_lineno if is_text(after) and after else node.end_lineno
            source = "\n".join(line for line in lines[first - 1 : last] if line != LEFT_OUT)
            code = compile(source, str(self.path), "exec", dont_inherit=True)
            self.definitions[names[0]] = Definition(source, list(free_names(code)))

    def take(self, node: ast.ImportFrom) -> None:
        """An import from the package."""
        base = str(node.module).partition(".")[2]
        if node.level:
            above = self.name.split(".")[: None if self.path.name == "__init__.py" else -1]
            base = ".".join([*above[: len(above) - node.level + 1], *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}".lstrip(".")
            path = PACKAGE.joinpath(*inner.split("."))
            is_module = path.is_dir() or path.with_suffix(".py").exists()
            home = (inner, "") if is_module else (base or PUBLIC.get(alias.name, ""), alias.name)
            self.ours[alias.asname or alias.name] = home


read_ours = cache(Module)


def of_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == elsewhere.OURS


def read_theirs(kind: type[Scheme]) -> Module:
    """The source of a scheme from elsewhere. ConfigError for one that the file cannot carry."""
    place, text = elsewhere.place_of(kind), elsewhere.source_of(kind)
    if text is None or "." in kind.__qualname__:
        name = f"{place}:{kind.__qualname__}"
        raise ConfigError(f"--remote-code cannot carry scheme {name}: it must stand at the top of one file")
    for node in ast.parse(text).body:
        bound = [] if isinstance(node, (ast.Import, ast.ImportFrom)) else elsewhere.names_bound(node)
        if len(bound) > 1 or (elsewhere.names_changed(node) and not isinstance(node, ast.Expr)):
            line = text.split("\n")[node.lineno - 1].strip()
            raise ConfigError(f"--remote-code cannot carry {line!r} of {place}: define each name once, by itself")
    return Module(f"theirs.{re.sub(r'[^A-Za-z0-9]+', '_', place).strip('_')}", text)


class Bundle:
    """The definitions that some roots reach, and the names by which they know one another."""

    def __init__(self, roots: list[Place], theirs: Mapping[str, Module]) -> None:
        self.theirs = theirs
        self.reached: dict[Place, Definition] = {}
        self.outside: dict[str, tuple[str, str]] = {"SimpleNamespace": ("types", "SimpleNamespace")}
        self.names: dict[str, Place] = {}
        """Every name of the file and what it is of ours, by another name too."""
        self.modules: dict[str, set[str]] = defaultdict(set)
        """Modules of ours that are used by name, with what is asked of each."""
        for root in roots:
            self.reach(root, root[1])
        if clash := {*self.names, *self.modules} & {*self.outside, *dir(builtins)}:
            raise LookupError(f"{min(clash)} is the name of two things")

    def read(self, name: str) -> Module:
        return self.theirs[name] if name in self.theirs else read_ours(name)

    def place(self, home: str, name: str) -> Place | None:
        """Where a name of a module is defined in the package, through any number of re-exports."""
        module = self.read(home)
        if name in module.definitions:
            return STAND_IN if name in STAND_INS.get(home, ()) else home, name
        inner, original = module.ours.get(name, ("", ""))
        return self.place(inner, original) if original else None

    def uses(self, home: str, definition: Definition) -> Iterator[tuple[Use, Place]]:
        """Every use of a definition of the package. `sphere.dot` is a use of dot."""
        ours = self.read(home).ours
        for use in definition.uses:
            is_module = use.name in ours and not ours[use.name][1]
            place = self.place(ours[use.name][0], use.attribute or "") if is_module else self.place(home, use.name)
            if place:
                yield use, place
                if is_module:
                    self.modules[use.name].add(place[1])

    def reach(self, place: Place, name: str) -> None:
        """Take up a definition, which the file knows by a name, and what it uses."""
        if self.names.setdefault(name, place) != place:
            raise LookupError(f"{name} is the name of two things")
        self.names.setdefault(place[1], place)
        if place in self.reached:
            return
        home = self.read(place[0])
        definition = self.reached[place] = home.definitions[place[1]]
        for use, target in self.uses(home.name, definition):
            self.reach(target, target[1] if use.name in self.modules else use.name)
        for name in {use.name for use in definition.uses}:
            if name in home.outside:
                if of_ours(home.outside[name][1].split()[0]):
                    raise LookupError(f"write `from geonorm... import NAME`, not {name}")
                if self.outside.setdefault(name, home.outside[name]) != home.outside[name]:
                    raise LookupError(f"{place}: {home.outside[name]} is not the {name} of {self.outside[name]}")

    def order(self) -> list[str]:
        """Modules from the bottom up: each after those that it takes names from. Stand-ins are called by functions
        alone, so that they may come later."""
        graph: dict[str, set[str]] = {home: set() for home, _ in sorted(self.reached)}
        for (home, _), definition in self.reached.items():
            graph[home] |= {place[0] for _, place in self.uses(home, definition)} - {home, STAND_IN}
        return list(TopologicalSorter(graph).static_order())

    def source(self, about: str, names: Mapping[str, Place]) -> str:
        """The whole text. names: of schemes that do not register themselves."""
        imports: dict[str, list[str]] = defaultdict(list)
        for home, name in sorted(set(self.outside.values())):
            imports[f"from {home} import " if home else f"import {name}"].append(name if home else "")
        parts = [f'"""{about}"""\n\nfrom __future__ import annotations\n']
        parts += [head + ", ".join(filter(None, listed)) for head, listed in imports.items()]
        for home in self.order():
            parts.append(f"\n# {home.replace('.', '/') or 'geonorm'}\n")
            for name in [name for name in self.read(home).definitions if (home, name) in self.reached]:
                aliases = [other for other, place in self.names.items() if place == (home, name) and other != name]
                parts.append(
                    "\n".join(["", self.reached[home, name].text, *(f"{each} = {name}" for each in aliases), ""])
                )
        for module, asked_for in self.modules.items():
            fields = ", ".join(f"{name}={name}" for name in sorted(asked_for))
            parts.append(f"\n{module} = SimpleNamespace({fields})\n")
        parts.extend(f"\nREGISTRY[{name!r}] = {place[1]}\n" for name, place in names.items())
        return "\n".join(parts)


def auto_map(shape: DecoderConfig) -> dict[str, str]:
    """The `auto_map` of config.json: which class of the file an Auto class takes, of the language models the one that
    there is."""
    other = "ForMaskedLM" if shape.causal else "ForCausalLM"
    named = {kind if kind in ("Config", "Model") else f"Model{kind}": kind for kind in KINDS if kind != other}
    return {f"Auto{auto}": f"{FILE.removesuffix('.py')}.GeoNorm{kind}" for auto, kind in named.items()}


def modeling_source(scheme: Scheme) -> str:
    """The text of the modeling file for models under a scheme. ConfigError for a scheme from elsewhere that it cannot
    carry."""
    roots: list[Place] = []
    theirs: dict[str, Module] = {}
    names: dict[str, Place] = {}
    kinds: list[type[Scheme]] = [GeoNorm, *schemes_in(scheme)]
    for kind in dict.fromkeys(kinds):  # a configuration without settings is geonorm
        if of_ours(kind.__module__):
            roots.append((kind.__module__.partition(".")[2], kind.__name__))
        else:
            module = read_theirs(kind)
            theirs[module.name] = module
            names[name_of(kind)] = module.name, kind.__name__
    roots += [(home, f"GeoNorm{kind}") for kind, home in KINDS.items()]
    about = textwrap.dedent(f"""\
        Models under the residual scheme {scheme}, in one file that needs torch and transformers alone.

        Made by geonorm {__version__} from its source; its licence is Apache-2.0. With the package installed,
        `import geonorm.hf` runs the same model with fused kernels on a GPU.
        """)
    try:
        return Bundle([*roots, *names.values()], theirs).source(about, names)
    except (LookupError, SyntaxError, OSError) as error:
        if not theirs:
            raise
        raise ConfigError(f"--remote-code cannot carry scheme {', '.join(names)}: {error}") from None
