"""Span corruption: how much is missing, where, that nothing is lost, and that it is a function of (seed, number)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geonorm.errors import DataError
from geonorm.lab.data import load_tokenizer, open_source
from geonorm.lab.data.batches import Batches, validation_batches
from geonorm.lab.data.objectives import SpanCorruption, count_spans, part, pick_objective
from geonorm.lab.data.tokenizer import SENTINEL, ByteTokenizer

END = 98
TOKENS = np.arange(40_001, dtype=np.uint16) * 7 % 97


def spans_of(context: int) -> SpanCorruption:
    _, spans = count_spans(context)
    return SpanCorruption(tuple(range(1000, 1000 + spans)), END)


def put_back(source: list[int], answer: list[int]) -> list[int]:
    """The window from what the encoder reads and what is to be answered."""
    spans: dict[int, list[int]] = {}
    for token in answer:
        if token >= 1000:
            spans[token] = current = []
        else:
            current.append(token)
    found: list[int] = []
    for token in source:
        found += spans.pop(token) if token >= 1000 else [token]
    assert not spans, "every span has its place"
    return found


@given(context=st.integers(2, 200), number=st.integers(0, 2**62), seed=st.integers(0, 2**63 - 1))
def test_source_and_answer_give_the_window_back(context: int, number: int, seed: int) -> None:
    objective, (missing, spans) = spans_of(context), count_spans(context)
    window = np.random.default_rng(number).integers(0, 97, (1, context + 1))
    (inputs,), (targets,) = (part.tolist() for part in objective.pairs(window, [number], seed))
    width = missing + spans + 1
    assert len(targets) == width and len(inputs) == context - missing + spans + 1 + width
    source, heard = inputs[:-width], inputs[-width:]
    assert heard == [END, *targets[:-1]] and source[-1] == targets[-1] == END
    assert put_back(source[:-1], targets[:-1]) == window[0, :-1].tolist()
    assert [token for token in source if token >= 1000] == [token for token in targets if token >= 1000]
    assert [token for token in targets if token >= 1000] == list(objective.sentinels)


@pytest.mark.parametrize(("context", "found"), [(512, (77, 26)), (128, (19, 6)), (16, (2, 1)), (2, (1, 1))])
def test_as_many_are_missing_as_in_t5(context: int, found: tuple[int, int]) -> None:
    """512 tokens of its length of 512: noise density .15, mean length 3."""
    assert count_spans(context) == found


def test_every_way_to_part_is_as_likely() -> None:
    generator = np.random.default_rng(0)
    drawn = [tuple(part(6, 3, generator.integers(0, 2**63, 6, dtype=np.uint64))) for _ in range(5000)]
    ways, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(ways) == 10 and (ways.sum(1) == 6).all() and ways.min() == 1
    # 5,000 draws of 10: a standard deviation of a count is 21
    assert abs(counts - 500).max() < 85


def test_ranks_steps_and_seeds() -> None:
    objective = spans_of(100)
    whole = Batches(TOKENS[:801], 4, 100, seed=0, objective=objective).at(5)
    for rows in (slice(0, 2), slice(1, None, 2)):
        found = Batches(TOKENS[:801], 4, 100, seed=0, objective=objective).at(5, rows)
        assert all(torch.equal(a, b[rows]) for a, b in zip(found, whole, strict=True))
    windows = np.tile(TOKENS[:101].astype(np.int64), (3, 1))
    first, again, other = (objective.pairs(windows, [0, 1, 2**40], seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert len({tuple(row.tolist()) for row in first}) == 3
    held = [torch.cat([t for _, t in validation_batches(TOKENS, size, 100, objective=objective)]) for size in (3, 7)]
    assert torch.equal(*held)


def test_bits_are_what_they_always_were() -> None:
    """A run that is resumed under another numpy leaves out what it would have left out."""
    inputs, _ = spans_of(40).pairs(np.arange(41)[None], [7], seed=5)
    assert inputs[0].tolist() == RECORDED


RECORDED = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    18,
    19,
    1000,
    22,
    23,
    24,
    25,
    26,
    27,
    28,
    29,
    30,
    31,
    32,
    33,
    34,
    35,
    1001,
    98,
    98,
    1000,
    20,
    21,
    1001,
    36,
    37,
    38,
    39,
]


def test_what_targets_are_about() -> None:
    """A sentinel is about the token behind it, so that it belongs to the document that this one stands in."""
    objective, window = spans_of(100), np.arange(100, 201)[None]
    (about,) = objective.about(window, [3]).tolist()
    (targets,) = objective.pairs(window, [3], 2**63)[1].tolist()
    for place, (token, found) in enumerate(zip(targets, about, strict=True)):
        assert found == (199 if token == END else about[place + 1] if token >= 1000 else token)


def test_sentinels_of_tokenizers(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"a line of words number {i} <extra_id_0>\n" for i in range(3000)))
    source = open_source(str(text))
    own = load_tokenizer("bpe", source, 300, tmp_path, sentinels=6)
    assert own.vocab_size == 300 and own.sentinels == (1, 2, 3, 4, 5, 6) and own.eos == 0
    assert not own.token_bytes()[list(own.sentinels)].any()
    assert not set(own.encode(["text that spells <extra_id_0>"])[0].tolist()) & set(own.sentinels)
    byte = load_tokenizer("byte", source, 263, sentinels=6)
    assert byte.sentinels == (257, 258, 259, 260, 261, 262) and byte.eos == 256
    assert byte.decode([257, *b"ab", 258]) == "ab"
    own.save(tmp_path / "own.json")
    assert load_tokenizer(str(tmp_path / "own.json"), source, 300).sentinels == own.sentinels
    more = load_tokenizer(str(tmp_path / "own.json"), source, 302, sentinels=8)
    assert more.sentinels == (*own.sentinels, 300, 301)
    with pytest.raises(DataError, match=r"tokenizer has 263 ids but the model's vocabulary is 262: set "):
        load_tokenizer("byte", source, 262, sentinels=6)
    objective = pick_objective("denoise", byte, 128)
    assert objective == SpanCorruption(byte.sentinels, 256) and SENTINEL.format(0) in byte.json
    with pytest.raises(DataError, match=r"tokenizer 'byte' has 0 sentinels \(<extra_id_0>, ...\): windows of 128 "):
        pick_objective("denoise", ByteTokenizer(), 128)
    with pytest.raises(DataError, match="a window of 1 tokens is too short"):
        count_spans(1)
