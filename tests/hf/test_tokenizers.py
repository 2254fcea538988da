"""The tokenizer of an exported folder: what training saw, and nothing around it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

from geonorm.hf.export import fast_tokenizer
from geonorm.lab.data import NO_TEXT, load_tokenizer


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
