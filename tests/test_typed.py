"""The stub file that types the public names says of each where it is. What mypy makes of it: users_file.py."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import geonorm

STUB = Path(geonorm.__file__).with_suffix(".pyi")


def test_the_stub_has_every_public_name_and_no_other() -> None:
    tree = ast.parse(STUB.read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    places = {alias.asname: f".{node.module or alias.name}" for node in imports for alias in node.names}
    assert set(places) == {*geonorm.PUBLIC, *geonorm.MODULES}
    for name in {*geonorm.PUBLIC} - {*geonorm.EXTRAS}:
        assert getattr(import_module(places[name], "geonorm"), name) is getattr(geonorm, name), name
