"""Reading documents from one local file: plain text, JSON, CSV, Parquet or Arrow, compressed or not.

Everything streams, from regular files alone, and whatever is wrong with a file ends in one `DataError` that names the
file and the place.
"""

import bz2
import codecs
import csv
import hashlib
import io
import lzma
import os
import stat
import time
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from ...errors import DataError, cause, import_extra
from ...parsing import from_json
from .cache import cache_folder, new_folder

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
FORMATS = {
    **dict.fromkeys(JSON_SUFFIXES, "jsonl"), ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
MAGIC = {b"PAR1": "parquet", b"\xff\xff\xff\xff": "arrow"}
DATA_SUFFIXES = (*FORMATS, ".txt", ".text")
# What counts as text when a folder is read; a file that is named directly may have any suffix.
READABLE = (
    *FORMATS,
    *".txt .text .md .rst .org .tex .bib .html .xml .yaml .yml .toml "
    ".py .pyi .c .h .cc .cpp .hpp .cu .cuh .rs .go .java .kt .js .ts .rb .jl .lua .r .sh .lean .v".split(),
)
STRINGS = ("string", "large_string", "string_view")
"""Types of columns that hold text."""
WHOLE_BYTES = 1 << 28  # of what has to be in memory as a whole: a line of JSON, an array, a tokenizer
LARGE = 1 << 20  # bytes of a file whose hash is worth keeping: every rank asks for it
PIECE_BYTES = 1 << 24  # a longer text file is read as several documents, so that memory stays bounded


COMPRESSIONS: dict[str, tuple[bytes, int, Callable[[], Any]]] = {
    ".gz": (b"\x1f\x8b", 1 << 12, lambda: zlib.decompressobj(31)),
    ".xz": (b"\xfd7zXZ\0", 1 << 12, lzma.LZMADecompressor),
    ".bz2": (b"BZh", 1 << 5, bz2.BZ2Decompressor),
    ".zst": (
        b"\x28\xb5\x2f\xfd",
        1 << 8,
        lambda: import_extra("zstandard", "reading .zst", "train").ZstdDecompressor().decompressobj(),
    ),
}
"""By suffix: how such a file begins, the bytes that are decompressed at once (bz2 makes up to 46 MB of 40 of them,
zstandard 128 KiB of four), and the decompressor of one stream of it."""


def format_of(path: Path) -> str:
    """``jsonl``, ``csv``, ``tsv``, ``parquet``, ``arrow`` or ``text``, by the suffix under a compression suffix, else
    by how the file begins."""
    with open_regular(path) as file:
        begin = file.peek(8)
    content = next((name for magic, name in MAGIC.items() if begin.startswith(magic)), "text")
    return FORMATS.get(suffix_of(path), content)


def is_in_folder(path: Path, suffixes: Container[str]) -> bool:
    """True for a file with one of these suffixes that is read as part of a folder. A .json file with a single object is
    not: that is the settings of something, or the index or description of a dataset."""
    if suffix_of(path) not in suffixes or path.suffix.lower() != ".json":
        return suffix_of(path) in suffixes
    with one_line_errors(path), open_regular(path) as file:
        first, second = file.readline(WHOLE_BYTES).strip(), file.readline(WHOLE_BYTES).strip()
    return first.startswith(b"[") or (first.endswith(b"}") and bool(second))


def suffix_of(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def sha256_of(path: Path) -> str:
    """SHA-256 of the file as it is on disk, without decompression. That of a large file comes from the cache unless the
    file was touched since: by its ctime, which no program can set back, as it can the mtime."""
    with one_line_errors(path), open_regular(path) as file:
        about = os.fstat(file.fileno())
        record = cache_folder() / "hashes" / f"{about.st_ino}-{about.st_size}-{about.st_mtime_ns}-{about.st_ctime_ns}"
        if record.is_dir():
            return (record / "sha256").read_text()
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        # a second change soon after the first may leave the same ctime
        if about.st_size >= LARGE and time.time() - about.st_ctime > 60:
            with suppress(OSError), new_folder(record) as temporary:
                (temporary / "sha256").write_text(sha256)
        return sha256


def read_documents(path: Path, field: str | None = None) -> Iterator[str]:
    """The non-empty documents of one file, lazily and in order. field: where records have their text."""
    readers = {
        "jsonl": lambda path, field: read_texts(read_json_records(path), field), "csv": read_csv, "tsv": read_csv,
        "parquet": read_column, "arrow": read_column, "text": lambda path, field: read_plain_text(path),
    }  # fmt: skip
    with one_line_errors(path):
        yield from readers[format_of(path)](path, field)


def read_bytes(path: Path) -> bytes:
    """The whole content of a small file, decompressed."""
    with one_line_errors(path), open_file(path) as file:
        content = file.read(WHOLE_BYTES + 1)
        if len(content) > WHOLE_BYTES:
            raise DataError(f"{path}: more than {WHOLE_BYTES >> 20} MiB, decompressed: give a smaller file")
        return content


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Parquet reports damage as an OSError without an error number
        reason = error.strerror.lower() if error.strerror else f"cannot be read ({cause(error)})"
        raise DataError(f"{path}: {reason}: check the path, its permissions and its content") from error


def open_regular(path: Path) -> io.BufferedReader:
    """A regular file, open for reading. DataError for anything else: a pipe may never begin, a device never end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DataError(f"{path}: not a regular file: give a file or a folder")
    return file


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """The content of a regular file, decompressed."""
    with open_regular(path) as file:
        begin, suffix = file.peek(8), path.suffix.lower()
        for ending, (magic, size, new_stream) in COMPRESSIONS.items():
            if suffix == ending or begin.startswith(magic):
                yield cast(IO[bytes], io.BufferedReader(Decompressed(decompress(path, file, size, new_stream))))
                return
        yield file


class Decompressed(io.RawIOBase):
    """A binary file whose content is an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.ready = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self.ready = self.ready or memoryview(next(self.pieces, b""))
        target = memoryview(buffer)
        size = min(len(target), len(self.ready))
        target[:size] = self.ready[:size]
        self.ready = self.ready[size:]
        return size


def decompress(path: Path, file: IO[bytes], size: int, new_stream: Callable[[], Any]) -> Iterator[bytes]:
    """The decompressed content of all streams of a file. The readers of the libraries are not used: they take damage at
    the beginning of a later stream for the end of the file (bz2, lzma), or do not see that it was cut short
    (zstandard)."""
    stream: Any = None
    data = b""
    while data := data or file.read(size):
        if stream is None:
            data = data.lstrip(b"\0")  # padding between streams
            stream = new_stream() if data else None
            continue
        try:
            piece = stream.decompress(data)
        except Exception as error:  # each library has a class of its own
            raise DataError(f"{path}: broken compression ({error}): fetch or compress the file again") from error
        data = stream.unused_data if stream.eof else b""
        stream = None if stream.eof else stream
        if piece:
            yield piece
    if stream is not None:
        raise DataError(f"{path}: broken compression (ends within a stream): fetch the file again")


def read_plain_text(path: Path) -> Iterator[str]:
    """The file as one document, or as pieces of `PIECE_BYTES` that end at line breaks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, rest = 0, ""
    with open_file(path) as file:
        for chunk in chain(iter(lambda: file.read(PIECE_BYTES), b""), [b""]):  # the last ends what a piece began
            if (position := chunk.find(b"\0")) >= 0:
                raise DataError(f"{path}: binary file (NUL byte at offset {offset + position}): give UTF-8 text")
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


def not_utf8(path: Path, offset: int) -> DataError:
    return DataError(f"{path}: not UTF-8 at byte {offset}: convert it, for example with iconv -t UTF-8")


def read_json_records(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, value) of each line of JSON, or of each entry of a file that is one array. pyarrow's reader is not used:
    it infers a type for each column from a block of lines, and does not name the line that is wrong."""
    offset = 0
    with one_line_errors(path), open_file(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(WHOLE_BYTES + 1), b""), start=1):
            place = f"{path}:{number}"
            if number == 1 and line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
                line += file.read(WHOLE_BYTES)
            if len(line) > WHOLE_BYTES:
                raise DataError(f"{place}: more than {WHOLE_BYTES >> 20} MiB of JSON: one object a line is needed")
            try:
                content = line.decode().removeprefix("\ufeff").strip()
                value = from_json(content) if content else []
            except UnicodeDecodeError as error:
                raise not_utf8(path, offset + error.start) from error
            except ValueError as error:
                raise DataError(f"{place}: not valid JSON ({cause(error)}): one object a line is needed") from error
            offset += len(line)
            for record in value if isinstance(value, list) else [value]:
                yield place, record


def read_csv(path: Path, field: str | None = None) -> Iterator[str]:
    """The texts of a table whose first line names its columns."""
    csv.field_size_limit(WHOLE_BYTES)
    with open_file(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t" if suffix_of(path) == ".tsv" else ",", restkey="more")
        try:
            yield from read_texts(((f"{path}:{rows.line_num}", row) for row in rows), field)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}:{rows.line_num}: not a table in UTF-8 ({cause(error)})") from error


def read_texts(records: Iterable[tuple[str, Any]], field: str | None = None) -> Iterator[str]:
    """The text of each record. records: (place, record)."""
    for place, record in records:
        if not isinstance(record, dict):
            raise DataError(f"{place}: a JSON {type(record).__name__}, where an object with a text field is needed")
        text = record[
            text_field(place, [name for name in record if isinstance(record[name], str)], list(record), field)
        ]
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: lone surrogate at character {error.start}: not valid Unicode text") from error
        if text:
            yield text


def text_field(place: str, strings: list[str], fields: list[str], named: str | None = None) -> str:
    """The field that holds the text: the one that is named, else ``text``. DataError if it is not among `strings`, the
    fields that hold strings."""
    field = named or "text"
    if field not in strings:  # no other field takes its place: an only string may be a name
        raise DataError(
            f"{place}: no text in a field '{field}' (strings: {', '.join(strings) or 'none'}; all: "
            f"{', '.join(fields) or 'none'}): name it by --field, of a training run by --tokens.field"
        )
    return field


def read_column(path: Path, named: str | None = None) -> Iterator[str]:
    """The texts of a Parquet file or of a stream of Arrow batches (which `datasets` saves), by pyarrow."""
    pa = import_extra("pyarrow", f"{path}: reading Parquet and Arrow", "hf")
    pq = import_module("pyarrow.parquet")
    try:
        with open_regular(path) as file:
            whole = format_of(path) == "parquet"
            table = pq.ParquetFile(file) if whole else pa.ipc.open_stream(file)
            schema = table.schema_arrow if whole else table.schema
            kinds = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema}
            strings = [name for name, kind in kinds.items() if str(kind) in STRINGS]
            field = text_field(str(path), strings, schema.names, named)
            for batch in table.iter_batches(256, columns=[field]) if whole else table:
                yield from (text for value in batch.column(field) if (text := value.as_py()))  # one at a time
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable Parquet or Arrow file ({cause(error)})") from error
