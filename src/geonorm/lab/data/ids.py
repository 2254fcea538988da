"""Token ids in files of other programs: nanoGPT (raw uint16), llm.c (a header before it), Megatron (an
.idx beside it), and .npy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, cause
from .files import one_line_errors, open_regular

TOKEN_SUFFIXES = (".npy", ".bin")
LLM_C, LLM_C_HEADER = {20240520: "<u2", 20240801: "<u4"}, 1024
"""How files of llm.c begin, as int32 (magic, version, tokens, ...), with the types of their tokens (of GPT-2 and of
Llama 3), and the bytes before these."""
NUMPY = b"\x93NUMPY"
PIECE = 1 << 20
"""Ids that are read at once."""


@dataclass(frozen=True)
class Span:
    """Ids start to stop of a file, of which the first lies at byte `offset`."""

    path: Path
    dtype: np.dtype[Any]
    offset: int
    start: int
    stop: int

    def read(self) -> Iterator[NDArray[Any]]:
        """Its ids in pieces. DataError for a file that has become shorter."""
        for first in range(self.start, self.stop, PIECE):
            count = min(PIECE, self.stop - first)
            with one_line_errors(self.path):
                place = self.offset + first * self.dtype.itemsize
                ids = np.fromfile(self.path, self.dtype, count=count, offset=place)
            if len(ids) < count:
                raise DataError(f"{self.path} has changed while it was read: start again when it is complete")
            yield ids


def token_span(path: Path) -> Span:
    """All ids of a file, by how it begins; without a beginning that is known they are uint16. DataError, one line, for
    what holds no ids: an array of another kind, a file that was cut short."""
    if path.suffix not in TOKEN_SUFFIXES:
        raise DataError(f"{path}: text beside token ids: one source holds one of the two")
    if path.suffix == ".bin" and path.with_suffix(".idx").exists():
        raise DataError(f"{path}: Megatron's format (.idx beside it) is not read: save its tokens as one .npy")
    with one_line_errors(path), open_regular(path) as file:
        header = file.read(LLM_C_HEADER)
        size = path.stat().st_size
        if header.startswith(NUMPY):
            try:
                array = np.load(path, mmap_mode="r")
            except ValueError as error:
                raise DataError(f"{path}: not a readable .npy file ({cause(error)})") from error
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise DataError(
                    f"{path}: {array.dtype} of shape {array.shape}, where one row of whole numbers is needed"
                )
            return Span(path, array.dtype, array.offset, 0, len(array))
    head = np.frombuffer(header[:12].ljust(12, b"\0"), "<i4")
    dtype, offset = np.dtype(LLM_C.get(head[0], "<u2")), LLM_C_HEADER if head[0] in LLM_C else 0
    count, rest = divmod(size - offset, dtype.itemsize)
    if rest or count < 2 or (offset and count != head[2]):
        wanted = f"{head[2]} tokens that its header names" if offset else "whole uint16 tokens"
        raise DataError(f"{path}: {size - offset} bytes are no {wanted}: make the file again")
    return Span(path, dtype, offset, 0, count)
