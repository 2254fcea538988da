"""Sources: every format gives its documents back, splits are by document, bad input is one clear line."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from geonorm.errors import DataError
from geonorm.lab.data import corpora, files, inspect_source, open_source, source as source_module, stdlib
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
def test_round_trip(tmp_path, suffix):
    """JSON lines with a byte-order mark and blank lines, whose text is in their only string; text with a tail."""
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(compress(b"\xef\xbb\xbf" + jsonl(field="content").replace(b"\n", b"\n\n"), suffix))
    source = open_source(str(path))
    assert sorted(both(source)) == sorted(DOCUMENTS)
    assert source.name == "corpus" and source.files == (path,)
    text = "".join(DOCUMENTS) * 5
    path = tmp_path / f"novel.txt{suffix}"
    path.write_bytes(compress(text.encode(), suffix))
    source = open_source(str(path))
    (train,), (validation,) = source.documents("train"), source.documents("validation")
    assert train + validation == text and train.endswith("\n")
    assert 0.04 < len(validation) / len(text) < 0.08


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
        (tmp_path / name).write_bytes(content)
        return open_source(str(tmp_path / name)).fingerprint

    base = fingerprint("a.jsonl", jsonl())
    assert fingerprint("b.jsonl", jsonl()) == base and len(base) == 64
    assert len({base, fingerprint("c.jsonl", jsonl(DOCUMENTS[1:])), fingerprint("e.txt", jsonl())}) == 3


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


def test_bad_places_are_one_line(tmp_path, monkeypatch):
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

    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    for place, name in (("builtins.open", "train.jsonl"), ("pathlib.Path.iterdir", "")):
        with monkeypatch.context() as patch, pytest.raises(DataError, match="permission denied"):
            patch.setattr(place, deny)  # root, who runs containers, may read everything
            open_source(str(tmp_path / name))


@each("name, module", [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow"), ("o/n", "datasets")])
def test_missing_extra_names_the_extra(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    if "." in name:
        Path(name).write_bytes(b"x")
    with pytest.raises(DataError, match=rf"needs {module}: pip install 'geonorm\[(train|hf)\]'"):
        open_source(name)


# --- parts of a folder ------------------------------------------------------------------------------


def write(folder: Path, names: Iterable[str]) -> Path:
    """Each file holds its own name, as a line of JSON where it is one."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) if path.suffix == ".jsonl" else name)
    return folder


def parts(folder: Path) -> list[list[str]]:
    source = open_source(str(folder))
    return [list(source.documents(split)) for split in ("train", "validation")]


@each(
    "train, held_out, others",
    [
        (["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"], ["validation-00000-of-00001.jsonl"], []),
        (["train.txt"], ["valid.txt"], ["test.txt"]),
        (["train.txt"], ["val.txt"], ["notes.txt"]),
        (["train/a.txt", "train/b.txt"], ["dev/c.txt"], ["test/d.txt"]),
        (["train.csv"], ["test.csv"], ["README.md"]),
        (["training-a.txt", "training-b.txt"], ["dev-a.txt"], []),
        (["train.jsonl", "train.txt"], ["validation.jsonl"], ["valid.txt"]),
    ],
)
def test_parts_are_known_by_their_names(
    tmp_path: Path, train: list[str], held_out: list[str], others: list[str]
) -> None:
    write(tmp_path, [*train, *held_out, *others])
    assert parts(tmp_path) == [train, held_out]
    facts: dict[str, Any] = inspect_source(open_source(str(tmp_path)))
    left_out = sorted({name.split("/")[0] for name in others})
    assert facts.get("left_out", []) == [str(tmp_path / name) for name in left_out]


def test_parts_may_lie_in_a_folder_called_data(tmp_path: Path) -> None:
    """As in a dataset that was cloned from the Hub; nothing deeper, and nothing where the folder itself has parts."""
    train = [f"data/train-0000{n}-of-00002.jsonl" for n in range(2)]
    held_out, others = ["data/validation-00000-of-00001.jsonl"], ["README.md", "data/test-00000-of-00001.jsonl"]
    write(tmp_path / "hub", [*train, *held_out, *others])
    assert parts(tmp_path / "hub") == [train, held_out]
    facts: dict[str, Any] = inspect_source(open_source(str(tmp_path / "hub")))
    assert facts["left_out"] == [str(tmp_path / "hub" / name) for name in others]
    write(tmp_path / "both", ["train.txt", "valid.txt", *train, *held_out])
    assert parts(tmp_path / "both") == [["train.txt"], ["valid.txt"]]
    assert inspect_source(open_source(str(tmp_path / "both")))["left_out"] == [str(tmp_path / "both" / "data")]
    write(tmp_path / "deep", ["data/data/train.txt", "data/data/valid.txt"])
    assert open_source(str(tmp_path / "deep")).files == tuple(sorted((tmp_path / "deep/data/data").iterdir()))
    assert len(parts(tmp_path / "deep")[0]) == 1


@each(
    "names",
    [
        ["train.py", "test.py", "model.py"],
        ["train.py", "validation.py", "book.txt"],
        ["train.txt", "more.txt"],
        ["a.txt", "test.txt", "validation.txt"],
    ],
)
def test_other_folders_are_one_heap(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path, names)
    assert {path.name for path in open_source(str(tmp_path)).files} == set(names)
    train, held_out = parts(tmp_path)
    assert sorted(train + held_out) == sorted(names)


def test_the_fingerprint_of_a_pair_is_what_it_was(tmp_path: Path) -> None:
    write(tmp_path, ["train.txt", "validation.txt", "README.md"])
    lines = [f"{part} text {hashlib.sha256(f'{part}.txt'.encode()).hexdigest()}" for part in ("train", "validation")]
    wanted = hashlib.sha256("\n".join(["geonorm source 1", *lines]).encode()).hexdigest()
    assert open_source(str(tmp_path)).fingerprint == wanted


def test_text_is_not_validated_on_itself(tmp_path: Path) -> None:
    for part in ("train", "validation"):
        write(tmp_path, [f"{part}/{part}.txt"])
        (tmp_path / part / "__init__.py").write_text("")  # no text, in both
    assert len(open_source(str(tmp_path)).files) == 4
    for part in ("train", "validation"):
        (tmp_path / part / "copy.txt").write_text("the same text")
    copy, of = tmp_path / "validation/copy.txt", tmp_path / "train/copy.txt"
    with pytest.raises(DataError, match=rf"^{copy}: its content is that of {of}, training text: take one of them out"):
        open_source(str(tmp_path))


# --- datasets of the Hub, without network ------------------------------------------------------------


def fake_hub(monkeypatch, splits, sha="abc"):
    def load_dataset(name, config, streaming, revision):
        assert (name, streaming, revision) == ("owner/name", True, sha)
        return splits

    api = SimpleNamespace(dataset_info=lambda name, timeout: SimpleNamespace(sha=sha))
    libraries = {
        "datasets": SimpleNamespace(load_dataset=load_dataset),
        "huggingface_hub": SimpleNamespace(HfApi=lambda: api),
    }
    monkeypatch.setattr(source_module, "import_extra", lambda module, what, extra: libraries[module])


def test_hub_dataset(monkeypatch):
    rows = [{"text": text, "url": "x"} for text in DOCUMENTS]
    fake_hub(monkeypatch, {"train": rows[:30], "validation": rows[30:]})
    source = open_source("owner/name:config")
    assert list(source.documents("train")) == DOCUMENTS[:30]
    assert list(source.documents("validation")) == DOCUMENTS[30:]
    assert source.files == ()
    assert source.own_split
    fake_hub(monkeypatch, {"train": [{"text": None, "url": "x"}, *rows]}, sha="newer")
    newer = open_source("owner/name:config")
    assert sorted([*newer.documents("train"), *newer.documents("validation")]) == sorted(DOCUMENTS)
    assert not newer.own_split
    assert len({source.fingerprint, newer.fingerprint, open_source("owner/name").fingerprint}) == 3


def test_columns_of_a_hub_dataset_are_known_before_its_rows(monkeypatch):
    class Rows(list):
        def __init__(self, rows, **types):
            super().__init__(rows)
            self.features = {name: SimpleNamespace(dtype=kind) for name, kind in types.items()}

    rows = [{"title": "a", "body": None, "n": 1}]
    fake_hub(monkeypatch, {"train": Rows(rows, title="string", body="large_string", n="int64")})
    with pytest.raises(DataError, match=r"owner/name: several string fields .*\(fields: title, body, n\)"):
        open_source("owner/name")
    rows = [{"body": None, "n": 1}, *({"body": text, "n": 2} for text in DOCUMENTS)]
    rows = Rows(rows, body="large_string", n="int64")
    fake_hub(monkeypatch, {"train": rows, "validation": rows})
    assert list(open_source("owner/name").documents("train")) == DOCUMENTS


def test_hub_failure_is_one_line(monkeypatch):
    fake_hub(monkeypatch, {})
    with pytest.raises(DataError, match=r"no file or corpus 'owner/name', .*\(KeyError.*network") as caught:
        open_source("owner/name")
    assert "\n" not in str(caught.value)
