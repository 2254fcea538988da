"""Token caches: the text is all there, work is done once, concurrent or damaged caches are no trouble."""

import json
import os
import shutil
import time

import numpy as np
import pytest

from geonorm.errors import DataError
from geonorm.lab.data import inspect_source, load_tokenizer, open_source, tokenize, tokens
from geonorm.lab.data.cache import cache_folder
from geonorm.lab.data.tokenizer import ByteTokenizer, FileTokenizer

from ...rows import each

DOCUMENTS = [f"{n} Grüße, 世界 🌍\n\n  indented\n" * (n + 1) for n in range(60)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    return path


@pytest.mark.parametrize("spec", ["byte", "bpe"])
def test_tokens_are_the_documents_with_eos(path, tmp_path, spec):
    if spec == "bpe":
        pytest.importorskip("tokenizers")
    source = open_source(str(path))
    tokenizer = load_tokenizer(spec, source, 280, tmp_path / "cache")
    calls = []
    data = tokenize(source, tokenizer, tmp_path / "cache", progress=lambda *args: calls.append(args))
    for split, array in (("train", data.train), ("validation", data.validation)):
        documents = list(source.documents(split))
        ends = np.flatnonzero(array == tokenizer.eos)
        pieces = np.split(array, ends + 1)
        assert [tokenizer.decode(piece.tolist()) for piece in pieces] == [*documents, ""]
        assert array.dtype == np.uint16
        assert not array.flags.writeable
        size = len("".join(documents).encode())
        assert data.token_bytes[array].sum() == size
        counts = {"documents": len(documents), "tokens": len(array), "bytes": size}
        assert data.meta["splits"][split] == counts
        inspected = inspect_source(source, tokenizer)["splits"][split]
        assert {key: inspected[key] for key in counts} == counts
        assert inspected["bytes_per_token"] == pytest.approx(size / len(array))
        assert (split, len(array)) in calls
    assert data.meta["source_sha256"] == source.fingerprint
    assert data.meta["tokenizer_sha256"] == tokenizer.fingerprint
    assert data.sha256 == data.meta["sha256"]


def test_long_documents_are_cut_without_changing_a_token(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    path = tmp_path / "a.txt"
    path.write_text("a line of words, then\nanother\n\n    indented   more\n" * 400)
    source = open_source(str(path))
    tokenizer = load_tokenizer("bpe", source, 285, tmp_path)
    (text,) = source.documents("train")
    whole = tokenize(source, tokenizer, tmp_path / "whole")
    assert np.array_equal(whole.train[:-1], tokenizer.encode([text])[0])
    monkeypatch.setattr(tokens, "PIECE", 500)
    monkeypatch.setattr(tokens, "BATCH", 1300)
    cut = tokenize(source, tokenizer, tmp_path / "cut")
    assert cut.sha256 == whole.sha256 and np.array_equal(cut.train, whole.train)
    path.write_text("🌍x" * 2000, encoding="utf-8")  # without line breaks it is cut anywhere
    monkeypatch.setattr(tokens, "PIECE", 64)
    data = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path)
    assert ByteTokenizer().decode([*data.train.tolist(), *data.validation.tolist()]) == "🌍x" * 2000


def test_tokens_are_read_from_the_cache_of_the_same_source_and_tokenizer(path, tmp_path, monkeypatch):
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"
    source = open_source(str(path))
    pytest.importorskip("tokenizers")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[1:]))
    other, bpe = open_source(str(tmp_path / "b.jsonl")), load_tokenizer("bpe", source, 270)
    cases = [(source, ByteTokenizer()), (other, ByteTokenizer()), (source, bpe)]
    first = [tokenize(*case) for case in cases]
    assert len({data.sha256 for data in first}) == 3
    monkeypatch.setattr(tokens, "write_tokens", None)
    for case, data in zip(cases, first, strict=True):
        again = tokenize(*case)
        assert again.sha256 == data.sha256 and np.array_equal(again.validation, data.validation)


def test_two_ends_of_one_vocabulary_are_other_data(path, tmp_path):
    """tokenizer.json does not say which token ends a document where none has a usual name: folders beside it do."""
    library = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "<stop>": 1, "<over>": 2, "a": 3}
    text = library.Tokenizer(library.models.WordLevel(vocabulary, "[UNK]")).to_str()
    source = open_source(str(path))
    for end in ("<stop>", "<over>"):
        tokenizer = FileTokenizer("own", text, end)
        data = tokenize(source, tokenizer, tmp_path)
        assert tokenizer.own_end == end and data.train[-1] == tokenizer.eos == vocabulary[end]


@each("damage", ["truncate", "meta", "remove", "change"])
def test_damaged_cache_is_rebuilt(path, tmp_path, damage):
    source = open_source(str(path))
    first = tokenize(source, ByteTokenizer(), tmp_path)
    expected = first.validation.copy()
    (file,) = tmp_path.glob("tokens/*/validation.bin")
    if damage == "truncate":
        os.truncate(file, 10)
    elif damage == "meta":
        (file.parent / "meta.json").write_text("{")
    elif damage == "change":  # of the right size
        time.sleep(0.02)
        with file.open("r+b") as opened:
            opened.write(bytes([first.validation[0] ^ 1]))
    else:
        file.unlink()
    again = tokenize(source, ByteTokenizer(), tmp_path)
    assert again.sha256 == first.sha256
    assert np.array_equal(again.validation, expected)
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_a_copied_cache_is_hashed_once_and_kept(path, tmp_path, monkeypatch):
    source = open_source(str(path))
    data = tokenize(source, ByteTokenizer(), tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second", copy_function=shutil.copyfile)
    (file,) = tmp_path.glob("second/tokens/*/train.bin")
    os.utime(meta := file.parent / "meta.json", (0, 0))  # copied before the files that it describes
    monkeypatch.setattr("geonorm.lab.data.tokens.write_tokens", None)
    assert tokenize(source, ByteTokenizer(), tmp_path / "second").sha256 == data.sha256
    assert meta.stat().st_mtime_ns >= file.stat().st_mtime_ns


def test_the_slower_of_two_keeps_the_result_of_the_faster(path, tmp_path, monkeypatch):
    source, write = open_source(str(path)), tokens.write_tokens

    def overtaken(*args):
        monkeypatch.setattr(tokens, "write_tokens", write)
        tokenize(source, ByteTokenizer(), tmp_path)
        write(*args)

    monkeypatch.setattr(tokens, "write_tokens", overtaken)
    slower = tokenize(source, ByteTokenizer(), tmp_path)
    assert len(slower.train) == slower.meta["splits"]["train"]["tokens"]
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_interrupted_preparation_leaves_nothing(path, tmp_path):
    def interrupt(split, count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize(open_source(str(path)), ByteTokenizer(), tmp_path, progress=interrupt)
    assert list((tmp_path / "tokens").iterdir()) == []


def test_unwritable_cache_is_one_line(path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    source = open_source(str(path))
    with pytest.raises(DataError, match=r"cannot write to the cache .* set GEONORM_CACHE") as caught:
        tokenize(source, ByteTokenizer(), tmp_path / "file" / "cache")
    assert "\n" not in str(caught.value)

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(DataError, match="no space left on device"):
        patch.setattr(tokens, "write_tokens", full)
        tokenize(source, ByteTokenizer(), tmp_path / "cache")
    object.__setattr__(source, "splits", {"train": lambda: iter(DOCUMENTS), "validation": lambda: iter(())})
    with pytest.raises(DataError, match="no validation text"):
        tokenize(source, ByteTokenizer(), tmp_path / "cache")
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


def test_large_vocabularies_take_four_bytes(path, tmp_path):
    class Wide(ByteTokenizer):
        def __init__(self):
            super().__init__()
            self.vocab_size, self.eos = 70_000, 69_999

        def encode(self, texts):
            return [np.full(len(text), 66_000, dtype=self.dtype) for text in texts]

        def token_bytes(self):
            return np.ones(self.vocab_size, dtype=np.int64)

    data = tokenize(open_source(str(path)), Wide(), tmp_path)
    assert data.train.dtype == np.uint32
    assert set(np.unique(data.train)) == {66_000, 69_999}
