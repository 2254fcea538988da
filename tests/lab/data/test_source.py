"""Sources: what a name stands for, splits by document, fingerprints."""

import hashlib
import json
import lzma
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from geonorm.errors import DataError
from geonorm.lab.data import corpora, files, inspect_source, open_source, source as source_module, stdlib
from geonorm.lab.data.files import sha256_of
from geonorm.lab.data.source import hold_out

from ...rows import each
from .test_files import DOCUMENTS, both, jsonl


@pytest.fixture(autouse=True)
def no_corpora(monkeypatch):
    monkeypatch.delenv("GEONORM_DATA", raising=False)


def test_folder_reads_all_text_below_sorted(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.txt").write_text("hidden")
    (tmp_path / "b" / "two.md").write_text("two")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "c.json").write_text(json.dumps([{"text": "three"}, {"text": "four"}]))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\xff")
    source = open_source(str(tmp_path))
    assert [path.name for path in source.files] == ["a.txt", "two.md", "c.json", "empty.txt"]
    assert sorted("".join(both(source))) == sorted("fouronethreetwo")


def test_another_field_of_a_file_is_another_source(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one", "other": "two"}) + "\n")
    sources = [open_source(str(tmp_path / "a.jsonl"), field) for field in (None, "other")]
    assert sources[0].fingerprint != sources[1].fingerprint


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


def split(documents, fraction=0.05, one_text=False):
    parts = hold_out(lambda: iter(documents), fraction, one_text=one_text)
    return list(parts["train"]()), list(parts["validation"]())


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=60), st.floats(0.001, 0.2), st.randoms())
@settings(deadline=None, max_examples=60)
def test_split_is_by_document_or_by_ends_and_independent_of_order(documents, fraction, shuffler):
    train, validation = split(documents, fraction)
    total = sum(map(len, documents))
    held_out = sum(map(len, validation))
    assert sum(map(len, train)) + held_out == total and held_out <= 0.2 * total + len(documents) / 2
    assert sorted(train + validation) != sorted(documents) or not set(train) & set(validation)
    shuffler.shuffle(documents)
    again = split(documents, fraction)
    assert [sorted(part) for part in again] == [sorted(train), sorted(validation)]


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

    assert len(split([str(n) for n in range(4000)])[1]) == pytest.approx(200, abs=50)  # the share that is held out
    base = fingerprint("a.jsonl", jsonl())
    assert fingerprint("b.jsonl", jsonl()) == base and len(base) == 64
    assert len({base, fingerprint("c.jsonl", jsonl(DOCUMENTS[1:])), fingerprint("e.txt", jsonl())}) == 3
    assert fingerprint("a.csv", b"text\nx\n") != fingerprint("a.tsv", b"text\nx\n"), "they are read in two ways"


def test_the_hash_of_a_large_file_is_kept_until_it_is_touched(tmp_path, monkeypatch):
    """Also where the times of before are put back."""
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "LARGE", 10)
    (path := tmp_path / "a.txt").write_text("some text")
    path.write_text("other text")
    sums = [sha256_of(path)]
    assert not (tmp_path / "cache").exists(), "a change may follow at the same time"
    monkeypatch.setattr(files.time, "time", lambda: path.stat().st_ctime + 99)
    sums.append(sha256_of(path))
    times = path.stat()
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        sums.append(sha256_of(path))
    assert len(set(sums)) == 1
    path.write_text("third text")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert sha256_of(path) not in sums


def write(folder: Path, *names: str) -> None:
    """Each file holds its own name, as a record where it is of records."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text({".jsonl": json.dumps({"text": name}), ".csv": f"text\n{name}"}.get(path.suffix, name))


HUB = [f"data/train-0000{n}-of-00002.jsonl" for n in range(2)], ["data/validation-00000-of-00001.jsonl"]


@each(
    "train, held_out, others",
    [
        (["train-0.jsonl", "train-1.jsonl"], ["validation-0.jsonl"], []),
        (["Tiny-GPT4_train.txt"], ["Tiny-GPT4_Val.txt"], ["notes.txt"]),
        (["train/a.txt", "train/b.txt"], ["dev/c.txt"], ["test/d.txt"]),
        (["train.csv"], ["test.csv"], ["README.md"]),
        (["training-a.txt", "training-b.txt"], ["dev-a.txt"], []),
        (["train.jsonl", "train.txt"], ["validation.jsonl"], ["valid.txt"]),
        (*HUB, ["README.md", "data/test-00000-of-00001.jsonl"]),  # a dataset that was cloned from the Hub
        (["train.txt"], ["valid.txt"], [*HUB[0], *HUB[1]]),
        (["train.py", "test.py", "model.py"], [], []),  # from here on a heap
        (["book.txt", "train.py", "validation.py"], [], []),
        (["a.txt", "test.txt", "validation.txt"], [], []),
        (["data/data/train.txt", "data/data/valid.txt"], [], []),
    ],
)
def test_parts_are_known_by_their_names(
    tmp_path: Path, train: list[str], held_out: list[str], others: list[str]
) -> None:
    write(tmp_path, *train, *held_out, *others)
    source = open_source(str(tmp_path))
    assert source.own_split == bool(held_out)
    parts = [list(source.documents(split)) for split in ("train", "validation")]
    assert parts == [train, held_out] if held_out else sorted("".join(parts[0] + parts[1])) == sorted("".join(train))
    facts: dict[str, Any] = inspect_source(source)
    assert sorted(facts["files"]) == sorted(str(tmp_path / name) for name in [*train, *held_out])


def test_text_is_not_validated_on_itself(tmp_path: Path) -> None:
    write(tmp_path, "train/train.txt", "validation/validation.txt")
    for part in ("train", "validation"):
        (tmp_path / part / "__init__.py").write_text("")  # no text, in both
    assert len(open_source(str(tmp_path)).files) == 4
    for part in ("train", "validation"):
        (tmp_path / part / "copy.txt").write_text("the same text")
    copy, of = tmp_path / "validation/copy.txt", tmp_path / "train/copy.txt"
    with pytest.raises(DataError, match=rf"^{copy}: its content is that of {of}, training text: take one of them out"):
        open_source(str(tmp_path))
    with pytest.raises(DataError, match=rf"^{of} is in two sources of the mixture"):
        open_source(f"3*{of} + {tmp_path / 'train'}")


class Rows(list):
    """A streamed part, with the types of its columns where those are known."""

    def __init__(self, rows, **types):
        super().__init__(rows)
        self.features = {name: SimpleNamespace(dtype=kind) for name, kind in types.items()} or None


@pytest.fixture
def hub(monkeypatch):
    def fake(splits, sha="abc"):
        def load_dataset(name, config, streaming, revision):
            assert (name, streaming, revision) == ("owner/name", True, sha)
            return splits

        api = SimpleNamespace(dataset_info=lambda name, timeout: SimpleNamespace(sha=sha))
        libraries = {
            "datasets": SimpleNamespace(load_dataset=load_dataset),
            "huggingface_hub": SimpleNamespace(HfApi=lambda: api),
        }
        monkeypatch.setattr(source_module, "import_extra", lambda module, what, extra: libraries[module])

    return fake


def test_hub_dataset(hub):
    rows = [{"text": text, "url": "x"} for text in DOCUMENTS]
    hub({"train": Rows(rows[:30]), "validation": Rows(rows[30:])})
    source = open_source("owner/name:config")
    assert [list(source.documents(split)) for split in ("train", "validation")] == [DOCUMENTS[:30], DOCUMENTS[30:]]
    assert source.files == () and source.own_split
    hub({"train": Rows(rows)}, sha="newer")
    newer = open_source("owner/name:config")
    assert sorted(both(newer)) == sorted(DOCUMENTS) and not newer.own_split
    assert len({source.fingerprint, newer.fingerprint, open_source("owner/name").fingerprint}) == 3
    rows = [{"text": None, "n": 1}, *({"text": text, "n": 2} for text in DOCUMENTS)]
    hub(dict.fromkeys(("train", "validation"), Rows(rows, text="large_string", n="int64")))
    assert list(open_source("owner/name").documents("train")) == DOCUMENTS
    titles = Rows([{"title": "a", "body": None}], title="string", body="large_string")
    for splits, message in (
        ({"train": titles}, r"owner/name: no text in a field 'text' \(strings: title, body; all: title, body\)"),
        ({"train": Rows([{"n": 1}])}, r"owner/name: no text in a field 'text'"),
        ({}, r"no file or corpus 'owner/name', .*\(KeyError.*network"),
    ):
        hub(splits)
        with pytest.raises(DataError, match=message) as caught:
            both(open_source("owner/name"))
        assert "\n" not in str(caught.value)
