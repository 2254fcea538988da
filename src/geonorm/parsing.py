"""JSON and YAML from files that anybody may have written, where all that is wrong is a ValueError; numbers for JSON."""

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

from .errors import import_extra


def from_json(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError if it is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def finite_or_none(value: Any) -> Any:
    """The value, or None for a number that is not finite: JSON has none."""
    return None if isinstance(value, float) and not isfinite(value) else value


def finite_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: finite_or_none(value) for key, value in row.items()}


def from_yaml(text: str) -> dict[str, Any]:
    """The settings of a YAML text. ValueError if it has none, is nested too deeply, names a setting twice, or holds
    aliases, by which a few lines stand for more than any memory holds."""
    yaml = import_extra("yaml", "a file of settings", "train")
    try:
        tree = yaml.load(text, loader())
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise ValueError((str(error).splitlines() or ["not readable"])[0]) from None
    if isinstance(tree, dict):
        return tree
    raise ValueError("it is not a mapping of settings")


@cache
def loader() -> Any:
    import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it holds an alias (*name): write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if twice := next((key for key, count in keys.items() if count > 1), None):
                raise yaml.YAMLError(f"{twice} is given twice")
            return super().construct_mapping(node, deep)

    return Plain


def list_paths(paths: list[str]) -> str:
    """`layers.*.norm (24)` for paths that differ in numbers only."""
    patterns = Counter(".".join("*" if part.isdigit() else part for part in path.split(".")) for path in paths)
    return ", ".join(f"{key} ({count})" for key, count in patterns.items()) or "nothing"
