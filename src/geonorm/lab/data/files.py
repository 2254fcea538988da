"""Reading documents from one local file: plain text, JSON lines or Parquet, compressed or not.

Everything streams, and whatever is wrong with a file ends in one `DataError` that names the file and the
place.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ...errors import DataError
from .optional import import_extra
from .zstandard_file import open_zstandard

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
JSON_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)
# What counts as text when a folder is read; a file that is named directly may have any suffix.
TEXT_SUFFIXES = tuple(
    ".txt .text .md .rst .org .tex .bib .html .xml .csv .tsv .json .yaml .yml .toml "
    ".py .pyi .c .h .cc .cpp .hpp .cu .cuh .rs .go .java .kt .js .ts .rb .jl .lua .r .sh .lean .v".split()
)
LINE_BYTES = 1 << 26  # of JSON: a line has to be in memory as a whole, several times over
WHOLE_BYTES = 1 << 28  # of a file that is read as a whole
PIECE_BYTES = 1 << 24  # a longer text file is read as several documents, so that memory stays bounded


def kind(path: Path) -> str:
    """Return ``jsonl``, ``parquet`` or ``text``, judged by the suffix under a compression suffix."""
    suffix = _suffix(path)
    if suffix in JSON_SUFFIXES:
        return "jsonl"
    return "parquet" if suffix in PARQUET_SUFFIXES else "text"


def is_readable_in_folder(path: Path) -> bool:
    """Tell whether `path` has a suffix that is read when it is found inside a folder."""
    return _suffix(path) in JSON_SUFFIXES + PARQUET_SUFFIXES + TEXT_SUFFIXES


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the file as it lies on disk (compressed, if it is)."""
    with _one_line_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_documents(path: Path) -> Iterator[str]:
    """Yield the non-empty documents of one file, lazily and in order."""
    readers = {"jsonl": _read_json_lines, "parquet": _read_parquet, "text": _read_text}
    with _one_line_errors(path):
        yield from readers[kind(path)](path)


def read_bytes(path: Path) -> bytes:
    """Return the whole content of a small file, decompressed."""
    with _one_line_errors(path), _open(path) as file:
        content = file.read(WHOLE_BYTES + 1)
        if len(content) > WHOLE_BYTES:
            raise DataError(f"{path}: more than {WHOLE_BYTES >> 20} MiB, decompressed: give a smaller file")
        return content


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: broken compression ({error}): fetch or compress the file again") from error
    except MemoryError as error:
        raise DataError(f"{path}: too large for the memory of this machine: cut it into smaller documents") from error
    except OSError as error:
        # bz2 and Parquet report damage as an OSError without an error number
        reason = error.strerror.lower() if error.strerror else f"cannot be read ({_first_line(error)})"
        raise DataError(f"{path}: {reason}: check the path, its permissions and its content") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a regular file: give a file or a folder")
    suffix = path.suffix.lower()
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": open_zstandard}
    with openers.get(suffix, open)(path, "rb") as file:
        yield cast(IO[bytes], file)


def _read_text(path: Path) -> Iterator[str]:
    """Yield the file as one document, or as pieces of `PIECE_BYTES` that end at line breaks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, rest = 0, ""
    with _open(path) as file:
        while chunk := file.read(PIECE_BYTES):
            _refuse_binary(path, chunk, offset)
            pending = len(decoder.getstate()[0])
            try:
                text = rest + decoder.decode(chunk)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset - pending + error.start) from error
            rest = text if offset else text.removeprefix("\ufeff")  # a byte-order mark is no text
            offset += len(chunk)
            if len(chunk) == PIECE_BYTES:
                end = rest.rfind("\n") + 1 or len(rest)
                yield rest[:end]
                rest = rest[end:]
        try:
            rest += decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, offset - len(decoder.getstate()[0])) from error
    if rest:
        yield rest


def _refuse_binary(path: Path, data: bytes, offset: int) -> None:
    position = data.find(b"\0")
    if position >= 0:
        raise DataError(f"{path}: binary file (NUL byte at offset {offset + position}): give UTF-8 text")


def _not_utf8(path: Path, offset: int) -> DataError:
    return DataError(f"{path}: not UTF-8 at byte {offset}: convert it, for example with iconv -t UTF-8")


def _read_json_lines(path: Path) -> Iterator[str]:
    field: str | None = None
    offset = 0
    with _open(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), start=1):
            place = f"{path}:{number}"
            if len(line) > LINE_BYTES:
                raise DataError(f"{place}: a line of more than {LINE_BYTES >> 20} MiB: one object a line is needed")
            _refuse_binary(path, line, offset)
            try:
                content = line.decode().removeprefix("\ufeff").strip()
                record = json.loads(content) if content else None
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset + error.start) from error
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{place}: not valid JSON ({_first_line(error)}): one object a line is needed"
                ) from error
            offset += len(line)
            if not content:
                continue
            if not isinstance(record, dict):
                raise DataError(f"{place}: a JSON {type(record).__name__}, where an object with a text field is needed")
            if field is None:
                strings = [name for name, value in record.items() if isinstance(value, str)]
                field = text_field(place, strings, list(record))
            text = record.get(field)
            if not isinstance(text, str):
                raise DataError(f"{place}: field '{field}' is missing or no string: every line needs it")
            if text:
                yield _without_surrogates(place, text)


def _without_surrogates(place: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: lone surrogate at character {error.start}: not valid Unicode text") from error
    return text


def text_field(place: str, strings: list[str], fields: list[str]) -> str:
    """Choose the field that holds the text: ``text``, else the only one of the string fields `strings`."""
    if "text" in strings:
        return "text"
    if len(strings) == 1:
        return strings[0]
    problem = "several string fields and none named 'text'" if strings else "no string field"
    raise DataError(f"{place}: {problem} (fields: {', '.join(fields) or 'none'}): rename one to 'text'")


def _is_text(types: Any, kind: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _read_parquet(path: Path) -> Iterator[str]:
    pa = import_extra("pyarrow", f"{path}: reading Parquet", "hf")
    pq = import_extra("pyarrow.parquet", f"{path}: reading Parquet", "hf")
    if path.suffix.lower() in COMPRESSIONS:
        raise DataError(f"{path}: Parquet compresses its own columns: decompress the file first")
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            strings = [f.name for f in schema if _is_text(pa.types, f.type)]
            field = text_field(str(path), strings, schema.names)
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                yield from (text for text in batch.column(0).to_pylist() if text)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file ({_first_line(error)})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: column '{field}' holds text that is not UTF-8") from error
