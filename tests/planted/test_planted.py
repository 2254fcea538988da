"""The list of planted errors stands on the code as it is. run.py plants them; here nothing is run."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEYS = {"error", "file", "old", "new", "tests"}


def load() -> Any:
    spec = spec_from_file_location("planted_run", HERE / "run.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = load()
ERRORS = run.read_errors(HERE / "errors.toml")


def test_there_are_at_least_sixty_of_one_form():
    assert len(ERRORS) >= 60
    for name, error in ERRORS.items():
        assert set(error) == KEYS and all(error[key] for key in KEYS - {"new"}), name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name), name
        assert error["old"] != error["new"] and "\n" not in error["error"] and not error["error"].endswith("."), name
    meanings = [error["error"] for error in ERRORS.values()]
    assert len(set(meanings)) == len(meanings)


@pytest.mark.parametrize("name", ERRORS)
def test_its_text_stands_once_and_its_tests_exist(name):
    error = ERRORS[name]
    text = (ROOT / error["file"]).read_text(encoding="utf-8")
    assert text.count(error["old"]) == 1, f"write {name} in tests/planted/errors.toml anew: its text has changed"
    compile(text.replace(error["old"], error["new"]), error["file"], "exec")
    for test in error["tests"]:
        file, _, function = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_what_is_planted_is_taken_back(tmp_path):
    file = tmp_path / "code.py"
    file.write_text("a = 1\nb = 1\n")
    error = {"file": "code.py", "old": "a = 1", "new": "a = 2"}
    with run.plant(tmp_path, error):
        assert file.read_text() == "a = 2\nb = 1\n"
    assert file.read_text() == "a = 1\nb = 1\n"
    with pytest.raises(ValueError, match="2 times, not once"), run.plant(tmp_path, {**error, "old": "= 1"}):
        raise AssertionError
