"""Datasets of the Hugging Face Hub, streamed: ``owner/name`` or ``owner/name:config`` (needs network)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ...errors import DataError
from .files import text_field
from .optional import import_extra
from .source import Source
from .split import hold_out_stream


def open_hub(spec: str, fraction: float) -> Source:
    """Open a dataset at its newest revision, which the fingerprint names.

    Without a validation split, `fraction` of the train documents is held out by hash of their text.
    """
    what = f"'{spec}' is no file or corpus; a Hugging Face dataset"
    datasets, hub = import_extra("datasets", what, "hf"), import_extra("huggingface_hub", what, "hf")
    name, _, config = spec.partition(":")
    try:
        revision = hub.HfApi().dataset_info(name, timeout=20).sha
        dataset = datasets.load_dataset(name, config or None, streaming=True, revision=revision)
        first = next(iter(dataset["train"]))
    except Exception as error:  # the libraries raise a dozen kinds for network, names, configs and formats
        raise _failure(spec, error) from error
    field = text_field(spec, [key for key, value in first.items() if isinstance(value, str)], list(first))

    def read(split: str) -> Iterator[str]:
        return _texts(spec, dataset[split], field)

    if "validation" in dataset:
        splits: Any = {"train": lambda: read("train"), "validation": lambda: read("validation")}
    else:
        splits = hold_out_stream(lambda: read("train"), fraction)
    identity = f"geonorm hub 1\n{name}\n{config}\n{revision}\n{field}\n{fraction!r}"
    return Source(spec, hashlib.sha256(identity.encode()).hexdigest(), (), splits)


def _texts(spec: str, rows: Any, field: str) -> Iterator[str]:
    try:
        yield from (text for row in rows if (text := row[field]))
    except Exception as error:
        raise _failure(spec, error) from error


def _failure(spec: str, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or [""])[0][:160]
    return DataError(
        f"no file or corpus '{spec}', and it could not be read as a Hugging Face dataset "
        f"({type(error).__name__}: {reason}): check the name and the network"
    )
