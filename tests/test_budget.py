"""The size of the project as a test: each number has a ceiling, and a ceiling may only be lowered.

A change that needs room removes something first. Docstrings and comments cost nothing: statements are counted without
them. A ceiling is met by removing and joining, never by denser lines or moved code. The register has a ceiling apart.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import geonorm
from geonorm.cli.main import COMMANDS
from geonorm.settings import Settings, options

SOURCE = Path(geonorm.__file__).parent
ROOT = Path(__file__).parents[1]
REGISTER = {SOURCE / name for name in ("hf/rules.py", "hf/tiny.py", "report/register.py")}
EMPTY_NAMES = set("found told said kept shown own made given asked".split())
"""Names that say nothing of what the thing is."""

CEILINGS = {
    "statements of src without the register": 16_835,
    "statements of the register": 254,
    "statements per 1,000 lines of src": 539,
    "lines of tests": 24_409,
    "lines of experiments, benchmarks, examples, docs, evidence": 4_719,
    "test cases of one run": 2_200,
    "options of train besides model.*": 50,
    "options of compare besides model.*": 51,
    "options in the short help of train": 10,
    "public names": 33,
    "class names with two meanings": 0,
    "function names in several files": 8,
    "empty names": 3,
}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(SOURCE.rglob("*.py")):
        yield file, ast.parse(file.read_text("utf-8"))


def lines(*folders: Path) -> int:
    """Lines by hand: the site, and its build, copy the tutorials."""
    files = [f for at in folders for f in at.rglob("*.py") if not {"generated", "build"} & {*f.relative_to(at).parts}]
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def count_statements(tree: ast.AST) -> int:
    """Statements without docstrings, those inside functions and classes included."""
    return sum(isinstance(node, ast.stmt) and not is_docstring(node) for node in ast.walk(tree))


def count_repeated(kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> int:
    """Names that several files define at their top level."""
    files = defaultdict(set)
    for file, tree in trees():
        for node in tree.body:
            if isinstance(node, kind):
                files[node.name].add(file)
    return sum(len(where) > 1 for where in files.values())


def assigned_names(tree: ast.AST) -> Iterator[str]:
    """Every name that the code gives: variables, parameters, attributes, functions, classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name


def count_options(kind: type[Settings]) -> int:
    return sum(not name.startswith("model.") for name in options(kind))


def measure() -> dict[str, int]:
    statements = sum(count_statements(tree) for _, tree in trees())
    register = sum(count_statements(tree) for file, tree in trees() if file in REGISTER)
    other = [ROOT / name for name in ("experiments", "benchmarks", "examples", "docs", "evidence")]
    return {
        "statements of src without the register": statements - register,
        "statements of the register": register,
        "statements per 1,000 lines of src": round(1000 * statements / lines(SOURCE)),
        "lines of tests": lines(ROOT / "tests"),
        "lines of experiments, benchmarks, examples, docs, evidence": lines(*other),
        "options of train besides model.*": count_options(COMMANDS["train"]),
        "options of compare besides model.*": count_options(COMMANDS["compare"]),
        "options in the short help of train": len(COMMANDS["train"].common),
        "public names": len({*geonorm.PUBLIC, *geonorm.MODULES}),
        "class names with two meanings": count_repeated(ast.ClassDef),
        "function names in several files": count_repeated(ast.FunctionDef),
        "empty names": sum(name in EMPTY_NAMES for _, tree in trees() for name in assigned_names(tree)),
    }


def test_nothing_grows() -> None:
    sizes = measure()
    over = [f"{name}: {size:,} over {CEILINGS[name]:,}" for name, size in sizes.items() if size > CEILINGS[name]]
    assert not over, "; ".join(over)


def test_the_number_of_cases_does_not_grow(request: pytest.FixtureRequest) -> None:
    assert len(request.session.items) <= CEILINGS["test cases of one run"]


def test_the_counters_count() -> None:
    code = '"""Text."""\n\ndef f(found):\n    """Text."""\n    told: int = 1\n    self.said = told\n    return 2\n'
    tree = ast.parse(code)
    assert count_statements(tree) == 4
    assert sorted(set(assigned_names(tree)) & EMPTY_NAMES) == ["found", "said", "told"]


if __name__ == "__main__":
    for name, size in measure().items():
        print(f"{size:8,}  of {CEILINGS[name]:8,}  {name}")
