"""What a run was made from: data, tokenizer, schemes from elsewhere, and the versions of each of its parts.

environment.json           see identity.py
schemes/SHA256.py          the source of its schemes from elsewhere, by the first digits of their sha256
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ... import elsewhere
from ...errors import CheckpointError
from ...schemes import parse, sources_of
from .folder import first_difference, read_rows, short, write_atomic, write_json
from .identity import ENVIRONMENT_FILE, identity_sha256, read_last, read_parts, recorded_identity

Sources = Mapping[str, Mapping[str, Any]]
SCHEMES_FOLDER = "schemes"
VERSIONS = ("geonorm", "commit", "python", "torch", "numpy", "tokenizers", "backend")


def seen_data(folder: Path) -> set[str]:
    """sha256 of what a run, and the run whose weights it began with, was trained on: a mixture, and its parts."""
    parts = read_parts(folder)
    before = {sha256 for part in parts for sha256 in (part.get("init_from") or {}).get("data_sha256", ())}
    return before | {sha256 for part in parts for sha256 in (part.get("data_sha256") or "").split()}


def read_sources(folder: Path) -> dict[str, dict[str, Any]]:
    """The schemes from elsewhere of a run, in the form of `sources_of`. CheckpointError if it is damaged."""
    sources = {}
    for place, about in (read_last(folder).get("schemes") or {}).items():
        try:
            source = about["sha256"] and path_of(folder, about["sha256"]).read_bytes().decode("utf-8")
            if source is not None and elsewhere.digest(source) != about["sha256"]:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"{folder / SCHEMES_FOLDER} does not hold the source of {place} that {ENVIRONMENT_FILE} names: the run "
                "directory is damaged"
            ) from None
        sources[place] = {**about, "source": source}
    return sources


def path_of(folder: Path, sha256: str) -> Path:
    return folder / SCHEMES_FOLDER / f"{sha256[:12]}.py"


def sources_in(schemes: Iterable[str]) -> Sources:
    """The schemes from elsewhere among some, in the form of `sources_of`."""
    return {place: about for scheme in schemes for place, about in sources_of(parse(scheme)).items()}


def check_made_from(folder: Path, identity: Mapping[str, Any]) -> None:
    """CheckpointError if the run in a folder was made from other data, another tokenizer or other sources. One that has
    made no step, as its scheme failed, is made from whatever is there now."""
    # a branch copies rows before it writes its record
    made_steps = (folder / ENVIRONMENT_FILE).exists() and any(read_rows(folder / "metrics.jsonl"))
    if not made_steps and not any((folder / "checkpoints").glob("*")):
        return
    before = recorded_identity(folder, {})
    if differs := first_difference(before, {name: identity[name] for name in identity if name in before}):
        raise CheckpointError(f"{folder} was made with {differs}: put it back, or choose another --out")


def record_part(
    folder: Path,
    step: int,
    identity: Mapping[str, Any],
    accepted: Mapping[str, Any],
    sources: Sources,
    versions: Mapping[str, Any],
) -> str | None:
    """Adds the part of a run that begins after `step`; returns what to say of what has changed. accepted: by name, the
    values before."""
    before = read_parts(folder)
    schemes = {}
    for place, about in sources.items():
        if about["source"] is not None and not (path := path_of(folder, about["sha256"])).exists():
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, about["source"])
        schemes[place] = {key: value for key, value in about.items() if key != "source"}
    part = {
        **versions,
        "data_sha256": identity["data_sha256"],
        "tokenizer_sha256": identity["tokenizer_sha256"],
        "schemes": schemes,
        "step": step,
        "identity": identity_sha256(identity),
        "accepted": accepted,
    }
    write_json(folder / ENVIRONMENT_FILE, [*before, part])
    now = {**identity, **versions}
    earlier = {**{name: before[-1][name] for name in VERSIONS if before and name in before[-1]}, **accepted}
    changed = [f"{name} {short(old)} is now {short(now[name])}" for name, old in earlier.items() if old != now[name]]
    return f"{folder} was begun with something else: {', '.join(changed)}" if changed else None
