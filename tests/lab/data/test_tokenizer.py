"""Tokenizers: text survives, byte counts are exact, files are read back, mismatches are one line."""

import gzip
import json
import lzma

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from geonorm.errors import DataError
from geonorm.lab.data import load_tokenizer, open_source
from geonorm.lab.data.tokenizer import BYTE_JSON, ByteTokenizer, FileTokenizer

from ...rows import each

WORDS = "the stream moves on the sphere and the branch proposes an update; 世界 🌍 naïve façade\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "a.txt"
    path.write_text(WORDS * 200, encoding="utf-8")
    return open_source(str(path))


@pytest.fixture(scope="module")
def bpe(source, tmp_path_factory):
    pytest.importorskip("tokenizers")
    return load_tokenizer("bpe", source, 300, tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=["byte", "bpe"])
def tokenizer(request, bpe):
    return bpe if request.param == "bpe" else ByteTokenizer()


@given(text=st.text(max_size=200) | st.sampled_from([WORDS, "👩‍👩‍👧 漢字 \r\n\t  x<|endoftext|>"]))
@settings(deadline=None, max_examples=80)
def test_text_survives_and_bytes_add_up(bpe, text):
    for tokenizer in (ByteTokenizer(), bpe):
        ids = tokenizer.encode([text])[0]
        assert tokenizer.decode(ids.tolist()) == text
        assert tokenizer.token_bytes()[ids].sum() == len(text.encode())
        assert tokenizer.eos not in ids.tolist()


def test_own_bpe_is_deterministic_and_cached(bpe, source, tmp_path, monkeypatch):
    assert (bpe.vocab_size, bpe.name) == (300, "bpe-300")
    assert len(bpe.encode([WORDS])[0]) < 0.6 * len(WORDS.encode())
    assert load_tokenizer("bpe", source, 300, tmp_path).fingerprint == bpe.fingerprint
    (file,) = tmp_path.rglob("tokenizer.json")
    for damage in (file.read_text()[:1000], file.read_text().replace('"type"', '"type" ')):  # is made anew
        file.write_text(damage)
        assert load_tokenizer("bpe", source, 300, tmp_path).fingerprint == bpe.fingerprint
        assert file.read_text() != damage
    monkeypatch.setattr("geonorm.lab.data.tokenizer.train_bpe", lambda *args: pytest.fail("trained again"))
    assert load_tokenizer("bpe", source, 300, tmp_path).fingerprint == bpe.fingerprint
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"sha256", "tokenizer.json"}


@each("end, sees", [("abab ", True), ("xyzxyz ", False)])
def test_own_bpe_sees_only_train_text(tmp_path, end, sees):
    pytest.importorskip("tokenizers")
    (tmp_path / "train.txt").write_text("abab " * 400)
    (tmp_path / "validation.txt").write_text("xyzxyz " * 4000)
    tokenizer = load_tokenizer("bpe", open_source(str(tmp_path)), 260, tmp_path / "cache")
    assert (len(tokenizer.encode([end])[0]) < len(end)) == sees


@each("compress, suffix", [(bytes, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_save_and_load(tokenizer, source, tmp_path, compress, suffix):
    path = tmp_path / f"tokenizer.json{suffix}"
    path.write_bytes(compress(tokenizer.json.encode()))
    loaded = load_tokenizer(str(path), source, 1000, tmp_path)
    assert type(loaded) is type(tokenizer)
    for name in ("fingerprint", "vocab_size", "eos"):
        assert getattr(loaded, name) == getattr(tokenizer, name)
    assert np.array_equal(loaded.encode([WORDS])[0], tokenizer.encode([WORDS])[0])


def test_saved_byte_tokenizer_means_the_same_to_the_library():
    pytest.importorskip("tokenizers")
    ours, theirs = ByteTokenizer(), FileTokenizer("byte", BYTE_JSON)
    text = WORDS + "".join(map(chr, range(300))) + "<|endoftext|>"
    assert np.array_equal(ours.encode([text])[0], theirs.encode([text])[0])
    assert theirs.decode(ours.encode([text])[0].tolist()) == text
    assert np.array_equal(ours.token_bytes(), theirs.token_bytes())
    assert (ours.vocab_size, ours.eos, ours.unknown) == (theirs.vocab_size, theirs.eos, theirs.unknown)


def test_files_that_cut_fill_up_or_add_tokens_do_not(bpe, tmp_path, source):
    library = pytest.importorskip("tokenizers")
    odd, end = library.Tokenizer.from_str(bpe.json), "<|endoftext|>"
    odd.enable_truncation(3)
    odd.enable_padding(length=64, pad_token=end)
    odd.post_processor = library.processors.TemplateProcessing(f"{end} $A", special_tokens=[(end, 0)])
    odd.save(str(path := tmp_path / "odd.json"))
    assert len(odd.encode(WORDS).ids) == 64
    assert np.array_equal(load_tokenizer(str(path), source, 300, tmp_path).encode([WORDS])[0], bpe.encode([WORDS])[0])


def saved(path, model, pieces=None):
    """A file with a tokenizer of the library, which ends texts with </s>."""
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(model)
    if pieces:
        tokenizer.pre_tokenizer, tokenizer.decoder = pieces.pre_tokenizers.Metaspace(), pieces.decoders.Metaspace()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(path))
    return str(path)


def test_a_new_token_never_has_the_id_of_another(tmp_path, source):
    library = pytest.importorskip("tokenizers")
    words, model = {"</s>": 0, "a": 1, "b": 2, "c": 3}, library.models.WordLevel
    dense, holed = (saved(tmp_path / str(d), model({**words, "d": d}, unk_token="a")) for d in (4, 5))
    tokenizer = load_tokenizer(dense, source, 100, tmp_path, mask=True)
    assert (tokenizer.mask, tokenizer.unknown) == (5, 1)
    with pytest.raises(DataError, match="would get the id 5 of another token, as its ids are not 0 to 4"):
        load_tokenizer(holed, source, 100, tmp_path, mask=True)


def test_bytes_of_a_tokenizer_that_is_not_byte_level(tmp_path, source):
    library = pytest.importorskip("tokenizers")
    tokens = ["<unk>", "</s>", "<0xE4>", "▁the", "▁", "sphere", "é"]
    model = library.models.Unigram([(token, -1.0) for token in tokens], 0, byte_fallback=True)
    loaded = load_tokenizer(saved(tmp_path / "meta.json", model, library), source, 100, tmp_path)
    assert loaded.token_bytes().tolist()[1:] == [0, 1, 4, 1, 6, 2] and loaded.unknown == 0


def test_mismatches_are_one_line(bpe, source, tmp_path):
    no_end = json.loads(BYTE_JSON) | {"added_tokens": []}
    del no_end["model"]["vocab"]["<|endoftext|>"]
    contents = {"t.json": bpe.json, "broken.json": "{", "foreign.json": '{"a": 1}', "no-end.json": json.dumps(no_end)}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "cut.json.xz").write_bytes(lzma.compress(bpe.json.encode())[:100])
    cases = [
        ("byte", 256, "tokenizer has 257 ids but the model's vocabulary is 256: set --model.vocab_size 257"),
        (tmp_path / "t.json", 299, "has 300 ids but .* is 299: set --model.vocab_size 300"),
        ("bpe", 100, "set --model.vocab_size 257"),
        ("bpe", 5000, r"gives \d+ BPE ids, not 5000: .* or give more text"),
        ("bytes", 300, "no tokenizer 'bytes': did you mean 'byte'"),
        ("nothing.json", 300, "no tokenizer 'nothing.json': give byte, bpe or"),
        (tmp_path, 300, "no tokenizer '.*/tokenizer.json'"),
        *((tmp_path / f"{name}.json", 300, "not a tokenizer.json") for name in ("broken", "foreign")),
        (tmp_path / "cut.json.xz", 300, "broken compression"),
        (tmp_path / "no-end.json", 300, "no end-of-document token"),
    ]
    for spec, size, message in cases:
        with pytest.raises(DataError, match=message) as caught:
            load_tokenizer(str(spec), source, size, tmp_path / "cache")
        assert "\n" not in str(caught.value)
    assert load_tokenizer("byte", source, 512).vocab_size == 257


def test_a_tokenizer_of_the_hub_by_name(bpe, source, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "tokenizer.json").write_text(bpe.json, "utf-8")
    calls = []

    def download(*what, etag_timeout):
        calls.append(what)
        return str(tmp_path / "tokenizer.json")

    def fail(*what, **how):
        raise ConnectionError("no route\nto host")

    def patch(cached, info, fetch):
        monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *what: cached)
        monkeypatch.setattr(hub.HfApi, "model_info", info)
        monkeypatch.setattr(hub, "hf_hub_download", fetch)

    for arguments in (
        (None, lambda api, name, timeout: None, download),
        (str(tmp_path / "tokenizer.json"), None, None),  # what is here already needs no network
    ):
        patch(*arguments)
        tokenizer = load_tokenizer("openai-community/gpt2", source, 300)
        assert (tokenizer.name, tokenizer.fingerprint) == ("gpt2", bpe.fingerprint)
    assert calls == [("openai-community/gpt2", "tokenizer.json")]
    patch(None, fail, None)  # a download would go on trying
    message = "no tokenizer 'owner/name' here, and the Hugging Face Hub gave none .*: check the name and the network"
    cases = {"owner/name": message}
    for path in ("owner/name.json", "./owner/name", "/owner/name", "runs/owner/name"):  # the Hub is not asked
        cases[path] = "give byte, bpe or the path of a tokenizer"
    for spec, message in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            load_tokenizer(spec, source, 300)
        assert "\n" not in str(caught.value)
