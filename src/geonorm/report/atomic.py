"""Files of simulations and probes, which are written whole: what is cut or gone is refused, not passed over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import GeonormError
from ..parsing import from_json

Record = dict[str, Any]


@contextmanager
def refuse_damaged(file: Path, verb: str) -> Iterator[Path]:
    """GeonormError where what is read of a file is cut or of another shape: `verb` writes it whole."""
    try:
        yield file
    except KeyError as error:
        why = f"{error.args[0]} is missing"
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        why = str(error)
    else:
        return
    raise GeonormError(f"{file} is damaged: {why}; the same geonorm {verb} writes it anew")


def read_whole(file: Path) -> Record:
    """The object in a JSON file. ValueError if it holds none, OSError if it cannot be read."""
    return _object(file.read_text(encoding="utf-8"), "it")


def read_every_line(file: Path) -> list[Record]:
    """The objects in a file of JSON lines. ValueError if a line is none, OSError if it cannot be read."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [_object(line, f"line {number}") for number, line in enumerate(lines, 1)]


def _object(text: str, what: str) -> Record:
    try:
        found = from_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{what} holds no JSON object")
    return found
