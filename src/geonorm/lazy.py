"""Names of a package that load on first use, so that importing it costs next to nothing."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_on_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` of a package: places says in which of its modules a name is."""

    def find(name: str) -> Any:
        if name in places:
            return getattr(import_module(f".{places[name]}", package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
