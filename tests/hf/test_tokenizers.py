"""The tokenizer of an exported folder: what training saw, and nothing around it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from geonorm.hf.export import fast_tokenizer
from geonorm.lab.data import NO_TEXT, load_tokenizer


@pytest.mark.parametrize("name", ["byte", "gpt2.tokenizer.json.xz", "gpt-neox-olmo-dolma-v1_5.tokenizer.json.xz"])
def test_tokenizers_are_fast_ones(name: str) -> None:
    """That of bytes, and published ones where they are at hand."""
    path = Path(os.environ.get("GEONORM_DATA", "nowhere")) / "tokenizers" / name
    if name != "byte" and not path.exists():
        pytest.skip("needs the tokenizers in $GEONORM_DATA")
    ours = load_tokenizer("byte", NO_TEXT, 257) if name == "byte" else load_tokenizer(str(path), NO_TEXT, 60000)
    theirs = fast_tokenizer(ours.json, ours.eos, 1024)
    text = "Once upon a time, in 1984, there were 3 naïve <|endofte>\t\n  ☃ models.\n\tx = y"
    ids = theirs(text, add_special_tokens=False).input_ids
    assert ids == ours.encode([text])[0].tolist() and theirs.decode(ids) == text
    assert theirs.eos_token_id == ours.eos
    if name == "byte":
        assert theirs(text).input_ids == list(text.encode()) and ours.eos == 256


@pytest.mark.parametrize("mask", [None, 257])
def test_what_a_published_tokenizer_puts_before_texts_is_left_out(mask: int | None) -> None:
    """Training encodes without it, so that it was never seen."""
    tokenizer = json.loads(load_tokenizer("byte", NO_TEXT, 257).json)
    first = {**tokenizer["added_tokens"][0], "id": 257, "content": "<|first|>"}
    tokenizer["added_tokens"].append(first)
    before = {"SpecialToken": {"id": "<|first|>", "type_id": 0}}
    text, other = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "single": [before, text], "pair": [before, text, other],
        "special_tokens": {"<|first|>": {"id": "<|first|>", "ids": [257], "tokens": ["<|first|>"]}},
    }  # fmt: skip
    found = fast_tokenizer(json.dumps(tokenizer), 256, 64, mask=mask)
    assert found("ab").input_ids == [97, 98] and found("a", "b").input_ids == [97, 98]
