"""Libraries that only some sources need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...errors import DataError


def import_extra(module: str, what: str, extra: str) -> Any:
    """Import and return `module`, or raise a `DataError` saying that `what` needs the pip extra `extra`."""
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise DataError(f"{what} needs {library}: pip install 'geonorm[{extra}]'") from error
