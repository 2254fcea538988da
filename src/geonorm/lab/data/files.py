"""Reading documents from one local file: plain text, JSON lines or Parquet, compressed or not.

Everything streams, and whatever is wrong with a file ends in one `DataError` that names the file and the
place.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from ...errors import DataError, cause

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
JSON_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)
DATA_SUFFIXES = (*JSON_SUFFIXES, *PARQUET_SUFFIXES, ".txt", ".text", ".csv", ".tsv")
# What counts as text when a folder is read; a file that is named directly may have any suffix.
TEXT_SUFFIXES = tuple(
    ".txt .text .md .rst .org .tex .bib .html .xml .csv .tsv .json .yaml .yml .toml "
    ".py .pyi .c .h .cc .cpp .hpp .cu .cuh .rs .go .java .kt .js .ts .rb .jl .lua .r .sh .lean .v".split()
)
STRINGS = ("string", "large_string", "string_view")
"""Types of columns that hold text."""
LINE_BYTES = 1 << 26  # of JSON: a line has to be in memory as a whole, several times over
WHOLE_BYTES = 1 << 28  # of a file that is read as a whole
PIECE_BYTES = 1 << 24  # a longer text file is read as several documents, so that memory stays bounded
ZSTANDARD_BYTES = 1 << 8  # decompressed at once: the library makes up to 128 KiB of every four bytes


def format_of(path: Path) -> str:
    """``jsonl``, ``parquet`` or ``text``, judged by the suffix under a compression suffix."""
    suffix = suffix_of(path)
    if suffix in JSON_SUFFIXES:
        return "jsonl"
    return "parquet" if suffix in PARQUET_SUFFIXES else "text"


def is_readable_in_folder(path: Path) -> bool:
    """Whether `path` has a suffix that is read when it is found inside a folder."""
    return suffix_of(path) in JSON_SUFFIXES + PARQUET_SUFFIXES + TEXT_SUFFIXES


def is_data(path: Path) -> bool:
    """Whether `path` has a suffix of text that was collected, and none of a program or a document."""
    return suffix_of(path) in DATA_SUFFIXES


def suffix_of(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def sha256_of(path: Path) -> str:
    """SHA-256 of the file as it lies on disk (compressed, if it is)."""
    with one_line_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_documents(path: Path) -> Iterator[str]:
    """The non-empty documents of one file, lazily and in order."""
    readers = {"jsonl": read_json_lines, "parquet": read_parquet, "text": read_plain_text}
    with one_line_errors(path):
        yield from readers[format_of(path)](path)


def read_bytes(path: Path) -> bytes:
    """The whole content of a small file, decompressed."""
    with one_line_errors(path), open_file(path) as file:
        content = file.read(WHOLE_BYTES + 1)
        if len(content) > WHOLE_BYTES:
            raise DataError(f"{path}: more than {WHOLE_BYTES >> 20} MiB, decompressed: give a smaller file")
        return content


def import_extra(module: str, what: str, extra: str) -> Any:
    """A library that only some sources need. `DataError` where it is missing: `what` needs the pip extra `extra`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(f"{what} needs {module.partition('.')[0]}: pip install 'geonorm[{extra}]'") from error


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
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
        reason = error.strerror.lower() if error.strerror else f"cannot be read ({cause(error)})"
        raise DataError(f"{path}: {reason}: check the path, its permissions and its content") from error


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a regular file: give a file or a folder")
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": open_zstandard}
    with openers.get(path.suffix.lower(), open)(path, "rb") as file:
        yield cast(IO[bytes], file)


def read_plain_text(path: Path) -> Iterator[str]:
    """The file as one document, or as pieces of `PIECE_BYTES` that end at line breaks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, rest = 0, ""
    with open_file(path) as file:
        for chunk in chain(iter(lambda: file.read(PIECE_BYTES), b""), [b""]):  # the last ends what a piece began
            refuse_binary(path, chunk, offset)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise not_utf8(path, offset - pending + error.start) from error
            rest += text if offset else text.removeprefix("\ufeff")  # a byte-order mark is no text
            offset += len(chunk)
            if len(chunk) == PIECE_BYTES:
                end = rest.rfind("\n") + 1 or len(rest)
                yield rest[:end]
                rest = rest[end:]
    if rest:
        yield rest


def refuse_binary(path: Path, data: bytes, offset: int) -> None:
    position = data.find(b"\0")
    if position >= 0:
        raise DataError(f"{path}: binary file (NUL byte at offset {offset + position}): give UTF-8 text")


def not_utf8(path: Path, offset: int) -> DataError:
    return DataError(f"{path}: not UTF-8 at byte {offset}: convert it, for example with iconv -t UTF-8")


def read_json_lines(path: Path) -> Iterator[str]:
    """The texts of one object a line. pyarrow's reader takes a type for each column from a block of lines, and does not
    name the line that is wrong."""
    field: str | None = None
    offset = 0
    with open_file(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), start=1):
            place = f"{path}:{number}"
            if len(line) > LINE_BYTES:
                raise DataError(f"{place}: a line of more than {LINE_BYTES >> 20} MiB: one object a line is needed")
            refuse_binary(path, line, offset)
            try:
                content = line.decode().removeprefix("\ufeff").strip()
                record = json.loads(content) if content else None
            except UnicodeDecodeError as error:
                raise not_utf8(path, offset + error.start) from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"{place}: not valid JSON ({cause(error)}): one object a line is needed") from error
            offset += len(line)
            if not content:
                continue
            if not isinstance(record, dict):
                raise DataError(f"{place}: a JSON {type(record).__name__}, where an object with a text field is needed")
            field = field_of(place, record, field)
            text = record.get(field)
            if not isinstance(text, str):
                raise DataError(f"{place}: field '{field}' is missing or no string: every line needs it")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                message = f"{place}: lone surrogate at character {error.start}: not valid Unicode text"
                raise DataError(message) from error
            if text:
                yield text


def field_of(place: str, record: dict[str, Any], known: str | None) -> str:
    """The field that holds the text of a record, where `known` is that of the records before: one record alone cannot
    say that its only string is the text. DataError where it is another, or not clear."""
    if known == "text":
        return known
    field = text_field(place, [name for name, value in record.items() if isinstance(value, str)], list(record))
    if known not in (None, field):
        raise DataError(f"{place}: its text is in '{field}', that before it in '{known}': put all text into 'text'")
    return field


def text_field(place: str, strings: list[str], fields: list[str]) -> str:
    """The field that holds the text: ``text``, else the only one of the string fields `strings`."""
    if "text" in fields:  # no other field takes its place, a name least of all
        if "text" not in strings:
            raise DataError(f"{place}: field 'text' holds no text: remove it, or put the text there")
        return "text"
    if len(strings) == 1:
        return strings[0]
    problem = "several string fields and none named 'text'" if strings else "no string field"
    raise DataError(f"{place}: {problem} (fields: {', '.join(fields) or 'none'}): rename one to 'text'")


def read_parquet(path: Path) -> Iterator[str]:
    pa = import_extra("pyarrow", f"{path}: reading Parquet", "hf")
    pq = import_extra("pyarrow.parquet", f"{path}: reading Parquet", "hf")
    if path.suffix.lower() in COMPRESSIONS:
        raise DataError(f"{path}: Parquet compresses its own columns: decompress the file first")
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            kinds = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema}
            strings = [name for name, kind in kinds.items() if str(kind) in STRINGS]
            field = text_field(str(path), strings, schema.names)
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                yield from (text for text in batch.column(0).to_pylist() if text)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file ({cause(error)})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: column '{field}' holds text that is not UTF-8") from error


def open_zstandard(path: Path, mode: str = "rb") -> io.BufferedReader:
    """Open for reading; raises `DataError` where the package is missing or the data are damaged."""
    return io.BufferedReader(Frames(path, import_extra("zstandard", f"{path}: reading .zst", "train")))


class Frames(io.RawIOBase):
    """The decompressed bytes of a sequence of frames; the reader of the zstandard package would hide that a file was
    cut short."""

    def __init__(self, path: Path, zstandard: Any) -> None:
        self.compressed, self.ready = path.open("rb"), memoryview(b"")
        self.pieces = decompress_frames(path, self.compressed, zstandard)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.compressed.close()
        super().close()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self.ready = self.ready or memoryview(next(self.pieces, b""))
        target = memoryview(buffer)
        size = min(len(target), len(self.ready))
        target[:size] = self.ready[:size]
        self.ready = self.ready[size:]
        return size


def decompress_frames(path: Path, file: IO[bytes], zstandard: Any) -> Iterator[bytes]:
    frame: Any = None
    data = b""
    while data := data or file.read(ZSTANDARD_BYTES):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        try:
            piece = frame.decompress(data)
        except zstandard.ZstdError as error:
            raise DataError(f"{path}: broken compression ({error}): fetch the file again") from error
        data = b""
        if frame.eof:
            frame, data = None, frame.unused_data
        if piece:
            yield piece
    if frame is not None:
        raise DataError(f"{path}: broken compression (ends within a frame): fetch the file again")
