"""Token caches: the text is all there, work is done once, concurrent or damaged caches are no trouble."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

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


def write_nothing(monkeypatch):
    monkeypatch.setattr(tokens, "write_tokens", lambda *args: pytest.fail("written again"))


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
    assert cut.sha256 == whole.sha256
    assert np.array_equal(cut.train, whole.train)


def test_text_without_line_breaks_is_cut_anywhere(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("🌍x" * 2000, encoding="utf-8")
    monkeypatch.setattr(tokens, "PIECE", 64)
    data = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path)
    assert ByteTokenizer().decode([*data.train.tolist(), *data.validation.tolist()]) == "🌍x" * 2000


def test_second_time_reads_the_cache(path, tmp_path, monkeypatch):
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"
    first = tokenize(open_source(str(path)), ByteTokenizer())
    write_nothing(monkeypatch)
    second = tokenize(open_source(str(path)), ByteTokenizer())
    assert second.sha256 == first.sha256
    assert np.array_equal(second.validation, first.validation)


def test_other_source_or_tokenizer_is_other_data(path, tmp_path):
    source = open_source(str(path))
    other = tmp_path / "b.jsonl"
    other.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[1:]))
    pytest.importorskip("tokenizers")
    bpe = load_tokenizer("bpe", source, 270, tmp_path)
    hashes = {
        tokenize(source, ByteTokenizer(), tmp_path).sha256,
        tokenize(open_source(str(other)), ByteTokenizer(), tmp_path).sha256,
        tokenize(source, bpe, tmp_path).sha256,
    }
    assert len(hashes) == 3


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


PREPARE = """
import sys
from pathlib import Path
from geonorm.lab.data import open_source, tokenize
from geonorm.lab.data.tokenizer import ByteTokenizer
source = open_source(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
data = tokenize(source, ByteTokenizer(), Path(sys.argv[2]))
print(data.sha256, len(data.train))
"""


def test_processes_that_prepare_at_once_all_succeed(path, tmp_path):
    command = [sys.executable, "-c", PREPARE, str(path), str(tmp_path / "cache")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(Path(tokens.__file__).parents[3])}
    with ExitStack() as stack:
        workers = [stack.enter_context(subprocess.Popen(command, env=environment, **pipes)) for _ in range(3)]
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 3
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        results = [worker.communicate()[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0, 0]
    data = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path / "cache")
    assert set(results) == {f"{data.sha256} {len(data.train)}\n"}
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1


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

    monkeypatch.setattr(tokens, "write_tokens", full)
    with pytest.raises(DataError, match="no space left on device"):
        tokenize(source, ByteTokenizer(), tmp_path / "cache")
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


def test_empty_split_is_one_line(path, tmp_path):
    source = open_source(str(path))
    object.__setattr__(source, "splits", {"train": lambda: iter(DOCUMENTS), "validation": lambda: iter(())})
    with pytest.raises(DataError, match="no validation text"):
        tokenize(source, ByteTokenizer(), tmp_path)


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
