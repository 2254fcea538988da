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


def test_shapes_and_types(tokenizer):
    first, second = tokenizer.encode(["ab", ""])
    assert first.dtype == np.uint16
    assert (first.ndim, second.shape) == (1, (0,))
    lengths = tokenizer.token_bytes()
    assert lengths.shape == (tokenizer.vocab_size,)
    assert lengths.dtype == np.int64
    assert lengths[tokenizer.eos] == 0
    assert (np.delete(lengths, tokenizer.eos) > 0).all()
    assert tokenizer.decode([tokenizer.eos]) == ""


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


def test_own_bpe_sees_only_train_text(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "train.txt").write_text("abab " * 400)
    (tmp_path / "validation.txt").write_text("xyzxyz " * 4000)
    tokenizer = load_tokenizer("bpe", open_source(str(tmp_path)), 260, tmp_path / "cache")
    assert len(tokenizer.encode(["xyzxyz"])[0]) == 6
    assert len(tokenizer.encode(["abab"])[0]) < 4


@each("suffix", ["", ".gz", ".xz"])
def test_save_and_load(tokenizer, source, tmp_path, suffix):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    data = path.read_bytes()
    path = tmp_path / f"tokenizer.json{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](data))
    loaded = load_tokenizer(str(path), source, 1000, tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.vocab_size, loaded.eos) == (tokenizer.vocab_size, tokenizer.eos)
    assert np.array_equal(loaded.encode([WORDS])[0], tokenizer.encode([WORDS])[0])


def test_saved_byte_tokenizer_means_the_same_to_the_library():
    pytest.importorskip("tokenizers")
    ours, theirs = ByteTokenizer(), FileTokenizer("byte", BYTE_JSON)
    text = WORDS + "".join(map(chr, range(300))) + "<|endoftext|>"
    assert np.array_equal(ours.encode([text])[0], theirs.encode([text])[0])
    assert theirs.decode(ours.encode([text])[0].tolist()) == text
    assert np.array_equal(ours.token_bytes(), theirs.token_bytes())
    assert (ours.vocab_size, ours.eos) == (theirs.vocab_size, theirs.eos)


def test_files_that_cut_fill_up_or_add_tokens_do_not(bpe, tmp_path, source):
    content = json.loads(bpe.json)
    content["truncation"] = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    content["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing", "single": [end, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [end],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }  # fmt: skip
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(content))
    odd = load_tokenizer(str(path), source, 300, tmp_path)
    assert np.array_equal(odd.encode([WORDS])[0], bpe.encode([WORDS])[0])


@each("end", [4, 5])
def test_a_new_token_never_has_the_id_of_another(tmp_path, source, end):
    library = pytest.importorskip("tokenizers")
    vocabulary = {"</s>": 0, "a": 1, "b": 2, "c": 3, "d": end}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(path := str(tmp_path / "holes.json"))
    if end == 4:
        assert load_tokenizer(path, source, 100, tmp_path, mask=True).mask == 5
        return
    with pytest.raises(DataError, match="would get the id 5 of another token, as its ids are not 0 to 4"):
        load_tokenizer(path, source, 100, tmp_path, mask=True)


def test_bytes_of_a_tokenizer_that_is_not_byte_level(tmp_path, source):
    library = pytest.importorskip("tokenizers")
    tokens = ["<unk>", "</s>", "<0xE4>", "▁the", "▁", "sphere", "é"]
    model = library.models.Unigram([(token, -1.0) for token in tokens], 0, byte_fallback=True)
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace()
    tokenizer.decoder = library.decoders.Metaspace()
    tokenizer.add_special_tokens(["</s>"])
    path = tmp_path / "meta.json"
    tokenizer.save(str(path))
    loaded = load_tokenizer(str(path), source, 100, tmp_path)
    assert dict(zip(tokens[1:], loaded.token_bytes().tolist()[1:], strict=True)) == {
        "</s>": 0, "<0xE4>": 1, "▁the": 4, "▁": 1, "sphere": 6, "é": 2,
    }  # fmt: skip


def test_mismatches_are_one_line(bpe, source, tmp_path):
    bpe.save(tmp_path / "t.json")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "foreign.json").write_text('{"a": 1}')
    (tmp_path / "cut.json.xz").write_bytes(lzma.compress(bpe.json.encode())[:100])
    no_end = json.loads(BYTE_JSON)
    no_end["added_tokens"] = []
    del no_end["model"]["vocab"]["<|endoftext|>"]
    (tmp_path / "no-end.json").write_text(json.dumps(no_end))
    cases = [
        ("byte", 256, "tokenizer has 257 ids but the model's vocabulary is 256: set --model.vocab_size 257"),
        (str(tmp_path / "t.json"), 299, "has 300 ids but .* is 299: set --model.vocab_size 300"),
        ("bpe", 100, "at least 257 ids"),
        ("bpe", 5000, r"too little text for 5000 BPE ids \(it gives \d+\)"),
        ("bytes", 300, "no tokenizer 'bytes': did you mean 'byte'"),
        ("nothing.json", 300, "no tokenizer 'nothing.json': give byte, bpe or"),
        (str(tmp_path), 300, "tokenizer.json|regular file"),
        (str(tmp_path / "broken.json"), 300, "not a tokenizer.json"),
        (str(tmp_path / "foreign.json"), 300, "not a tokenizer.json"),
        (str(tmp_path / "cut.json.xz"), 300, "broken compression"),
        (str(tmp_path / "no-end.json"), 300, "no end-of-document token"),
    ]
    for spec, size, message in cases:
        with pytest.raises(DataError, match=message) as caught:
            load_tokenizer(spec, source, size, tmp_path / "cache")
        assert "\n" not in str(caught.value)
    assert load_tokenizer("byte", source, 512).vocab_size == 257


def test_a_tokenizer_of_the_hub_by_name(bpe, source, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    bpe.save(tmp_path / "tokenizer.json")
    asked = []

    def download(*what, etag_timeout):
        asked.append(what)
        return str(tmp_path / "tokenizer.json")

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *what: None)
    monkeypatch.setattr(hub.HfApi, "model_info", lambda api, name, timeout: None)
    found = load_tokenizer("openai-community/gpt2", source, 300)
    assert asked == [("openai-community/gpt2", "tokenizer.json")]
    assert (found.name, found.fingerprint) == ("gpt2", bpe.fingerprint)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *what: str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(hub.HfApi, "model_info", None)  # what is here already needs no network
    assert load_tokenizer("openai-community/gpt2", source, 300).fingerprint == bpe.fingerprint and len(asked) == 1


def test_a_hub_out_of_reach_is_one_line(source, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def fail(*what, **how):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(hub.HfApi, "model_info", fail)
    monkeypatch.setattr(hub, "hf_hub_download", None)  # which would go on trying
    with pytest.raises(DataError, match="no tokenizer 'owner/name' here, and the Hugging Face Hub gave none") as caught:
        load_tokenizer("owner/name", source, 300)
    assert "check the name and the network" in str(caught.value) and "\n" not in str(caught.value)
    for path in ("owner/name.json", "./owner/name", "/owner/name", "runs/owner/name"):  # the Hub is not asked
        with pytest.raises(DataError, match="give byte, bpe or the path of a tokenizer"):
            load_tokenizer(path, source, 300)
