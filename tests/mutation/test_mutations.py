"""The tool that changes the code to test the tests: what it changes, and that it takes it back."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
run = import_module("run")


def test_every_kind_of_mutation() -> None:
    rows = [
        ("a + b", "a - b"), ("a < b", "a <= b"), ("a and b", "a or b"), ("-a", "a"), ("not a", "a"), ("2", "3"),
        ("True", "False"), ("torch.minimum(a, b)", "torch.maximum(a, b)"), ("min(a, b)", "max(a, b)"),
    ]  # fmt: skip
    for old, new in rows:
        assert ast.unparse(run.changed(ast.parse(old, mode="eval").body)) == new
    assert ast.unparse(run.changed(ast.parse("a += b").body[0])) == "pass"
    assert run.changed(ast.parse("a", mode="eval").body) is None


def test_what_is_planted_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    text = "def f(a: int = 1):\n    return a * 2\n\n\nb = f()\nb = f()\n"
    file.write_text(text)
    every = list(run.mutations(file, tmp_path))
    assert {(m.old, m.new) for m in every} == {("1", "(2)"), ("a * 2", "(a / 2)"), ("2", "(3)")}
    product = next(m for m in every if m.old == "a * 2")
    with run.plant(tmp_path, product):
        assert file.read_text() == text.replace("a * 2", "(a / 2)")
    assert file.read_text() == text
    file.write_text(text.replace("2", "3"))
    with pytest.raises(ValueError, match="does not have once"), run.plant(tmp_path, product):
        raise AssertionError


def test_every_tested_part_exists_and_has_tests() -> None:
    root = Path(__file__).parents[2]
    for name, tests in run.TESTS.items():
        assert (root / "src/geonorm" / name).exists(), name
        assert all((root / test).exists() for test in tests.split()), name
