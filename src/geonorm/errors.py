"""Errors that a user can act on: one line with problem and remedy; the command line then exits with 2."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class GeonormError(ValueError):
    """Base of all errors that geonorm raises on purpose."""

    agreed = False
    """Whether all ranks of a world raise it alike, so that one of them says it."""


class ConfigError(GeonormError):
    """A setting, scheme or option that does not exist or does not fit."""


class UntrustedCode(ConfigError):
    """A text read from a folder names code that nobody has allowed to run."""


class DataError(GeonormError):
    """A data source, tokenizer or token cache that cannot be used."""


class CheckpointError(GeonormError):
    """A run or checkpoint that is missing, damaged or does not fit."""


def cause(error: BaseException) -> str:
    """What went wrong, in one line: what the system says of a file, the key that is missing, or the first words of the
    error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return ``did you mean 'books-small'?`` for the closest valid name, or an empty string."""
    matches = get_close_matches(name, list(valid), n=1)
    return f"did you mean '{matches[0]}'?" if matches else ""


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """The one sentence for a name that does not exist: what it was, the nearest valid one, and all of them."""
    valid = sorted(valid)
    guess = nearest(name, valid)
    return f"unknown {what} {name!r}" + (f": {guess}" if guess else "") + f" (valid: {', '.join(valid)})"


def near_folder(name: str) -> str:
    """`: did you mean 'runs/nano'?` for the folder of a run or a model beside that path, or in runs, whose name is
    nearest; or an empty string."""
    path = Path(name)
    folders = {
        entry.name: str(entry)
        for place in dict.fromkeys((Path("runs"), path.parent))
        if place.is_dir() and os.access(place, os.R_OK | os.X_OK)
        for entry in place.iterdir()
        if os.path.isfile(entry / "config.yaml") or os.path.isfile(entry / "config.json")  # False where it may not look
    }
    found = get_close_matches(path.name, folders, n=1)
    return f": did you mean '{folders[found[0]]}'?" if found else ""
