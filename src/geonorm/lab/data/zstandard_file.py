"""Reading ``.zst`` files; the reader of the zstandard package would hide that a file was cut short."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ...errors import DataError
from .optional import import_extra

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CHUNK = 1 << 16
PIECE = 1 << 8  # given to the library at once: it makes up to 128 KiB of every four bytes


def open_zstandard(path: Path, mode: str = "rb") -> io.BufferedReader:
    """Open for reading; raises `DataError` where the package is missing or the data are damaged."""
    assert mode == "rb"
    zstandard = import_extra("zstandard", f"{path}: reading .zst", "train")
    return io.BufferedReader(_Frames(path, path.open("rb"), zstandard))


class _Frames(io.RawIOBase):
    """The decompressed bytes of a sequence of frames."""

    def __init__(self, path: Path, raw: IO[bytes], zstandard: Any) -> None:
        self._path, self._raw, self._zstandard = path, raw, zstandard
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while not self._ready:
            self._compressed = self._compressed or self._raw.read(CHUNK)
            if not self._compressed:
                if self._frame is not None:
                    raise DataError(f"{self._path}: broken compression (ends within a frame): fetch the file again")
                return 0
            self._ready = memoryview(self._decompress())
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self) -> bytes:
        self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
        piece, self._compressed = self._compressed[:PIECE], self._compressed[PIECE:]
        try:
            data: bytes = self._frame.decompress(piece)
        except self._zstandard.ZstdError as error:
            raise DataError(f"{self._path}: broken compression ({error}): fetch the file again") from error
        if self._frame.eof:
            self._compressed, self._frame = self._frame.unused_data + self._compressed, None
        return data
