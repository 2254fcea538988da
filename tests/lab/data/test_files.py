"""Files that anybody may have written: every container gives its documents back, or is refused in one line."""

import bz2
import gzip
import json
import lzma
import os
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from geonorm.errors import ConfigError, DataError
from geonorm.lab.data import files, load_tokenizer, open_source
from geonorm.lab.data.files import open_file, read_documents

from ...rows import each

DOCUMENTS = [f"Document {n}: grüße, 世界, 🌍!\n" + "line\n" * n for n in range(40)]


def jsonl(documents: list[str] = DOCUMENTS, field: str = "text") -> bytes:
    lines = [json.dumps({"id": n, field: text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(documents)]
    return ("\n".join(lines) + "\n").encode()


def compress(data: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(data))
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix](data)


def both(source: Any) -> list[str]:
    return [*source.documents("train"), *source.documents("validation")]


@each("suffix", ["", ".gz", ".xz", ".bz2", ".zst"])
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    """JSON lines with a byte-order mark and blank lines, their text in a field that is named; text of two streams with
    padding between them, as concatenated files are, under a name that says nothing of it."""
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(compress(b"\xef\xbb\xbf" + jsonl(field="content").replace(b"\n", b"\n\n"), suffix))
    source = open_source(str(path), "content")
    assert sorted(both(source)) == sorted(DOCUMENTS)
    assert source.name == "corpus" and source.files == (path,)
    text = "".join(DOCUMENTS) * 5
    half = len(text) // 2
    padding = bytes(8) if suffix in (".gz", ".xz") else b""
    streams = [compress(part.encode(), suffix) for part in (text[:half], text[half:])]
    (path := tmp_path / "novel").write_bytes(padding.join(streams))
    (train,), (validation,) = map(open_source(str(path)).documents, ("train", "validation"))
    assert train + validation == text and train.endswith("\n")
    assert 0.04 < len(validation) / len(text) < 0.08


@each("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_damage_in_a_later_stream_is_no_end(tmp_path: Path, suffix: str) -> None:
    """The libraries' own readers lose, without a word, all behind the damaged head of a second xz or bz2 stream."""
    first, second = (compress(part.encode() * 99, suffix) for part in ("one\n", "two\n"))
    for place in (0, 3, len(second) // 2):
        damaged = bytearray(second)
        damaged[place] ^= 0xFF
        (path := tmp_path / f"a.txt{suffix}").write_bytes(first + damaged)
        with pytest.raises(DataError, match=r"a.txt.*broken compression"):
            list(read_documents(path))


def test_tables_and_arrays(tmp_path: Path) -> None:
    """Each container by its name, Parquet and Arrow by their content too; null texts of a column are passed over."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["one", 'two, "2"\n', "one"]
    table = pa.table({"url": ["x"] * 4, "text": [*texts, None]})
    for name in ("a.parquet", "shard"):
        pq.write_table(table, tmp_path / name)
    for kind in (pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.large_string()):
        column = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts, kind)
        try:
            pq.write_table(pa.table({"text": column, "n": [1, 2, 3]}), tmp_path / f"{len(str(kind))}.parquet")
        except pa.ArrowNotImplementedError:  # older ones read views of strings and cannot write them
            assert pa.types.is_string_view(kind)
    for name in ("a.arrow", "b.shard"):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfurl,text\nx,one\nx,"two, ""2""\n"\nx,one\n')
    (tmp_path / "b.tsv").write_text('n\ttext\nx\tone\nx\t"two, ""2""\n"\nx\tone\n')
    (tmp_path / "c.json").write_text(json.dumps([{"text": text} for text in texts], indent=1))
    (tmp_path / "d.json.gz").write_bytes(gzip.compress(jsonl(texts)))
    for path in tmp_path.iterdir():
        assert list(read_documents(path)) == texts, path


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    """Its texts, not the description that lies beside them."""
    datasets = pytest.importorskip("datasets")
    parts = {"train": DOCUMENTS[:30], "test": DOCUMENTS[30:]}
    data = {name: datasets.Dataset.from_dict({"text": part}) for name, part in parts.items()}
    datasets.DatasetDict(data).save_to_disk(str(tmp_path / "both"))
    source = open_source(str(tmp_path / "both"))
    assert [list(source.documents(split)) for split in ("train", "validation")] == list(parts.values())
    data["train"].save_to_disk(str(tmp_path / "one"))
    assert sorted(both(open_source(str(tmp_path / "one")))) == sorted(parts["train"])


LITDATA = {"index.json": '{\n "chunks": [], "config": {}}', "chunk-0-0.bin": "\0" * 99}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"index.json": '{"shards": [], "version": 2}', "shard.00000.mds": "\0"}, ".", "MosaicML Streaming .* not read"),
    ({"shard.00000.mds": "\0"}, "shard.00000.mds", "shard.00000.mds: binary file"),
    (LITDATA, ".", "LitData are not read"),
    (LITDATA, "chunk-0-0.bin", "chunk-0-0.bin: shards of LitData"),
    ({"a.parquet": {"input_ids": [[1, 2]]}}, "a.parquet", r"'text' \(strings: none; all: input_ids\)"),
    ({"a.txt": "text"}, "*.txt", r"no file, folder or corpus '\*.txt'"),
    ({}, "https://host.org/a.txt", "no file, folder or corpus 'https://host.org/a.txt'"),
]


@each("contents, spec, line", REFUSED)
def test_what_is_not_read_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: dict[str, Any], spec: str, line: str
) -> None:
    """All else that audit of containers found is read: the two tests above, and token ids in test_ids.py."""
    monkeypatch.chdir(tmp_path)
    for name, content in contents.items():
        if isinstance(content, str):
            Path(name).write_text(content)
        else:
            pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            pq.write_table(pa.table(content), name)
    with pytest.raises(DataError, match=line):
        both(open_source(spec))


def test_text_is_read_in_pieces_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\ufeff" + "héllo 世界 🌍\n" * 300 + "no break " * 40 + "end"
    (path := tmp_path / "a.txt").write_text(text, encoding="utf-8")
    for size in (61, 62, 63, 64):  # pieces end within characters of 2, 3 and 4 bytes
        monkeypatch.setattr(files, "PIECE_BYTES", size)
        pieces = list(read_documents(path))
        assert len(pieces) > 20
        assert "".join(pieces) == "".join(both(open_source(str(path)))) == text.removeprefix("\ufeff")


RANDOM = random.Random(0).randbytes(5000)
TEXT = b"some text\n" * 2000
BAD_FILES = {
    "empty.txt": (b"", "empty: give"),
    "empty.jsonl": (b"\n\n", "empty: give"),
    "empty.xz": (b"", "empty: give"),
    "binary.txt": (b"abc\0def", r"binary file \(NUL byte at offset 3\)"),
    "latin.txt": ("a grüße".encode("latin-1"), "not UTF-8 at byte 4"),
    "mark.txt": (b"\xef\xbb\xbfab\xff", "not UTF-8 at byte 5"),
    "cut.txt": ("abc🌍".encode()[:-1], "not UTF-8 at byte 3"),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "\xff"}\n', "not UTF-8 at byte 24"),
    "latin.csv": (b"text\na\xff\n", "latin.csv:0: not a table in UTF-8"),
    "cut.txt.gz": (gzip.compress(RANDOM)[:2000], "broken compression"),
    "cut.txt.xz": (lzma.compress(RANDOM)[:2000], "broken compression"),
    "cut.txt.bz2": (bz2.compress(RANDOM)[:2000], "broken compression"),
    "syntax.jsonl": (b'{"text": "a"}\n{"text": \n', r"syntax.jsonl:2: not valid JSON"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", r"deep.jsonl:1: not valid JSON"),
    "array.jsonl": (b'["a"]\n', "array.jsonl:1: a JSON str"),
    "object.json": (b'{\n"text": "a"}\n', "object.json:1: not valid JSON"),
    "null.jsonl": (b"null\n", "null.jsonl:1: a JSON NoneType"),
    "fields.jsonl": (b'{"title": "a", "body": "b", "n": 1}\n', r"'text' \(strings: title, body; all: title, body, n\)"),
    "short.csv": (b"n,text\n1\n", "short.csv:2: no text in a field 'text'"),
    "numbers.jsonl": (b'{"n": 1}\n', r"strings: none; all: n\)"),
    "missing.jsonl": (b'{"text": "a"}\n{"n": 1}\n', "missing.jsonl:2: no text in a field 'text'"),
    "surrogate.jsonl": (b'{"text": "a\\ud800"}\n', "surrogate.jsonl:1: lone surrogate at character 1"),
    "bad.parquet": (TEXT, "not a readable Parquet or Arrow file|cannot be read"),
    "bad.arrow": (TEXT, "not a readable Parquet or Arrow file|cannot be read"),
    "bad.txt.gz": (TEXT, "broken compression"),
    # the first record alone does not say which field is text
    "chat.jsonl": (b'{"id": "a", "turns": [{"from": "b"}]}\n', r":1: no text in a field 'text' \(strings: id; all: id"),
    "null_text.jsonl": (b'{"text": "a"}\n{"body": "b", "text": null}\n', r":2: no text .*\(strings: body; all: body"),
}


@each("name", BAD_FILES)
def test_bad_file_is_one_line(tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    (path := tmp_path / name).write_bytes(content)
    if name.endswith((".parquet", ".arrow")):
        pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=message) as caught:
        both(open_source(str(path)))
    assert "\n" not in str(caught.value) and Path(name).stem.split(".")[0] in str(caught.value)


@each("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_a_bomb_is_decompressed_piece_by_piece(tmp_path: Path, suffix: str) -> None:
    """256 MiB of one letter are some kilobytes: no more than 64 MiB of them are there at a time."""
    (path := tmp_path / "bomb").write_bytes(compress(b"a" * 2**28, suffix))
    total = 0
    with open_file(path) as file:
        while chunk := file.read1(1 << 16):  # type: ignore[attr-defined]
            total += len(chunk)
            assert len(file.raw.ready) <= 2**26  # type: ignore[attr-defined]
    assert total == 2**28


def test_what_is_in_memory_as_a_whole_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lines := tmp_path / "long.jsonl").write_text('{"text": "short"}\n{"text": "' + "a" * 2**21 + '"}\n')
    (array := tmp_path / "long.json").write_text("[\n" + '{"text": "short"},\n' * 2**17 + '{"text": "a"}]')
    assert len(list(read_documents(lines))) == 2 and len(list(read_documents(array))) == 2**17 + 1
    monkeypatch.setattr(files, "WHOLE_BYTES", 2**20)
    for path, message in ((lines, "long.jsonl:2: more than 1 MiB"), (array, "long.json:1: more than 1 MiB")):
        with pytest.raises(DataError, match=message):
            list(read_documents(path))
    with pytest.raises(DataError, match=r"long.json: more than 1 MiB"):
        files.read_bytes(array)


@each("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.parquet", "a.txt.xz", "train.txt", "data/train.json"])
@each("kind", ["pipe", "device"])
def test_only_regular_files_are_read(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe may wait for ever, a device may have no end: by its name, in a folder, and as a tokenizer."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    (path.parent / "valid.txt").write_text("text\n" * 500)
    spec = path.parent if path.stem == "train" else path
    for act in (lambda: open_source(str(spec)), lambda: load_tokenizer(str(path), open_source("stdlib"), 300)):
        with pytest.raises(DataError, match="not a regular file") as caught:
            act()
        assert "\n" not in str(caught.value)


def test_bad_places_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEONORM_DATA", raising=False)
    (tmp_path / "train.jsonl").write_bytes(jsonl())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.png").write_bytes(b"\0")
    cases = {
        "": "data source is empty",
        "stdlb": "did you mean 'stdlib'",
        str(tmp_path / "trian.jsonl"): r"did you mean '.*/train.jsonl'\?",
        "nowhere/data.jsonl": "known corpora: stdlib.*GEONORM_DATA",
        str(tmp_path / "folder"): "no text, JSON, CSV, Parquet or Arrow files",
        "x" * 5000: "no file, folder or corpus",
    }
    for spec, message in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            open_source(spec)
        assert "\n" not in str(caught.value)
    # root, who runs containers, may read everything
    monkeypatch.setattr("os.open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(DataError, match="permission denied"):
        open_source(str(tmp_path / "train.jsonl"))


@each("name, module", [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow"), ("o/n", "datasets")])
def test_missing_extra_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    if "." in name:
        Path(name).write_bytes(b"x")
    with pytest.raises(ConfigError, match=rf"needs {module}: pip install 'geonorm\[(train|hf)\]'"):
        open_source(name)
