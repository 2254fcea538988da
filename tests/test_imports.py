"""Which way the parts depend on each other (design page, section 4), read from the source of every file."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import geonorm

from .rows import each

SOURCE = Path(geonorm.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

GROUND = {"errors", "lazy", "output", "parsing", "results", "devices", "decay", "settings", "progress", "modes"}
MATHS = GROUND | {"sphere", "norms"}
RULES = MATHS | {"elsewhere", "ops", "schemes"}
MODELS = RULES | {"residual", "models"}
ALLOWED = {
    "errors": set(),
    "lazy": set(),
    "parsing": {"errors"},
    "decay": {"settings"},
    "progress": set(),
    "modes": set(),
    "settings": {"errors"},
    "output": {"errors"},
    "results": {"errors"},
    "devices": {"errors"},
    "elsewhere": {"errors"},
    "sphere": {"errors"},
    "norms": {"errors"},
    "ops": MATHS,
    "schemes": MATHS | {"elsewhere", "ops"},
    "residual": RULES,
    "equality": RULES | {"residual"},
    "models": RULES | {"residual"},
    "measure": RULES | {"residual"},
    "dynamics": MATHS | {"schemes", "models.attention", "models.config", "models.mlp", "models.init"},  # no whole model
    "hf": MODELS | {"measure", ""},  # "" is the package itself: its version
    "lab": MODELS | {"measure", "hf", "dynamics", ""},
    "report": {"errors", "parsing", "decay", "settings", "lab.load", "lab.runs.folder", "lab.runs.records"}
    | {"lab.runs.ladder_records", "lab.statistics"},
    "bench": MODELS | {"hf", "lab", "report"},
    "__main__": {"cli", "output"},
    "": set(),  # geonorm/__init__.py loads by name, on use
}
FREE_OF_TORCH = """
    errors lazy output parsing progress results decay settings elsewhere measure.anatomy cli.arguments
    cli.main dynamics.config measure.config models.config lab.config lab.compare.config lab.compare.ladder_config
    lab.load lab.runs.folder lab.runs.identity lab.runs.records lab.runs.ladder_records lab.statistics.spikes
    lab.statistics.comparison lab.study_folder
    lab.transfer_config bench.config report report.config report.comparison report.ladder report.probe report.register
    report.simulation report.transfer
""".split()
EXTRAS = """
    transformers datasets vl_convert tensorboard rich tokenizers yaml scipy ray submitit lm_eval triton
""".split()
PUBLIC = """
    parse names Scheme Placement Site Residual geodesic_update Decoder DecoderConfig preset parameter_groups initialize
    constrain same compare ladder simulate probe load GeonormError anatomy dynamics errors hf lab measure models norms
    ops report residual schemes sphere
""".split()


def name_of(file: Path) -> str:
    """geonorm.models.config is "models.config"; a package has its folder's name, geonorm itself the empty string."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file) for file in FILES}


def imports(source: str, name: str, package: bool) -> Iterator[str]:
    """Every module of geonorm that the source of a module names, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = f"geonorm.{name}".rstrip(".").split(".")
                above = above[: len(above) - node.level + package]
                base = ".".join([*above, *([base] if base else [])])
            # `from .. import sphere` names a module, `from ..errors import ConfigError` something inside one
            found = [f"{base}.{a.name}" if f"{base}.{a.name}"[8:] in MODULES else base for a in node.names]
        for target in found:
            if target.split(".")[0] == "geonorm":
                yield target[8:]


def edges() -> Iterator[tuple[str, str]]:
    for file in FILES:
        for target in imports(file.read_text("utf-8"), name_of(file), file.name == "__init__.py"):
            yield name_of(file), target


def part(module: str) -> str:
    return module.split(".")[0]


def permitted(source: str, target: str) -> bool:
    if part(source) == "cli":
        return part(target) != "__main__"
    allowed = ALLOWED[part(source)]
    room = ".".join(target.split(".")[:2])
    return part(source) == part(target) or bool({part(target), room, target} & allowed)


def test_import_direction() -> None:
    found = list(edges())
    assert len(found) > 100
    wrong = [
        f"{source or 'geonorm'} imports {target or 'geonorm'}"
        for source, target in found
        if not permitted(source, target)
    ]
    assert not wrong


LAB_ORDER = """
    config schedule data distributed runs statistics load resolve footprint plan storage checkpoint open train evaluate
    export probe_inputs study_folder transfer_config transfer probe compare
""".split()
"""The sub-packages and modules of `lab`, from the ground up: each imports what stands before it."""


def test_the_laboratory_imports_downwards() -> None:
    order = {name: place for place, name in enumerate(LAB_ORDER)}
    inside = {(s.split(".")[1], t.split(".")[1]) for s, t in edges() if s[:4] == t[:4] == "lab."}
    assert {name for pair in inside for name in pair} <= set(order)
    assert not {(source, target) for source, target in inside if order[source] < order[target]}


def test_modules_import_each_other_one_way() -> None:
    """No circle, not even one that an import inside a function breaks."""
    graph: dict[str, set[str]] = {}
    for source, target in edges():
        if target and source != target:
            graph.setdefault(source, set()).add(target)
    assert len(list(TopologicalSorter(graph).static_order())) > 100  # CycleError names the circle


@each(
    "source, name, package, expected",
    [
        ("from .. import sphere", "ops.angle", False, ["sphere"]),
        ("from ...models.decoder import Decoder", "lab.train.loop", False, ["models.decoder"]),
        ("from . import held_out, optim", "lab.train.loop", False, ["lab.train.held_out", "lab.train.optim"]),
        ("def f():\n    from geonorm.cli.main import main", "lab.data", True, ["cli.main"]),
        ("import geonorm.lab.train.loop as t, torch", "sphere", False, ["lab.train.loop"]),
        ("from ... import __version__", "lab.runs.environment", False, [""]),
    ],
)
def test_the_reader_of_imports(source: str, name: str, package: bool, expected: list[str]) -> None:
    assert list(imports(source, name, package)) == expected


REFUSED = "sphere norms, models.decoder lab.config, dynamics.rates models.decoder, lab.train.loop cli.arguments"


@each("source, target", [pair.split() for pair in REFUSED.split(", ")])
def test_the_rules_refuse(source: str, target: str) -> None:
    assert not permitted(source, target)


def outside(source: str) -> set[str]:
    """Top-level packages that a module imports when it is loaded, functions left out."""
    tree = ast.parse(source)
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def test_core_files_need_torch_numpy_and_safetensors_only() -> None:
    core = {"torch", "numpy", "safetensors", "geonorm"} | set(sys.stdlib_module_names)
    for file in FILES:
        if part(name_of(file)) not in ("lab", "report", "hf"):
            # files of kernels are loaded when one is launched
            kernels = {"triton"} if name_of(file).startswith("ops.kernels") else set()
            solver = {"scipy"} if name_of(file) == "dynamics.closed" else set()  # geonorm.simulate comes with [train]
            assert outside(file.read_text("utf-8")) <= core | kernels | solver, file


def loaded_by(*statements: str) -> list[set[str]]:
    """What is in sys.modules after each statement, in a fresh interpreter."""
    script = "import sys, json\nfound = []\n"
    script += "".join(f"{s}\nfound.append([m.split('.')[0] for m in sys.modules])\n" for s in statements)
    script += "print(json.dumps(found))"
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return [set(modules) for modules in json.loads(out.stdout.splitlines()[-1])]


def test_importing_geonorm_is_free_and_names_load_on_use() -> None:
    light = "; ".join(f"import geonorm.{m}" for m in FREE_OF_TORCH)
    step = "import torch; geonorm.geodesic_update(torch.ones(2, 4), torch.ones(2, 4))"
    package, helpers, used, stepped = loaded_by("import geonorm; dir(geonorm)", light, "assert geonorm.names()", step)
    assert "torch" not in package | helpers
    assert "torch" in used
    assert not set(EXTRAS) & (package | used - helpers)
    assert not {"numpy", "geonorm.schemes"} & package and "triton" not in stepped


def test_public_names_are_frozen() -> None:
    assert set(PUBLIC) == {*geonorm.PUBLIC, *geonorm.MODULES} == {*geonorm.__all__, *geonorm.EXTRAS}
    assert set(PUBLIC) <= set(dir(geonorm))
    for name in PUBLIC:
        if name == "hf":
            pytest.importorskip("transformers")
        assert getattr(geonorm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        geonorm.nothing  # noqa: B018


def test_without_extras_everything_else_is_there_and_they_are_named() -> None:
    """`from geonorm import *` asks for nothing that `pip install geonorm` does not bring."""
    script = """
import sys
sys.modules |= dict.fromkeys("transformers tokenizers tyro yaml scipy vl_convert zstandard".split())
from geonorm import *
import geonorm
assert not {*geonorm.EXTRAS} & {*dir(geonorm)}
for name in geonorm.EXTRAS:
    try:
        getattr(geonorm, name)
    except GeonormError as error:
        print(error)
"""
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    told = out.stdout.splitlines()
    assert [line.split(" needs ")[0] for line in told] == [f"geonorm.{name}" for name in geonorm.EXTRAS]
    for line, extra in zip(told, geonorm.EXTRAS.values(), strict=True):
        assert line.endswith(f": pip install 'geonorm[{extra}]'")
    start = "from geonorm.cli.main import main; sys.exit(main(['compare']))"
    for absent, says in {"scipy": "this needs scipy", "fcntl": "runs and studies need Linux or macOS"}.items():
        bare = f"import sys; sys.modules['{absent}'] = None; {start}"
        ended = subprocess.run([sys.executable, "-c", bare], env=environment, capture_output=True, text=True)
        assert ended.returncode == 2 and ended.stderr.startswith(f"geonorm compare: {says}"), ended.stderr


@pytest.mark.parametrize("package", [geonorm, geonorm.models, geonorm.dynamics])
def test_the_stub_has_every_public_name_and_no_other(package: ModuleType) -> None:
    """What mypy makes of it: users_file.py."""
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    places = {alias.asname: f".{node.module or alias.name}" for node in imports for alias in node.names}
    assert set(places) == {*package.PUBLIC, *(geonorm.MODULES if package is geonorm else ())}
    for name in {*package.PUBLIC} - {*geonorm.EXTRAS}:
        assert getattr(import_module(places[name], package.__name__), name) is getattr(package, name), name
