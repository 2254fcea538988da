"""The folder of a simulation, probe, coordinate check or register: what may be written where, and all of it at once, at
the end. Of a simulation:

DIR/config.yaml  environment.json  trace.jsonl  summary.json  theory.json  particles.json  report.html  figures/
and trajectories.safetensors where --keep asks for it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .runs.folder import (
    check_out_folder,
    first_difference,
    lock_folder,
    read_object,
    read_rows,
    stored_settings,
    write_atomic,
    write_json,
    write_settings,
)

TRAJECTORIES = "trajectories.safetensors"
MAY_DIFFER = ("out", "device")
"""Settings in which a study that goes on may differ."""
MUST_MATCH = ("geonorm", "commit", "python", "torch")
"""Entries of environment.json that must be the same for finished schemes to be taken over."""


def check_directory(out: Path, settings: Mapping[str, Any], kind: str = "simulation", key: str = "beta") -> None:
    """CheckpointError if `out` cannot be written, or holds something else than this study. A study of the kind is known
    by `key`, one of its settings. Leaves nothing."""
    before = stored_settings(out) if (out / "config.yaml").exists() else {}
    check_out_folder(out, kind, key in before)
    if before and (differs := first_difference(before, dict(settings), ignored=MAY_DIFFER)):
        raise CheckpointError(f"{out} holds a {kind} with {differs}; choose another --out")


def describe_sources(schemes: Sequence[str]) -> dict[str, Any]:
    """For environment.json: by scheme, the schemes from elsewhere in it, in the form of `sources_of`."""
    from ..schemes import parse, sources_of

    return {str(scheme): sources for scheme in map(parse, schemes) if (sources := sources_of(scheme))}


def read_interrupted(out: Path, environment: Mapping[str, Any]) -> dict[str, Any] | None:
    """Files of an interrupted simulation by their names without suffix, to go on with; None where there is none, or
    where another version of the program made it. CheckpointError where a scheme that is finished had another source."""
    summary, before = read_object(out / "summary.json"), read_object(out / "environment.json")
    if summary.get("status") != "interrupted" or any(before.get(key) != environment[key] for key in MUST_MATCH):
        return None
    for name in [row["scheme"] for row in summary["schemes"]]:
        sources = ((record.get("schemes") or {}).get(name, {}) for record in (before, environment))
        hashes = ({f"source of {place}": about["sha256"] for place, about in each.items()} for each in sources)
        if differs := first_difference(*hashes):
            raise CheckpointError(f"{out} was made with {differs}: put it back, or choose another --out")
    sides = {name: read_object(out / f"{name}.json") for name in ("theory", "particles")}
    return {
        "summary": summary, "trace": list(read_rows(out / "trace.jsonl")), **sides,
        "trajectories": read_trajectories(out),
    }  # fmt: skip


def read_trajectories(out: Path) -> dict[str, dict[str, Any]]:
    """Tensors by scheme and kind; none where the simulation stored none. CheckpointError for a file that is cut."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    trajectories: dict[str, dict[str, Any]] = {}
    try:
        for name, values in load_file(out / TRAJECTORIES).items() if (out / TRAJECTORIES).exists() else ():
            scheme, _, kind = name.rpartition("/")
            trajectories.setdefault(scheme, {})[kind] = values
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{out / TRAJECTORIES} cannot be read: {error}; choose another --out") from None
    return trajectories


def save(
    out: Path,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    files: Mapping[str, Any],
    trajectories: Mapping[str, Any] | None = None,
) -> None:
    """Writes the folder of a study; a simulation may be interrupted. files: content of NAME.json, or a list of rows for
    NAME.jsonl; trajectories: tensors by scheme and kind, if a simulation stored any. Each file is replaced whole,
    summary.json last."""
    with lock_folder(out):
        if trajectories:
            from safetensors.torch import save_file

            aside = out / f".{TRAJECTORIES}"
            save_file({f"{name}/{kind}": v for name, kinds in trajectories.items() for kind, v in kinds.items()}, aside)
            aside.replace(out / TRAJECTORIES)
        write_settings(out / "config.yaml", settings)
        write_json(out / "environment.json", environment)
        for name, content in sorted(files.items(), key=lambda item: item[0] == "summary.json"):
            if name.endswith(".jsonl"):
                write_atomic(out / name, "".join(json.dumps(row, allow_nan=False) + "\n" for row in content))
            else:
                write_json(out / name, content)
