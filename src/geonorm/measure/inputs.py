"""What a model is given to read, checked: what it cannot read is one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, GeonormError, cause, is_out_of_memory

FAILURES = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError)
"""What models raise that are given what they cannot read."""
IDS = ("input_ids", "decoder_input_ids")


def check_ids(model: Any, inputs: dict[str, Any], what: str, names: Iterable[str] = IDS) -> None:
    """ConfigError unless ids are integers (batch, tokens) that the model knows; those of any integer type are made
    long."""
    rows = rows_of(model)
    for name in names:
        ids = inputs.get(name)
        if not isinstance(ids, Tensor):
            continue
        if ids.is_floating_point() or ids.dtype == torch.bool or ids.dim() != 2 or not ids.numel():
            raise ConfigError(
                f"{what} of ids is (batch, tokens) of integers, not {tuple(ids.shape)} of {str(ids.dtype)[6:]}"
            )
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or (rows is not None and most >= rows):
            known = "ids from 0 on" if rows is None else f"0 to {rows - 1}"
            raise ConfigError(f"{what} has ids from {least} to {most}, and the model knows {known}")
        inputs[name] = ids.long()
    inputs.update({key: v.long() for key, v in inputs.items() if key.endswith("_ids") and isinstance(v, Tensor)})


def rows_of(model: Any) -> int | None:
    """How many ids a model knows: rows of its embedding, or what its configuration says; None where neither does."""
    find = getattr(model, "get_input_embeddings", None)
    try:
        return int(find().weight.shape[0]) if find is not None else getattr(model.config, "vocab_size", None)
    except (AttributeError, NotImplementedError):
        return None


@contextmanager
def read_by(model: Any, what: str) -> Iterator[None]:
    """Inside, a model reads what it was given: ConfigError with what it raised where it cannot."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, GeonormError) or is_out_of_memory(error):
            raise
        why = f"{type(error).__name__}: {cause(error)[:200]}"
        raise ConfigError(f"{type(model).__name__} cannot read {what} ({why})") from error
