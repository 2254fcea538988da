"""Token ids in files of other programs: nanoGPT (raw), llm.c (a header before them), Megatron (an .idx beside it), and
.npy."""

import struct
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
MEGATRON, MEGATRON_HEADER = b"MMIDIDX\0\0", struct.Struct("<9sQBQQ")
"""How an index of Megatron-LM begins: magic, version, type, number of sequences, number of documents; after it lie the
lengths of the sequences, as int32."""
MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Its types that hold ids."""
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
    """All ids of a file, whose format is known by its first bytes. In a file without a header ids are uint32 if all
    their upper halves are small, else uint16. DataError, one line, for a file that holds no ids: an array of another
    kind, or a file that was cut short."""
    if path.suffix.lower() not in TOKEN_SUFFIXES:
        raise DataError(f"{path}: text beside token ids: one source holds one of the two")
    if path.suffix == ".bin" and path.with_suffix(".idx").exists():
        return megatron_span(path, path.with_suffix(".idx"))
    if (path.parent / "index.json").exists():
        raise DataError(
            f"{path}: shards of LitData (index.json beside them) are not read: export their text as Parquet"
        )
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
    lower, upper = np.frombuffer(header[: len(header) // 4 * 4], "<u2").reshape(-1, 2).T
    # of many uint16 every second would not be small
    wide = len(upper) >= 64 and upper.max() < 16 <= lower.max()
    dtype, offset = np.dtype(LLM_C.get(head[0], "<u4" if wide else "<u2")), LLM_C_HEADER if head[0] in LLM_C else 0
    count, rest = divmod(size - offset, dtype.itemsize)
    if rest or count < 2 or (offset and count != head[2]):
        wanted = f"{head[2]} tokens that its header names" if offset else f"whole {dtype} tokens"
        raise DataError(f"{path}: {size - offset} bytes are no {wanted}: make the file again")
    return Span(path, dtype, offset, 0, count)


def megatron_span(path: Path, index: Path) -> Span:
    """All ids of a .bin of Megatron-LM (megatron/core/datasets/indexed_dataset.py), by the index beside it."""
    with one_line_errors(index), open_regular(index) as file:
        header = file.read(MEGATRON_HEADER.size).ljust(MEGATRON_HEADER.size, b"\0")
        magic, _, code, sequences, _ = MEGATRON_HEADER.unpack(header)
        lengths = np.frombuffer(file.read(4 * min(sequences, index.stat().st_size // 4)), "<i4")
    count, dtype = int(lengths.sum(dtype=np.int64)), np.dtype(MEGATRON_TYPES.get(code, "V1"))
    if magic != MEGATRON or len(lengths) != sequences or path.stat().st_size != count * dtype.itemsize or count < 2:
        raise DataError(
            f"{index} does not describe the ids in {path.name}, as an index of Megatron does: make both again"
        )
    return Span(path, dtype, 0, 0, count)
