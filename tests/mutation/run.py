"""Does a test fail when the code is wrong? Changes one place of the code at a time and runs the tests of its package.

    python tests/mutation/run.py [--sample 150] [--code FOLDER] [--out FILE] [--replay FILE]

A mutation turns a sign, a comparison, a number, min and max, or leaves a statement out. It is planted in a copy of the
code; a test that fails has found it. Each result is a line of JSON in --out, and mutations that stand there are passed
over, so that an interrupted run goes on. --replay takes the mutations of such a file, as far as their lines still
stand, on other code. The share that was found is compared with score.json beside this file: it may only rise.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TESTS = {
    "sphere.py": "tests/test_sphere.py tests/ops/test_geodesic.py tests/ops",
    "norms.py": "tests/test_norms.py tests/ops",
    "residual.py": "tests/test_residual.py tests/schemes",
    "ops": "tests/ops",
    "schemes": "tests/schemes tests/test_residual.py tests/parity/test_recorded.py",
    "lab/statistics/comparison.py": "tests/lab/statistics/test_comparison.py tests/lab/statistics",
    "lab/statistics/moderated.py": "tests/lab/statistics/test_moderated.py tests/lab/statistics",
    "lab/statistics/speedup.py": "tests/lab/statistics/test_speedup.py tests/lab/statistics",
    "lab/statistics/spikes.py": "tests/lab/statistics/test_spikes.py tests/lab/statistics",
}
"""What is changed, below src/geonorm, and the tests that should notice, the likeliest first."""

LIMIT = 600
"""Seconds for the tests of one mutation. A mutation that never ends is found."""
PRELOADED = """pytest numpy scipy.special torch torch.testing torch._dynamo tokenizers safetensors.torch yaml
transformers transformers.models.llama.modeling_llama""".split()
"""Imported once, before a process is forked for each mutation: nothing of the code that is changed."""
PYTEST = "-q -x -n 0 -o timeout=0 -p no:cacheprovider --tb=short -W ignore::pytest.PytestAssertRewriteWarning".split()

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
SWAPPED = [pair.split() for pair in ("min max", "minimum maximum", "sin cos", "add sub", "all any", "amax amin")]
NAMES = dict(SWAPPED) | {new: old for old, new in SWAPPED}


@dataclass(frozen=True)
class Mutation:
    file: str
    line: str
    column: int
    old: str
    new: str
    """In the first of these lines the text `old` at `column` becomes `new`."""


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one error in it; None for a node that has no place for one."""
    copy: Any = deepcopy(node)
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OPERATORS:
        copy.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        copy.ops[0] = OPERATORS[type(node.ops[0])]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        copy = copy.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        copy.value = node.value + 1
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        copy.value = not node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
        copy.func.attr = NAMES[node.func.attr]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        copy.func.id = NAMES[node.func.id]
    elif isinstance(node, (ast.AugAssign, ast.Expr)) and not isinstance(getattr(node, "value", None), ast.Constant):
        copy = ast.Pass()
    else:
        return None
    return copy


def mutations(file: Path, root: Path) -> Iterator[Mutation]:
    """Every mutation of one file that lies within a line."""
    text = file.read_text("utf-8")
    lines = text.splitlines()
    tree, annotations = ast.parse(text), set[int]()
    for node in ast.walk(tree):
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            annotations |= {id(inner) for inner in ast.walk(hint)} if isinstance(hint, ast.AST) else set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.expr, ast.stmt)) or node.lineno != node.end_lineno or id(node) in annotations:
            continue
        line = lines[node.lineno - 1]
        if lines.count(line) > 1 or not line.isascii():
            continue
        if (new := changed(node)) is not None:
            segment = line[node.col_offset : node.end_col_offset]
            words = f"({ast.unparse(new)})" if isinstance(node, ast.expr) else ast.unparse(new)
            yield Mutation(str(file.relative_to(root)), line, node.col_offset, segment, words)


def sample(code: Path, count: int) -> list[Mutation]:
    """Mutations drawn from all that the files of TESTS have."""
    paths = [code / "src/geonorm" / name for name in TESTS]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.glob("*.py")))]
    every = [mutation for file in files for mutation in mutations(file, code)]
    return random.Random(0).sample(every, min(count, len(every)))


def copy_code(code: Path, to: Path) -> Path:
    """What git knows of a working tree, in another folder."""
    names = subprocess.check_output(["git", "-C", str(code), "ls-files", "-z"], text=True)
    for name in filter(None, names.split("\0")):
        if (code / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(code / name, to / name)
    return to


@contextmanager
def plant(tree: Path, mutation: Mutation) -> Iterator[None]:
    """The mutation in the tree. ValueError if its line does not stand there exactly once."""
    path = tree / mutation.file
    text = path.read_text("utf-8")
    lines = text.splitlines()
    if lines.count(mutation.line) != 1:
        raise ValueError(f"{mutation.file} does not have once: {mutation.line.strip()}")
    before, after = mutation.line[: mutation.column], mutation.line[mutation.column + len(mutation.old) :]
    lines[lines.index(mutation.line)] = before + mutation.new + after
    try:
        write(path, "\n".join(lines) + "\n")
        yield
    finally:
        write(path, text)


def write(path: Path, text: str) -> None:
    """Python compares times in seconds, so that the compiled file of a moment ago would pass for this one."""
    path.write_text(text, "utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


class FirstFailure:
    """A plugin of pytest that keeps the first test that fails."""

    test = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.test = self.test or (report.nodeid if report.failed else "")

    pytest_collectreport = pytest_runtest_logreport


def run_tests(tree: Path, tests: list[str], log: Path) -> tuple[int, str]:
    """pytest in a process of its own: its exit status, and the first test that failed."""
    read, written = os.pipe()
    child = os.fork()
    if not child:
        status = 70
        try:
            os.setsid()
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            os.dup2(1, 2)
            os.chdir(tree)
            sys.path.insert(0, str(tree / "src"))
            os.environ |= {"PYTHONPATH": str(tree / "src"), "GEONORM_CACHE": str(tree.parent / "cache")}
            first = FirstFailure()
            status = int(import_module("pytest").main([*PYTEST, *tests], plugins=[first]))
            os.write(written, first.test.encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(written)
    end = time.monotonic() + LIMIT
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.killpg(child, 9)
            os.waitpid(child, 0)
            return 124, "out of time"
        time.sleep(0.1)
    with os.fdopen(read, "rb") as test:
        return os.waitstatus_to_exitcode(ended[1]), test.read().decode()


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=150, help="how many mutations")
    parser.add_argument("--code", type=Path, default=HERE.parent.parent, help="the checkout that is changed")
    parser.add_argument("--out", type=Path, default=Path("build/mutations.jsonl"), help="results, a line each")
    parser.add_argument("--replay", type=Path, help="take the mutations of this file of results")
    options = parser.parse_args()
    chosen = sample(options.code, options.sample)
    if options.replay:
        chosen = [Mutation(**{f.name: row[f.name] for f in fields(Mutation)}) for row in rows_of(options.replay)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = rows_of(options.out)
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_code(options.code, Path(folder) / "code")
        done = [{name: row[name] for name in asdict(chosen[0])} for row in rows]
        for mutation in (each for each in chosen if asdict(each) not in done):
            began = time.monotonic()
            try:
                name = mutation.file.removeprefix("src/geonorm/")
                tests = next(tests for part, tests in TESTS.items() if name == part or name.startswith(f"{part}/"))
                with plant(tree, mutation):
                    status, test = run_tests(tree, tests.split(), options.out.with_suffix(".log").absolute())
            except (ValueError, OSError) as error:
                print(f"passed over: {error}")
                continue
            seconds = round(time.monotonic() - began, 1)
            rows.append({**asdict(mutation), "found": status != 0, "test": test, "seconds": seconds})
            with options.out.open("a") as file:
                print(json.dumps(rows[-1]), file=file)
            word = test if status else "NOT FOUND"
            print(f"{seconds:6.1f} s  {mutation.file}: {mutation.old} -> {mutation.new}: {word}", flush=True)
    share = sum(row["found"] for row in rows) / max(len(rows), 1)
    before = json.loads((HERE / "score.json").read_text("utf-8"))["found"]
    print(f"{share:.3f} of {len(rows)} mutations were found; on record: {before:.3f}")
    return int(share < before)


if __name__ == "__main__":
    sys.exit(main())
