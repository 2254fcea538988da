"""What a run was made from: data, tokenizer, schemes from elsewhere, and the versions of each of its parts.

environment.json           one object for each process that worked on the run, in order; formerly the last
schemes/SHA256.py          the source of its schemes from elsewhere, by the first digits of their sha256
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import elsewhere
from ...errors import CheckpointError
from ...parsing import from_json
from ...schemes import parse, sources_of
from .folder import flatten, read_objects, write_atomic, write_json

FILE, FOLDER = "environment.json", "schemes"
VERSIONS = ("geonorm", "commit", "python", "torch", "numpy", "tokenizers", "backend")


def read_parts(folder: Path) -> list[dict[str, Any]]:
    """The record of a run, the newest part last; empty if there is none. CheckpointError if it cannot be read."""
    path = folder / FILE
    parts = read_objects(path)
    if path.exists() and not parts:
        raise CheckpointError(f"{path} is not readable: the run directory is damaged")
    return parts


def read_last(folder: Path) -> dict[str, Any]:
    """The newest part of the record of a run; empty if there is none. CheckpointError if it cannot be read."""
    return next(reversed(read_parts(folder)), {})


def seen_data(folder: Path) -> set[str]:
    """sha256 of what a run, and the run whose weights it began with, was trained on."""
    parts = read_parts(folder)
    before = {sha256 for part in parts for sha256 in (part.get("init_from") or {}).get("data_sha256", ())}
    return before | {sha256 for part in parts if (sha256 := part.get("data_sha256"))}


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
                f"{folder / FOLDER} does not hold the source of {place} that {FILE} names: the run directory is damaged"
            ) from None
        sources[place] = {**about, "source": source}
    return sources


def path_of(folder: Path, sha256: str) -> Path:
    return folder / FOLDER / f"{sha256[:12]}.py"


def size_of(file: Path) -> int:
    """In bytes; 0 where there is none."""
    return file.stat().st_size if file.exists() else 0


@dataclass(frozen=True)
class Provenance:
    """What a run is about to be made from."""

    data: str
    """sha256 of the tokens."""
    tokenizer: str
    """Fingerprint of its content."""
    own_tokenizer: bool = False
    """True if the tokenizer follows from the data."""
    schemes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Schemes from elsewhere, in the form of `sources_of`."""

    @classmethod
    def of(cls, data: str, tokenizer: str, own_tokenizer: bool, schemes: Iterable[str]) -> Provenance:
        """What runs of some schemes are made from: data by their sha256, a tokenizer by its fingerprint."""
        sources = {place: about for scheme in schemes for place, about in sources_of(parse(scheme)).items()}
        return cls(data, tokenizer, own_tokenizer, sources)

    def check(self, folder: Path) -> None:
        """CheckpointError if the run in a folder was made from something else. One that has made no step, as its scheme
        failed, is made from whatever is there now."""
        if not any((folder / "checkpoints").glob("*")) and not size_of(folder / "metrics.jsonl"):
            return
        before = read_last(folder)
        data, tokenizer = before.get("data_sha256"), before.get("tokenizer_sha256")
        new_tokenizer = tokenizer is not None and tokenizer != self.tokenizer
        other = changed_sources(before.get("schemes") or {}, self.schemes, folder / FOLDER)
        if new_tokenizer and not self.own_tokenizer:
            other = [f"with another tokenizer (sha256 {short(tokenizer)}, now {short(self.tokenizer)})"]
        elif new_tokenizer or data not in (None, self.data):
            other = [f"from other data (sha256 of its tokens {short(data)}, now {short(self.data)})"]
        if other:
            raise CheckpointError(f"{folder} was made {other[0]}: put it back, or choose another --out")

    def identity(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides the numbers of a run, by name: its settings and what it is made from."""
        return identity_of(settings, self.data, self.tokenizer, self.schemes)

    def record(self, folder: Path, step: int, versions: dict[str, Any]) -> str | None:
        """Adds the part of a run that begins after `step`; returns what to say of versions that have changed."""
        before = read_parts(folder)
        for about in self.schemes.values():
            if about["source"] is not None and not (path := path_of(folder, about["sha256"])).exists():
                path.parent.mkdir(exist_ok=True)
                write_atomic(path, about["source"])
        schemes = {
            place: {key: value for key, value in about.items() if key != "source"}
            for place, about in self.schemes.items()
        }
        made_from = {"data_sha256": self.data, "tokenizer_sha256": self.tokenizer, "schemes": schemes}
        write_json(folder / FILE, [*before, {**versions, **made_from, "step": step}])
        changed = [
            f"{name} {short(before[-1][name])} is now {short(versions[name])}"
            for name in VERSIONS
            if before and name in before[-1] and before[-1][name] != versions[name]
        ]
        return f"{folder} was begun with other versions: {', '.join(changed)}" if changed else None


def identity_of(
    settings: Mapping[str, Any], data: str, tokenizer: str, schemes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Settings by their dotted names, and the sha256 of data, tokenizer and schemes from elsewhere: checkpoints hold
    it, and whoever reads one compares it."""
    sources = {f"source of {place}": about["sha256"] for place, about in schemes.items()}
    made_from = {**flatten(settings), "data_sha256": data, "tokenizer_sha256": tokenizer, **sources}
    return dict(from_json(json.dumps(made_from)))


def recorded_identity(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a run with these settings by the record in its folder."""
    last = read_last(folder)
    return identity_of(
        settings, last.get("data_sha256", ""), last.get("tokenizer_sha256", ""), last.get("schemes") or {}
    )


def changed_sources(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> list[str]:
    """What to say of schemes from elsewhere, in the form of `sources_of`, that have another source now; `folder` holds
    the former."""
    return [
        f"with another source of {place} (sha256 {short(about['sha256'])}, now {short(now[place]['sha256'])}; it is "
        f"kept in {folder})"
        for place, about in before.items()
        if place in now and now[place]["sha256"] != about["sha256"]
    ]


def short(value: object) -> str:
    """A value as a message shows it: of a long hash the beginning."""
    text = str(value)
    return f"{text[:12]}..." if len(text) >= 40 else text
