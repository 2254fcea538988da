"""The identity of a run: all that decides its numbers, by name. Its checkpoints hold the identity itself; its summary,
and the record of each of its parts, hold the sha256 of it. Whoever reads one of them compares. No torch here.

environment.json           one object for each part: a process that worked on the run. In order; runs of version 0.1
                           have the object of the last process alone
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, ConfigError, unknown
from ...parsing import from_json
from .folder import EXTENSION_MAY_DIFFER, RESUME_MAY_DIFFER, first_difference, flatten, read_objects

ENVIRONMENT_FILE = "environment.json"
FIXED = ("steps", "batch_size", "model.context", "evaluation.trace_tokens", "evaluation.average", "optim.name")
"""Settings that --accept-changed cannot name (more steps extend a run in another way): rows are numbered by the first
four, and a checkpoint holds what the last two have gathered."""


class OtherRun(CheckpointError):
    """A file is of another run than its folder says, on every rank."""

    agreed = True


def identity_of(
    settings: Mapping[str, Any], data: str, tokenizer: str, schemes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Settings by their dotted names, and the sha256 of data, tokenizer and schemes from elsewhere, as far as they are
    known. The tokenizer comes first, unless it was trained on the data: a message names the first difference."""
    flat = flatten(settings)
    hashes = {"tokenizer_sha256": tokenizer, "data_sha256": data}
    sources = {f"source of {place}": about["sha256"] for place, about in schemes.items()}
    ordered = sorted(hashes.items(), reverse=flat.get("tokens.tokenizer") != "bpe")
    known = {name: sha256 for name, sha256 in (*ordered, *sources.items()) if sha256}
    return dict(from_json(json.dumps({**flat, **known})))


def read_parts(folder: Path, needed: bool = False) -> list[dict[str, Any]]:
    """The record of a run, the newest part last; empty if there is none and none is needed. CheckpointError if it
    cannot be read."""
    path = folder / ENVIRONMENT_FILE
    parts = read_objects(path)
    if not parts and (needed or path.exists()):
        raise CheckpointError(f"{path} is not readable: the run directory is damaged")
    return parts


def read_last(folder: Path) -> dict[str, Any]:
    """The newest part of the record of a run; empty if there is none. CheckpointError if it cannot be read."""
    return next(reversed(read_parts(folder)), {})


def recorded_identity(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a run with these settings by the record in its folder."""
    last = read_parts(folder, needed=True)[-1]
    hashes = last.get("data_sha256", ""), last.get("tokenizer_sha256", "")
    return identity_of(settings, *hashes, last.get("schemes") or {})


def without_accepted(identity: Mapping[str, Any], accepted: Iterable[str]) -> dict[str, Any]:
    """The identity without the names that --accept-changed lists. ConfigError for a name that it does not have, or that
    is FIXED."""
    names = [name for name in identity if name not in FIXED]
    for name in accepted:
        if name not in names:
            raise ConfigError(unknown("--accept-changed", name, names))
    return {name: value for name, value in identity.items() if name not in accepted}


def check_identity(what: str, other: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """OtherRun if something, described by `what`, was made under another identity than this run has."""
    # under a cosine another length is another rate at every step; a run of the same length was not extended
    extended = identity.get("optim.schedule") != "cosine" and other.get("steps") != identity.get("steps")
    if differs := first_difference(other, identity, EXTENSION_MAY_DIFFER if extended else RESUME_MAY_DIFFER):
        raise OtherRun(f"{what} was made with {differs}")


def identity_sha256(identity: Mapping[str, Any]) -> str:
    """The sha256 of an identity, without the settings that may differ from part to part."""
    values = {name: value for name, value in identity.items() if name not in RESUME_MAY_DIFFER}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
