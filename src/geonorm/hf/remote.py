"""One readable modeling file that needs torch and transformers alone: what a model folder carries for `auto_map`.

It is made from the source of this package: the definitions that the model classes and the schemes of one model reach,
in the order of their modules, comments and docstrings included, imports among modules left out. Where two modules use
one name for different things, one of them takes its module's name in front. The fused kernels stay behind: the
geodesic update is the closed form in plain PyTorch, which is what runs on a CPU here too.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from .. import PUBLIC, __version__, elsewhere
from ..errors import ConfigError
from ..schemes import GeoNorm, Scheme, schemes_in
from ..schemes.parse import name_of
from .names import defined, free_names, is_text

PACKAGE = Path(__file__).parent.parent
ROOTS = ("GeoNormConfig", "GeoNormModel", "GeoNormForCausalLM", "GeoNormForSequenceClassification")
AUTO_MAP = dict(
    zip(("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"), ROOTS, strict=True)
)
FILE = "modeling_geonorm.py"
LAYERS = "errors settings decay elsewhere sphere norms ops schemes theirs residual nn hf".split()
"""Parts of the package from the bottom up: the order in which the file reads, where definitions leave a choice; theirs
are schemes from elsewhere."""
STAND_INS = {
    ("elsewhere", "reading"): '''\
@contextmanager
def reading(text: str) -> Iterator[None]:
    """Text of a folder is text like any other: this file has all the code that there is."""
    yield
''',
    ("elsewhere", "allowed"): '''\
@contextmanager
def allowed(yes: bool = True) -> Iterator[None]:
    """As `reading`."""
    yield
''',
    ("schemes.origin", "stored"): '''\
def stored(text: str, sources: Any, where: str) -> str:
    """The text itself: this file names no code but its own."""
    return text
''',
    ("schemes.origin", "sources_of"): '''\
def sources_of(scheme: Scheme) -> dict[str, Any]:
    """Nothing new: what config.json holds stays there."""
    return {}
''',
    ("schemes.parse", "find"): '''\
def find(name: str) -> type[Scheme]:
    """The class of a name among those of this file. ConfigError with the nearest one when there is none."""
    if name not in REGISTRY:
        raise ConfigError(unknown("scheme", name, REGISTRY))
    return REGISTRY[name]
''',
    ("schemes.parse", "installed"): '''\
def installed() -> dict[str, Any]:
    """None: this file has what it needs."""
    return {}
''',
    ("ops.geodesic", "geodesic_step"): '''\
def geodesic_step(x: Tensor, u: Tensor, angles: AngleMap, h: float | Tensor = 1.0) -> Tensor:
    """The update under any angle map, in plain PyTorch; h scales the angle of the step."""
    return closed_form(x, u, angles) if isinstance(h, float) and h == 1.0 else reference(x, u, angles, h)
''',
    ("ops.geodesic", "geodesic_step_read"): '''\
def geodesic_step_read(
    x: Tensor, u: Tensor, angles: AngleMap, dtype: torch.dtype | None = None, norm: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    """The update, and what the next sub-layer reads of it, through its norm if it has one, in its dtype (default: that
    of x)."""
    out = geodesic_step(x, u, angles)
    return out, (out if norm is None else norm(out)).to(x.dtype if dtype is None else dtype)
''',
}
"""What replaces a definition that would bring kernels along, or code from elsewhere."""

Place = tuple[str, str]  # (module, name of a definition)
Edit = tuple[int, int, int, str]  # line, first column, last column, text


@dataclass
class Definition:
    """A function, class or constant at the top of a module, with its lines and the imports of its module."""

    module: Module
    name: str
    node: ast.stmt
    lines: list[str]
    first: int

    def names(self) -> Iterator[ast.Name]:
        """Names that mean something of the module and not something local."""
        yield from free_names(self.node, [])


@dataclass
class Module:
    """One source file of the package, as the names that it defines and imports."""

    name: str
    definitions: dict[str, Definition] = field(default_factory=dict)
    ours: dict[str, Place] = field(default_factory=dict)
    """Imported from the package: (module, name), the name empty for a module itself."""
    outside: dict[str, str] = field(default_factory=dict)
    """Imported from elsewhere: the statement."""
    theirs: str | None = None
    """The text of a scheme from elsewhere."""

    @cached_property
    def path(self) -> Path:
        folder = PACKAGE.joinpath(*self.name.split("."))
        return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")

    def parse(self) -> Module:
        text = self.path.read_text("utf-8") if self.theirs is None else self.theirs
        lines = text.splitlines()
        body = ast.parse(text).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.read_import(node)
                continue
            name = defined(node)
            if name is None:
                continue
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            last = after.end_lineno if is_text(after) and after else node.end_lineno
            while first > 1 and lines[first - 2].startswith("#"):
                first -= 1
            self.definitions[name] = Definition(self, name, node, lines[first - 1 : last], first)
            if (self.name, name) in STAND_INS:
                source = STAND_INS[self.name, name]
                self.definitions[name] = Definition(self, name, ast.parse(source).body[0], source.splitlines(), 1)
        return self

    def read_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if self.theirs is not None and isinstance(node, ast.ImportFrom) and of_ours(node.module):
            base = str(node.module).partition(".")[2]
            for alias in node.names:
                path = PACKAGE.joinpath(*base.split("."), alias.name)
                if path.is_dir() or path.with_suffix(".py").exists():
                    self.ours[alias.asname or alias.name] = (f"{base}.{alias.name}".lstrip("."), "")
                else:
                    self.ours[alias.asname or alias.name] = (base or PUBLIC.get(alias.name, ""), alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self.outside[alias.asname or alias.name.split(".")[0]] = f"import {described(alias)}"
        elif node.level:
            above = self.name.split(".")
            package = above if self.path.name == "__init__.py" else above[:-1]
            base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                is_module = PACKAGE.joinpath(*inner.split(".")).with_suffix(".py").exists()
                self.ours[alias.asname or alias.name] = (inner, "") if is_module else (base, alias.name)
        elif node.module != "__future__":
            for alias in node.names:
                self.outside[alias.asname or alias.name] = f"from {node.module} import {described(alias)}"


THEIRS: dict[str, Module] = {}


def read(name: str) -> Module:
    return THEIRS[name] if name in THEIRS else read_ours(name)


@cache
def read_ours(name: str) -> Module:
    return Module(name).parse()


def of_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == elsewhere.OURS


def read_theirs(kind: type[Scheme]) -> str:
    """Reads the source of a scheme from elsewhere; returns the name of its module. ConfigError for one that the file
    cannot carry."""
    place, files = elsewhere.place_of(kind), elsewhere.files_of(kind)
    refuse = f"--remote-code cannot carry scheme {place}:{kind.__qualname__}: "
    if len(files) != 1 or "." in kind.__qualname__:
        raise ConfigError(f"{refuse}it must stand at the top of one file that imports none beside it")
    text = next(iter(files.values()))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        inner = isinstance(node, ast.ImportFrom) and of_ours(node.module) and node not in tree.body
        if inner or any(map(of_ours, names)):
            raise ConfigError(f"{refuse}write `from geonorm... import NAME`, at the top, where it imports from geonorm")
    name = f"theirs.{re.sub(r'[^A-Za-z0-9]+', '_', place).strip('_')}"
    THEIRS[name] = Module(name, theirs=text).parse()
    return name


class Bundle:
    """The definitions that some roots reach."""

    def __init__(self, roots: Iterable[Place]) -> None:
        self.found: dict[Place, Definition] = {}
        self.outside: dict[str, str] = {}
        for root in roots:
            self.reach(root)
        self.renamed = self.rename()

    def place(self, module: Module, name: str) -> Place | None:
        """Where a name of a module is defined in the package, through any number of re-exports."""
        if name in module.definitions:
            return module.name, name
        if name in module.ours and module.ours[name][1]:
            home, original = module.ours[name]
            return self.place(read(home), original)
        return None

    def reach(self, place: Place) -> None:
        if place in self.found:
            return
        definition = self.found[place] = read(place[0]).definitions[place[1]]
        for target in self.targets(definition):
            self.reach(target)
        for name in definition.names():
            if name.id in definition.module.outside:
                statement = definition.module.outside[name.id]
                if self.outside.setdefault(name.id, statement) != statement:
                    raise LookupError(f"{place}: {statement!r} is not the {name.id} of {self.outside[name.id]!r}")
            elif not (self.known(definition, name.id) or hasattr(builtins, name.id)):
                raise LookupError(f"{place}: where does {name.id} come from? remote.py reads one name to an assignment")

    def known(self, definition: Definition, name: str) -> bool:
        """Whether a name is the package's: of the module, or imported at its top or inside the definition."""
        inner = (n for n in ast.walk(definition.node) if isinstance(n, ast.ImportFrom))
        local = {alias.asname or alias.name for node in inner for alias in node.names}
        return name in local or name in definition.module.ours or name in definition.module.definitions

    def targets(self, definition: Definition) -> Iterator[Place]:
        for _, _, _, place in self.uses(definition):
            yield place

    def uses(self, definition: Definition) -> Iterator[tuple[int, int, int, Place]]:
        """Every use of another definition: line, columns, which one. `sphere.dot` is a use of dot."""
        module = definition.module
        local = Module(module.name)  # imports inside the definition, which break cycles among modules
        for node in ast.walk(definition.node):
            if isinstance(node, ast.ImportFrom) and node.level:
                local.__dict__["path"] = module.path
                local.read_import(node)
        through = {name: inner for name, (inner, what) in module.ours.items() if not what}
        members = {
            id(node.value): node
            for node in ast.walk(definition.node)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        for name in free_names(definition.node, []):
            if name.id in local.ours:
                place = self.place(read(local.ours[name.id][0]), local.ours[name.id][1])
            elif name.id in through and id(name) in members:
                node = members[id(name)]
                place = self.place(read(through[name.id]), node.attr)
                if place:
                    yield node.lineno, node.col_offset, node.end_col_offset or 0, place
                continue
            else:
                place = self.place(module, name.id)
            if place and place != (module.name, definition.name):
                yield name.lineno, name.col_offset, name.end_col_offset or 0, place

    def rename(self) -> dict[Place, str]:
        """A name for each definition that no other definition, import or builtin has."""
        owners: dict[str, list[Place]] = defaultdict(list)
        for place in self.found:
            owners[place[1]].append(place)
        names = {}
        for name, places in owners.items():
            taken = name in self.outside or hasattr(builtins, name)
            for place in places:
                clash = taken or (len(places) > 1 and place != places[0])
                names[place] = f"{place[0].replace('.', '_')}_{name}" if clash else name
        return names

    def text(self, definition: Definition) -> str:
        edits: list[Edit] = [(*where, self.renamed[place]) for *where, place in self.uses(definition)]  # type: ignore[misc]
        lines = list(definition.lines)
        for line, start, end, text in sorted(edits, reverse=True):
            row = lines[line - definition.first]
            # columns of Python's parser count bytes
            raw = row.encode()
            lines[line - definition.first] = (raw[:start] + text.encode() + raw[end:]).decode()
        drop = {
            line
            for node in ast.walk(definition.node)
            if isinstance(node, ast.ImportFrom) and node.level
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        kept = [line for number, line in enumerate(lines, definition.first) if number not in drop]
        own = self.renamed[definition.module.name, definition.name]
        if own != definition.name:
            at = next(i for i, line in enumerate(kept) if definition.name in line and not line.startswith("@"))
            kept[at] = kept[at].replace(definition.name, own, 1)
        return "\n".join(kept)

    def order(self) -> list[str]:
        """Modules such that what a definition needs when it is made stands before it."""
        done: list[str] = []

        def visit(name: str) -> None:
            if name in done or name in waiting:
                return
            waiting.add(name)
            for definition in self.found.values():
                if definition.module.name == name:
                    for home, _ in self.eager(definition):
                        visit(home)
            done.append(name)

        waiting: set[str] = set()
        for home in sorted({home for home, _ in self.found}, key=lambda home: (LAYERS.index(home.split(".")[0]), home)):
            visit(home)
        return done

    def eager(self, definition: Definition) -> Iterator[Place]:
        """Uses outside the bodies of functions."""
        inside = {
            id(n)
            for f in ast.walk(definition.node)
            if isinstance(f, (ast.FunctionDef, ast.Lambda))
            for statement in (f.body if isinstance(f.body, list) else [f.body])
            for n in ast.walk(statement)
        }
        bodies = {
            (n.lineno, n.col_offset)
            for n in ast.walk(definition.node)
            if id(n) in inside and isinstance(n, (ast.expr, ast.stmt))
        }
        for line, start, _, place in self.uses(definition):
            if (line, start) not in bodies:
                yield place

    def source(self, about: str, names: Mapping[str, Place] | None = None) -> str:
        """The whole text. names: of schemes that do not register themselves."""
        imports = sorted(set(self.outside.values()), key=lambda line: (line.startswith("from"), line))
        parts = [f'"""{about}"""\n\nfrom __future__ import annotations\n\n' + "\n".join(merged(imports))]
        for name in self.order():
            inside = [d for d in read(name).definitions.values() if (name, d.name) in self.found]
            parts.append(f"\n# {name.replace('.', '/')}\n")
            parts.extend(f"\n{self.text(definition)}\n" for definition in inside)
        for name, place in (names or {}).items():
            parts.append(f"\nREGISTRY[{name!r}] = {self.renamed[place]}\n")
        return "\n".join(parts)


def merged(statements: Iterable[str]) -> Iterator[str]:
    """`from a import b` and `from a import c` as one line."""
    groups: dict[str, list[str]] = defaultdict(list)
    for statement in statements:
        head, _, name = statement.rpartition(" import ")
        groups[head].append(name if head else statement)
    for head, names in groups.items():
        yield from names if not head else [f"{head} import {', '.join(names)}"]


def described(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def modeling_source(scheme: Scheme) -> str:
    """The text of the modeling file for models under a scheme. ConfigError for a scheme from elsewhere that it cannot
    carry."""
    roots: list[Place] = []
    theirs: dict[str, Place] = {}
    kinds: list[type[Scheme]] = [GeoNorm, *schemes_in(scheme)]
    for kind in dict.fromkeys(kinds):  # a configuration without settings is geonorm
        if of_ours(kind.__module__):
            roots.append((kind.__module__.partition(".")[2], kind.__name__))
        else:
            theirs[name_of(kind)] = (read_theirs(kind), kind.__name__)
    roots += [("hf.config" if name == "GeoNormConfig" else "hf.modeling", name) for name in ROOTS]
    about = textwrap.dedent(f"""\
        Models under the residual scheme {scheme}, in one file that needs torch and transformers alone.

        Made by geonorm {__version__} from its source; its licence is Apache-2.0. With the package installed,
        `import geonorm.hf` runs the same model with fused kernels on a GPU.
        """)
    try:
        return Bundle([*roots, *theirs.values()]).source(about, theirs)
    except (LookupError, SyntaxError) as error:
        if not theirs:
            raise
        raise ConfigError(f"--remote-code cannot carry scheme {', '.join(theirs)}: {error}") from None
