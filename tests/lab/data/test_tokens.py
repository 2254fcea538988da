"""Token caches: the text is all there, work is done once, concurrent or damaged caches are no trouble."""

import json
import os
import shutil
from unittest.mock import Mock

import numpy as np
import pytest

from geonorm.errors import DataError
from geonorm.lab.data import inspect_source, load_tokenizer, open_source, tokenize, tokens
from geonorm.lab.data.batches import Batches
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
    data = tokenize(source, tokenizer, tmp_path / "cache")
    for split, array in (("train", data.train), ("validation", data.validation)):
        documents = list(source.documents(split))
        array = np.asarray(array)
        pieces = np.split(array, np.flatnonzero(array == tokenizer.eos) + 1)
        assert [tokenizer.decode(piece.tolist()) for piece in pieces] == [*documents, ""]
        assert array.dtype == np.uint16
        size = len("".join(documents).encode())
        assert data.token_bytes[array].sum() == size
        counts = {"documents": len(documents), "tokens": len(array), "bytes": size}
        assert data.meta["splits"][split] == counts
        inspected = inspect_source(source)["splits"][split]
        assert {**inspected, "tokens": len(array)} == {**counts, "characters": len("".join(documents))}
    assert data.meta["source_sha256"] == source.fingerprint
    assert data.meta["tokenizer_sha256"] == tokenizer.fingerprint
    assert data.sha256 == data.meta["sha256"]


def test_long_documents_are_cut_without_changing_a_token(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    path = tmp_path / "a.txt"
    path.write_text("a line of words, then\nanother\n\n    indented   more\n" * 600)
    source = open_source(str(path))
    tokenizer = load_tokenizer("bpe", source, 285, tmp_path)
    (text,) = source.documents("train")
    whole = tokenize(source, tokenizer, tmp_path / "whole")
    assert np.array_equal(whole.train[:-1], tokenizer.encode([text])[0]) and len(whole.train) > 8200
    monkeypatch.setattr(tokens, "PIECE", 500)
    monkeypatch.setattr(tokens, "BATCH", 1300)
    cut = tokenize(source, tokenizer, tmp_path / "cut")
    assert cut.sha256 == whole.sha256 and np.array_equal(cut.train, whole.train)
    for part in (slice(0, 7), slice(8190, 8195), slice(5, 5), slice(-3, None)):  # a block has 8,192 tokens
        assert np.array_equal(whole.train[part], np.asarray(whole.train)[part])
    path.write_text("🌍x" * 2000, encoding="utf-8")  # without line breaks it is cut anywhere
    monkeypatch.setattr(tokens, "PIECE", 64)
    data = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path)
    assert ByteTokenizer().decode(np.concatenate([data.train, data.validation]).tolist()) == "🌍x" * 2000


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


def test_a_field_that_is_named_and_a_limit(tmp_path):
    records = [{"text": "no", "body": f"{n:099}"} for n in range(99)]
    (path := tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = open_source(str(path), "body")
    assert source.fingerprint != open_source(str(path)).fingerprint
    assert {len(text) for text in source.documents("train")} == {99}
    whole, part = (tokenize(source, ByteTokenizer(), tmp_path, limit=limit) for limit in (None, 250))
    assert len(part.train) == 300 < len(whole.train) and (part.train[:] == whole.train[:300]).all()
    with pytest.raises(DataError, match=r"a.jsonl:1: no text in a field 'lines'"):
        open_source(str(path), "lines")


def test_two_ends_of_one_vocabulary_are_other_data(path, tmp_path):
    """tokenizer.json does not say which token ends a document where none has a usual name: folders beside it do."""
    library = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "<stop>": 1, "<over>": 2, "a": 3}
    text = library.Tokenizer(library.models.WordLevel(vocabulary, "[UNK]")).to_str()
    for end in ("<stop>", "<over>"):
        tokenizer = FileTokenizer("own", text, end)
        tokenizer.unknown = -1
        data = tokenize(open_source(str(path)), tokenizer, tmp_path)
        assert tokenizer.own_end == end and np.asarray(data.train)[-1] == tokenizer.eos == vocabulary[end]


@each("damage", ["cut", "longer", "meta", "no sums", "remove", "pipe"])
def test_damaged_cache_is_rebuilt(path, tmp_path, damage):
    whole = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path)
    expected = np.asarray(whole.validation)
    (file,) = tmp_path.glob("tokens/*/validation.bin")
    acts = {
        "cut": lambda: os.truncate(file, 10),
        "longer": lambda: os.truncate(file, 10**5),
        "meta": lambda: (file.parent / "meta.json").write_text("{"),
        "no sums": file.with_suffix(".crc32").unlink,
        "remove": file.unlink,
        "pipe": lambda: (file.unlink(), os.mkfifo(file)),
    }
    acts[damage]()
    again = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path)
    assert again.sha256 == whole.sha256 and np.array_equal(again.validation, expected)
    assert len(list((tmp_path / "tokens").iterdir())) == 1


@each("damage", ["bit", "cut"])
def test_damage_is_seen_where_it_is_read(path, tmp_path, damage):
    """With the times of before, or while the file is open, where a memory map would die with SIGBUS."""
    source, times = open_source(str(path)), None
    data = tokenize(source, ByteTokenizer(), tmp_path)
    (file,) = tmp_path.glob("tokens/*/train.bin")
    times, place = file.stat(), file.stat().st_size - 100
    if damage == "cut":
        os.truncate(file, place)
    else:
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(bytes([opened.read(1)[0] ^ 1]))
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        data = tokenize(source, ByteTokenizer(), tmp_path)
    with pytest.raises(DataError, match=rf"^{file} is damaged at byte \d+: remove its folder") as caught:
        Batches(data.train, len(data.train) // 64, 64, seed=0).at(0)
    assert "\n" not in str(caught.value)
    shutil.rmtree(file.parent)
    assert np.asarray(tokenize(source, ByteTokenizer(), tmp_path).train).size == len(data.train)


@pytest.mark.parametrize("spec", ["byte", "bpe"])
def test_text_that_changes_while_it_is_read_is_not_stored(path, tmp_path, spec):
    """It would lie under the name of the text before for ever, and so would the BPE that was trained on it."""
    pytest.importorskip("tokenizers")
    source, before = open_source(str(path)), path.read_text()
    path.write_text(before.replace("indented", "changed!"))
    with pytest.raises(DataError, match=rf"^{path} has changed while it was read: start again"):
        tokenize(source, load_tokenizer(spec, source, 280, tmp_path), tmp_path)
    assert not any(path.is_file() for path in tmp_path.glob("*/*/*"))
    path.write_text(before)
    source = open_source(str(path))
    assert tokenize(source, load_tokenizer(spec, source, 280, tmp_path), tmp_path).sha256


def words(tmp_path, *known):
    """A tokenizer of words that loses spaces and knows few."""
    library = pytest.importorskip("tokenizers")
    vocabulary = {word: n for n, word in enumerate(["<|endoftext|>", "[UNK]", *known])}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "words.txt").write_text("the cat  sat " * 400)
    source = open_source(str(tmp_path / "words.txt"))
    return source, load_tokenizer(str(tmp_path / "words.json"), source, 9)


def test_bytes_are_those_of_the_text(tmp_path):
    """Not of what the tokenizer leaves of it."""
    source, tokenizer = words(tmp_path, "the", "cat", "sat")
    data = tokenize(source, tokenizer, tmp_path)
    counted = sum(data.token_bytes[np.asarray(part)].sum() for part in (data.train, data.validation))
    assert counted == pytest.approx(13 * 400) == sum(part["bytes"] for part in data.meta["splits"].values())
    assert data.token_bytes[[0, 2]] == pytest.approx([0, 4 * 13 / 12])


def test_a_mixture_has_the_tokens_and_the_bytes_of_its_parts(tmp_path, monkeypatch):
    """The own BPE sees of every text as much as its weight says, however long the first is."""
    first, tokenizer = words(tmp_path, "the", "cat", "sat")
    (other := tmp_path / "b:c.txt").write_text("the   cat " * 300)
    name = f"0.5*{tmp_path / 'words.txt'} + {other}"
    mixture, parts = open_source(name), [first, open_source(str(other))]
    data, alone = tokenize(mixture, tokenizer, tmp_path), [tokenize(part, tokenizer, tmp_path) for part in parts]
    for split in ("train", "validation"):
        ids = np.concatenate([getattr(part, split) for part in alone])
        assert np.array_equal(np.asarray(getattr(data, split)), ids)
    counted = sum(data.token_bytes[np.asarray(part)].sum() for part in (data.train, data.validation))
    assert counted == pytest.approx(13 * 400 + 10 * 300)
    heavier = tokenize(open_source(name.replace("0.5", "5")), tokenizer, tmp_path)
    assert data.sha256.split()[1:] == heavier.sha256.split()[1:] == [part.sha256 for part in alone]
    assert data.sha256 != heavier.sha256
    monkeypatch.setattr("geonorm.lab.data.tokenizer.BPE_CHARACTERS", 600)
    other.write_text("xyzxyz " * 300)
    bpe = load_tokenizer("bpe", open_source(name), 264, tmp_path)
    assert len(bpe.encode(["the cat"])[0]) < 7 and len(bpe.encode(["xyzxyz"])[0]) < 6
    rare = load_tokenizer("bpe", open_source(name.replace("0.5", "599")), 264, tmp_path)
    assert len(rare.encode(["xyzxyz"])[0]) == 6, "of 600 characters it has seen one of this text"
    np.save(tmp_path / "ids.npy", np.arange(99, dtype=np.uint16))
    for line, message in ((f"x*{other} + stdlib", "'x' is no weight"), (f"0*{other} + stdlib", "'0' is no weight"),
                          (f"{tmp_path / 'ids.npy'} + {other}", "text beside token ids")):  # fmt: skip
        with pytest.raises(DataError, match=message):
            open_source(line)


@each("stop", [1, 3])
def test_a_preparation_that_was_stopped_goes_on_from_its_shards(path, tmp_path, monkeypatch, stop):
    """But for one that is damaged; afterwards nothing is left of them."""
    monkeypatch.setattr(tokens, "BATCH", 5000)
    path.write_text("".join(json.dumps({"text": f"{n:0500}"}) + "\n" for n in range(60)))  # batches of one length
    encode, calls, last = ByteTokenizer.encode, [], [99]

    def stopped(tokenizer, texts):
        calls.append(texts)
        if len(calls) > last[0]:
            raise KeyboardInterrupt
        return encode(tokenizer, texts)

    monkeypatch.setattr(ByteTokenizer, "encode", stopped)
    whole = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path / "whole")
    count, last[0] = len(calls), len(calls) + stop
    with pytest.raises(KeyboardInterrupt):
        tokenize(open_source(str(path)), ByteTokenizer(), tmp_path)
    shards, last[0] = list((tmp_path / "shards").glob("*/*")), 99
    os.truncate(shards[0], 100)
    calls.clear()
    data = tokenize(open_source(str(path)), ByteTokenizer(), tmp_path)
    assert data.sha256 == whole.sha256 and not list((tmp_path / "shards").iterdir())
    assert len(shards) == stop and len(calls) == count - stop + 1


def test_a_tokenizer_that_knows_none_of_the_text_is_refused(tmp_path):
    """Its loss would be near 0."""
    source, tokenizer = words(tmp_path, "the", "sat")
    with pytest.raises(DataError, match="tokenizer 'words' has no text for 33% of the train tokens of words: give one"):
        tokenize(source, tokenizer, tmp_path)


@pytest.mark.parametrize("point", ["load_tokens", "write_tokens"])
def test_the_slower_of_two_keeps_the_result_of_the_faster(point, path, tmp_path, monkeypatch):
    """Which was made while the slower one looked whether there is one, or before it wrote its own."""
    source, late = open_source(str(path)), getattr(tokens, point)
    times = []

    def overtaken(*args):
        monkeypatch.setattr(tokens, point, late)
        tokenize(source, ByteTokenizer(), tmp_path)
        times.extend(folder.stat().st_mtime_ns for folder in (tmp_path / "tokens").iterdir())
        return None if point == "load_tokens" else late(*args)

    monkeypatch.setattr(tokens, point, overtaken)
    slower = tokenize(source, ByteTokenizer(), tmp_path)
    assert len(slower.train) == slower.meta["splits"]["train"]["tokens"]
    assert [folder.stat().st_mtime_ns in times for folder in (tmp_path / "tokens").iterdir()] == [True]


def test_what_cannot_be_stored_leaves_nothing(path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    source = open_source(str(path))
    with pytest.raises(DataError, match=r"^cannot write to the cache .* set GEONORM_CACHE.*$"):
        tokenize(source, ByteTokenizer(), tmp_path / "file" / "cache")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ByteTokenizer, "encode", Mock(side_effect=KeyboardInterrupt))
        tokenize(source, ByteTokenizer(), tmp_path / "cache")
    with monkeypatch.context() as patch, pytest.raises(DataError, match="No space left on device"):
        patch.setattr(tokens, "write_tokens", Mock(side_effect=OSError(28, "No space left on device")))
        tokenize(source, ByteTokenizer(), tmp_path / "cache")
    object.__setattr__(source, "splits", {"train": lambda: iter(DOCUMENTS), "validation": lambda: iter(())})
    with pytest.raises(DataError, match="no validation text"):
        tokenize(source, ByteTokenizer(), tmp_path / "cache")
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []
