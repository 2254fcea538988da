"""Every public class and function has an example in its docstring, and the example runs.

An example sees `geonorm` and `torch`, random numbers from seed 0 and an empty folder. Dots (...) stand for any output.
"""

import doctest
import inspect
from collections.abc import Iterator
from importlib import import_module, util
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rows import each

import geonorm

PACKAGES = ["", *"dynamics hf measure models ops report residual schemes sphere".split()]
"""The package itself, and its rooms that people import from."""


def public(package: str) -> Iterator[tuple[str, Any]]:
    """The public classes and functions of a room, by their names in `geonorm`."""
    if package == "hf" and not util.find_spec("transformers"):
        return
    module = import_module(f"geonorm.{package}".rstrip("."))
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = geonorm.PUBLIC if module is geonorm else getattr(module, "__all__", defined)
    for name in sorted(names):
        value = getattr(module, name)
        if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
            yield f"{package}.{name}".lstrip("."), value


@each("package", PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    docs = {name: vars(value).get("__doc__", value.__doc__) or "" for name, value in public(package)}  # none inherited
    without = sorted(name for name, doc in docs.items() if ">>> " not in doc)
    assert not without, f"write an example for {', '.join(without)}"


@each("package", PACKAGES)
def test_examples_run(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    failures: list[str] = []
    for name, value in public(package):
        for example in doctest.DocTestFinder().find(value, name, globs={"geonorm": geonorm, "torch": torch}):
            torch.manual_seed(0)
            runner.run(example, out=failures.append)
    assert not failures, "".join(failures)
