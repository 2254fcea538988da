"""Sources: every format gives its documents back, splits are by document, bad input is one clear line."""

import bz2
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from geonorm.errors import DataError
from geonorm.lab.data import corpora, files, inspect_source, open_source, stdlib
from geonorm.lab.data.source import hold_out, hold_out_stream

from ...rows import each

DOCUMENTS = [f"Document {n}: grüße, 世界, 🌍!\n" + "line\n" * n for n in range(40)]


def jsonl(documents=DOCUMENTS, field="text"):
    lines = [json.dumps({"id": n, field: text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(documents)]
    return ("\n".join(lines) + "\n").encode()


def compress(data, suffix):
    if suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        half = len(data) // 2  # two frames, as `zstd` writes when files are concatenated
        return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix](data)


def both(source):
    return [*source.documents("train"), *source.documents("validation")]


@pytest.fixture(autouse=True)
def no_corpora(monkeypatch):
    monkeypatch.delenv("GEONORM_DATA", raising=False)


@each("suffix", ["", ".gz", ".xz", ".bz2", ".zst"])
def test_jsonl_round_trip(tmp_path, suffix):
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(compress(jsonl(), suffix))
    source = open_source(str(path))
    assert sorted(both(source)) == sorted(DOCUMENTS)
    assert source.name == "corpus"
    assert source.files == (path,)


def test_jsonl_takes_the_only_string_field_and_skips_blank_lines_and_mark(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + jsonl(field="content").replace(b"\n", b"\n\n"))
    assert list(files.read_documents(path)) == DOCUMENTS


@each(
    "first, second, message",
    [
        ({"title": "a"}, {"title": "b", "text": "long"}, r":2: its text is in 'text', that before it in 'title': put"),
        ({"title": "a", "body": None}, {"title": "b", "body": "long"}, r":2: several string fields .*title, body"),
        ({"title": "a", "body": None}, {"title": None, "body": "long"}, r":2: its text is in 'body', that before it"),
        ({"body": "a"}, {"body": "b", "lang": "en"}, r":2: several string fields .*body, lang"),
        ({"body": "a"}, {"body": "b", "text": None}, r":2: field 'text' holds no text"),
    ],
)
def test_the_first_record_alone_does_not_say_which_field_is_text(tmp_path, first, second, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    with pytest.raises(DataError, match=message):
        list(files.read_documents(path))


def test_parquet_round_trip(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(41)), "url": ["x"] * 41, "text": [*DOCUMENTS, None]}), path)
    assert list(files.read_documents(path)) == DOCUMENTS
    assert sorted(both(open_source(str(path)))) == sorted(DOCUMENTS)


@each("suffix", ["", ".gz", ".zst"])
def test_text_file_holds_out_its_tail(tmp_path, suffix):
    text = "".join(DOCUMENTS) * 5
    path = tmp_path / f"novel.txt{suffix}"
    path.write_bytes(compress(text.encode(), suffix))
    source = open_source(str(path))
    (train,), (validation,) = source.documents("train"), source.documents("validation")
    assert train + validation == text
    assert train.endswith("\n")
    assert 0.04 < len(validation) / len(text) < 0.08


def test_text_is_read_in_pieces_without_loss(tmp_path, monkeypatch):
    text = "\ufeff" + "héllo 世界 🌍\n" * 300 + "no break " * 40 + "end"
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    for size in (61, 62, 63, 64):  # pieces end within characters of 2, 3 and 4 bytes
        monkeypatch.setattr(files, "PIECE_BYTES", size)
        pieces = list(files.read_documents(path))
        assert len(pieces) > 20
        assert "".join(pieces) == text.removeprefix("\ufeff")
        assert "".join(both(open_source(str(path)))) == text.removeprefix("\ufeff")


def test_broken_character_is_located_in_any_piece(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes("世界".encode() * 20 + b"\xe4\xb8x")
    for size in (7, 8, 9):
        monkeypatch.setattr(files, "PIECE_BYTES", size)
        with pytest.raises(DataError, match="not UTF-8 at byte 120:"):
            list(files.read_documents(path))


def test_folder_reads_all_text_below_sorted(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.txt").write_text("hidden")
    (tmp_path / "b" / "two.md").write_text("two")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "c.jsonl").write_bytes(jsonl(["three", "four"]))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\xff")
    source = open_source(str(tmp_path))
    assert [path.name for path in source.files] == ["a.txt", "two.md", "c.jsonl", "empty.txt"]
    assert sorted(both(source)) == ["four", "one", "three", "two"]


@pytest.mark.parametrize("sharded", [False, True])
def test_split_folder_and_corpus_names(tmp_path, monkeypatch, sharded):
    folder = tmp_path / "data" / "my-corpus"
    for split, documents in (("train", DOCUMENTS[:30]), ("validation", DOCUMENTS[30:])):
        path = folder / split / "0.jsonl.xz" if sharded else folder / f"{split}.jsonl.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(jsonl(documents)))
    (tmp_path / "data" / "small").mkdir()
    (tmp_path / "data" / "small" / "novel.txt").write_text("text\n" * 500)
    monkeypatch.setenv("GEONORM_DATA", str(tmp_path / "data"))
    assert set(corpora()) == {"my-corpus", "novel"}
    for spec in ("my-corpus", str(folder)):
        source = open_source(spec)
        assert list(source.documents("train")) == DOCUMENTS[:30]
        assert list(source.documents("validation")) == DOCUMENTS[30:]
    assert "".join(both(open_source("novel"))) == "text\n" * 500
    with pytest.raises(DataError, match=r"'my-corpsu': did you mean 'my-corpus'\?"):
        open_source("my-corpsu")


def test_stdlib_needs_nothing_and_is_split_by_module():
    source = open_source("stdlib")
    train, validation = set(source.documents("train")), set(source.documents("validation"))
    assert not train & validation and len(validation) >= 30
    assert 4e6 < sum(map(len, train | validation)) < 12e6
    assert len(source.files) == len(stdlib.find_modules()) >= 150
    assert stdlib.VALIDATION.issubset(stdlib.MODULES)
    # a fixed property of the list: a changed list would silently change everybody's validation loss
    assert stdlib.VALIDATION.issuperset({"collections", "json", "inspect", "zoneinfo._zoneinfo"})
    assert open_source("stdlib").fingerprint == source.fingerprint


def test_stdlib_finds_modules_without_importing_them():
    code = (
        "import sys; from geonorm.lab.data import open_source; source = open_source('stdlib')\n"
        "loaded = {'imaplib', 'xmlrpc.server', 'wsgiref.validate', 'torch', 'tokenizers'} & {*sys.modules}\n"
        "assert not loaded, loaded"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[3])}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment)


def test_stdlib_with_missing_modules(tmp_path, monkeypatch):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("a = 1\n")
    (tmp_path / "random.py").write_text("b = 2\n")
    assert stdlib.find_modules(tmp_path) == {
        "json": tmp_path / "json" / "__init__.py",
        "random": tmp_path / "random.py",
    }
    monkeypatch.setattr(stdlib, "find_modules", dict)
    with pytest.raises(DataError, match="no source files"):
        open_source("stdlib")


# --- splitting -------------------------------------------------------------------------------------


def split(documents, fraction=0.05, one_text=False):
    parts = hold_out("x", lambda: iter(documents), fraction, one_text=one_text)
    return list(parts["train"]()), list(parts["validation"]())


@given(st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=60), st.floats(0.001, 0.999), st.randoms())
@settings(deadline=None, max_examples=60)
def test_split_is_by_document_disjoint_and_independent_of_order(documents, fraction, shuffler):
    if len(set(documents)) == 1:
        with pytest.raises(DataError, match="are equal"):
            split(documents, fraction)
        return
    train, validation = split(documents, fraction)
    assert train
    assert validation
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(documents)
    shuffler.shuffle(documents)
    again = split(documents, fraction)
    assert [sorted(part) for part in again] == [sorted(train), sorted(validation)]


def test_split_fraction_is_met():
    documents = [str(n) for n in range(4000)]
    parts = hold_out_stream(lambda: iter(documents), 0.05)
    assert len(split(documents)[1]) == len(list(parts["validation"]())) == pytest.approx(200, abs=50)
    assert sorted([*parts["train"](), *parts["validation"]()]) == sorted(documents)


@given(st.text(min_size=2, max_size=3000), st.floats(0.001, 0.999), st.integers(1, 400))
@settings(deadline=None, max_examples=60)
def test_tail_of_one_text(text, fraction, size):
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    train, validation = split(pieces, fraction, one_text=True)
    assert "".join(train)
    assert "".join(validation)
    assert "".join(train + validation) == text


def test_fingerprint_follows_content_only(tmp_path):
    def fingerprint(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return open_source(str(path)).fingerprint

    base = fingerprint("a.jsonl", jsonl())
    assert fingerprint("b.jsonl", jsonl()) == base
    assert len(base) == 64
    others = fingerprint("c.jsonl", jsonl(DOCUMENTS[1:])), fingerprint("e.txt", jsonl())
    assert len({base, *others}) == 3


def test_documents_are_lazy(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl() + b"{broken\n")
    assert next(files.read_documents(path)) == DOCUMENTS[0]
    assert open_source(str(path)).files == (path,)


# --- errors ----------------------------------------------------------------------------------------

RANDOM = random.Random(0).randbytes(5000)
TEXT = b"some text\n" * 2000
BAD_FILES = {
    "empty.txt": (b"", "empty: give"),
    "empty.jsonl": (b"\n\n", "empty: give"),
    "binary.txt": (b"abc\0def", r"binary file \(NUL byte at offset 3\)"),
    "latin.txt": ("a grüße".encode("latin-1"), "not UTF-8 at byte 4"),
    "mark.txt": (b"\xef\xbb\xbfab\xff", "not UTF-8 at byte 5"),
    "cut.txt": ("abc🌍".encode()[:-1], "not UTF-8 at byte 3"),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "\xff"}\n', "not UTF-8 at byte 24"),
    "plain.txt.gz": (TEXT, "broken compression"),
    "plain.txt.xz": (TEXT, "broken compression"),
    "plain.txt.bz2": (TEXT, "cannot be read"),
    "plain.txt.zst": (TEXT, "broken compression"),
    "cut.txt.gz": (gzip.compress(RANDOM)[:2000], "broken compression"),
    "cut.txt.xz": (lzma.compress(RANDOM)[:2000], "broken compression"),
    "cut.txt.bz2": (bz2.compress(RANDOM)[:2000], "broken compression"),
    "cut.txt.zst": (compress(TEXT + RANDOM.hex().encode(), ".zst")[:-500], "ends within a frame"),
    "syntax.jsonl": (b'{"text": "a"}\n{"text": \n', r"syntax.jsonl:2: not valid JSON"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", r"deep.jsonl:1: not valid JSON"),
    "array.jsonl": (b'["a"]\n', "array.jsonl:1: a JSON list"),
    "null.jsonl": (b"null\n", "null.jsonl:1: a JSON NoneType"),
    "fields.jsonl": (b'{"title": "a", "body": "b", "n": 1}\n', r"several string .*\(fields: title, body, n\)"),
    "numbers.jsonl": (b'{"n": 1}\n', r"no string field \(fields: n\)"),
    "missing.jsonl": (b'{"text": "a"}\n{"n": 1}\n', "missing.jsonl:2: field 'text'"),
    "surrogate.jsonl": (b'{"text": "a\\ud800"}\n', "surrogate.jsonl:1: lone surrogate at character 1"),
    "bad.parquet": (TEXT, "not a readable Parquet file|cannot be read"),
    "bad.parquet.gz": (gzip.compress(TEXT), "decompress the file first"),
    "tiny.txt": (b"a", "too short to hold out"),
    "equal.jsonl": (jsonl(["a", "a"]), "all 2 documents are equal"),
}


@each("name", BAD_FILES)
def test_bad_file_is_one_line(tmp_path, name):
    content, message = BAD_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        both(open_source(str(path)))
    assert "\n" not in str(caught.value)
    assert Path(name).name.split(".")[0] in str(caught.value)


def test_bad_places_are_one_line(tmp_path):
    (tmp_path / "train.jsonl").write_bytes(jsonl())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.png").write_bytes(b"\0")
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "": "data source is empty",
        "stdlb": "did you mean 'stdlib'",
        str(tmp_path / "trian.jsonl"): r"did you mean '.*/train.jsonl'\?",
        "nowhere/data.jsonl": "known corpora: stdlib.*GEONORM_DATA",
        str(tmp_path / "folder"): "no text, JSONL or Parquet files",
        str(tmp_path / "pipe"): "not a regular file",
        "x" * 5000: "no file, folder or corpus",
    }
    for spec, message in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            open_source(spec)
        assert "\n" not in str(caught.value)


def test_permission_denied_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("text")

    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", deny)  # root, who runs containers, may read everything
    with pytest.raises(DataError, match="permission denied"):
        open_source(str(path))
    monkeypatch.undo()
    monkeypatch.setattr(Path, "iterdir", deny)
    with pytest.raises(DataError, match="permission denied"):
        open_source(str(tmp_path))


LIBRARIES = [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow"), ("o/n", "datasets")]


@each("name, module", LIBRARIES)
def test_missing_extra_names_the_extra(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    if "." in name:
        Path(name).write_bytes(b"x")
    with pytest.raises(DataError, match=rf"needs {module}: pip install 'geonorm\[(train|hf)\]'"):
        open_source(name)


def test_describe(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl())
    facts = inspect_source(open_source(str(path)))
    total = {key: sum(part[key] for part in facts["splits"].values()) for key in ("documents", "characters", "bytes")}
    text = "".join(DOCUMENTS)
    assert total == {"documents": 40, "characters": len(text), "bytes": len(text.encode())}
    assert facts["files"] == [str(path)]
    assert facts["sample"] in {document[:200] for document in DOCUMENTS}
    assert json.loads(json.dumps(facts)) == facts
