"""Plants each error of errors.toml in a copy of the code, one at a time, and says which test finds it.

    python tests/planted/run.py [--narrow] [--out FILE] [ID ...]

Named tests run first, then, where all of them pass, the folders that they lie in. Results are appended to --out as
lines of JSON, and errors that stand there already are passed over: remove it to begin anew. At the end the tests that
found something run once on the code as it is: one that fails there has found nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

LIMIT = 900
"""Seconds for the tests of one error."""
HEAVY = """pytest numpy scipy.special torch torch.testing torch._dynamo torch.distributed.tensor
torch.distributed.checkpoint.state_dict_saver tokenizers safetensors.torch yaml rich.live transformers
transformers.models.auto.modeling_auto transformers.models.llama.modeling_llama""".split()
"""What is imported once, before a process is forked for each error: nothing of the code that is changed."""

WORDS = "-q -n 0 -o timeout=0 -p no:cacheprovider --tb=short -W ignore::pytest.PytestAssertRewriteWarning".split()

Error = dict[str, Any]


def read_errors(path: Path) -> dict[str, Error]:
    """Errors by id: error (what it means, in a line), file, old, new, tests."""
    found: dict[str, Error] = tomllib.loads(path.read_text("utf-8"))
    return found


def copy_code(code: Path, to: Path) -> Path:
    """What git knows of a working tree, in another folder."""
    names = subprocess.check_output(["git", "-C", str(code), "ls-files", "-z"], text=True)
    for name in filter(None, names.split("\0")):
        if (code / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(code / name, to / name)
    return to


@contextmanager
def plant(tree: Path, error: Error) -> Iterator[None]:
    """The error in the tree. ValueError if its text does not stand there exactly once."""
    path = tree / error["file"]
    text = path.read_text("utf-8")
    if text.count(error["old"]) != 1:
        raise ValueError(f"{error['file']} has its text {text.count(error['old'])} times, not once")
    try:
        write(path, text.replace(error["old"], error["new"]))
        yield
    finally:
        write(path, text)


def write(path: Path, text: str) -> None:
    """Python compares times in seconds, so that the compiled file of a moment ago would pass for this one."""
    path.write_text(text, "utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


class First:
    """A plugin of pytest that keeps the first test that fails, and why."""

    found = ("", "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.found[0]:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.found = report.nodeid, (str(getattr(crash, "message", "")).splitlines() or [""])[0][:200]

    pytest_collectreport = pytest_runtest_logreport


def run_tests(tree: Path, tests: list[str], log: Path, options: tuple[str, ...] = ("-x",)) -> tuple[int, str, str]:
    """pytest in a process of its own: its exit status, the first test that failed, and why."""
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
            first = First()
            status = int(import_module("pytest").main([*WORDS, *options, *tests], plugins=[first]))
            os.write(written, json.dumps(first.found).encode())
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
            return 124, "", "out of time"
        time.sleep(0.1)
    with os.fdopen(read, "rb") as found:
        return os.waitstatus_to_exitcode(ended[1]), *json.loads(found.read() or '["", "no result"]')


def folders_of(tests: list[str]) -> list[str]:
    """The folders that named tests lie in."""
    return sorted({str(Path(name.partition("::")[0]).parent) for name in tests})


def judge(tree: Path, error: Error, log: Path, wider: bool) -> dict[str, Any]:
    """killed: the test that finds the error, empty if none does."""
    began = time.monotonic()
    with plant(tree, error):
        status, killed, why = run_tests(tree, error["tests"], log)
        if status == 0 and wider:
            status, killed, why = run_tests(tree, folders_of(error["tests"]), log)
    return {"killed": killed, "status": status, "why": why, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    here = Path(__file__).parent
    parser.add_argument("ids", nargs="*", help="errors to plant; all when none is named")
    parser.add_argument("--out", type=Path, default=Path("build/planted.jsonl"))
    parser.add_argument("--narrow", action="store_true", help="named tests alone")
    given = parser.parse_args()
    errors = read_errors(here / "errors.toml")
    done = {}
    given.out.parent.mkdir(exist_ok=True)
    if given.out.exists():
        done = {row["id"]: row for row in map(json.loads, given.out.read_text().splitlines())}
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for name in HEAVY:
        with suppress(ImportError):
            import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        tree, log = copy_code(here.parent.parent, Path(folder) / "code"), given.out.with_suffix(".log").absolute()
        for name in given.ids or errors:
            if name in done:
                continue
            with open(log, "a") as file:
                print(f"==== {name}", file=file)
            row = done[name] = {"id": name, **judge(tree, errors[name], log, not given.narrow)}
            with open(given.out, "a") as file:
                print(json.dumps(row), file=file)
            found = row["killed"] or ("SURVIVED" if row["status"] == 0 else f"status {row['status']}: {row['why']}")
            print(f"{name:40} {row['seconds']:6.1f} s  {found}", flush=True)
        tests = {row["killed"] for row in done.values()} - {""}
        if tests and not given.ids:
            status, wrong, why = run_tests(tree, sorted(tests), log, options=())
            print("the same tests pass without an error" if status == 0 else f"without an error {wrong} fails: {why}")


if __name__ == "__main__":
    main()
