"""Masking is a function of (seed, number of the window): how many tokens, which, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from geonorm.errors import DataError
from geonorm.lab.data import load_tokenizer, open_source
from geonorm.lab.data.batches import Batches, MaskedTokens, NextToken, pick_objective, validation_batches
from geonorm.lab.data.tokenizer import MASK, ByteTokenizer
from geonorm.models.trunk import IGNORED

END, HIDDEN, SIZE = 98, 99, 100
MASKED = MaskedTokens(HIDDEN, END, SIZE)
TOKENS = np.arange(40_001, dtype=np.uint16) * 7 % 97


def test_the_share_of_every_window_and_what_becomes_of_it() -> None:
    ids, targets = Batches(TOKENS, 400, 100, seed=3, objective=MASKED).at(0)
    plain, _ = Batches(TOKENS, 400, 100, seed=3).at(0)
    chosen = targets != IGNORED
    assert (chosen.sum(1) == 15).all() and torch.equal(targets[chosen], plain[chosen])
    assert torch.equal(ids[~chosen], plain[~chosen])
    hidden, kept = ids[chosen] == HIDDEN, ids[chosen] == plain[chosen]
    # 6,000 draws: three standard deviations of a share are at most .016; one in 100 random tokens is the token itself
    assert hidden.float().mean().item() == pytest.approx(0.8 + 0.1 / SIZE, abs=0.016)
    assert kept.float().mean().item() == pytest.approx(0.1 + 0.1 / SIZE, abs=0.012)
    drawn = ids[chosen][~hidden & ~kept]
    assert len(drawn.unique()) == SIZE - 1 and drawn.min() == 0 and drawn.max() == END
    places = chosen.float().mean(0)
    assert places.min() > 0.08 and places.max() < 0.22, "every place is as likely as any other"


def test_ranks_steps_and_seeds() -> None:
    """Rows are what they are whoever asks for them; another step, seed or epoch masks other tokens."""
    batches = Batches(TOKENS[:801], 4, 100, seed=0, objective=MASKED)
    whole = batches.at(5)
    for part in (slice(0, 2), slice(2, 4), slice(1, None, 2)):
        found = Batches(TOKENS[:801], 4, 100, seed=0, objective=MASKED).at(5, part)
        assert all(torch.equal(a, b[part]) for a, b in zip(found, whole, strict=True))
    windows, numbers = np.tile(TOKENS[:101].astype(np.int64), (3, 1)), [0, 1, 2**40]
    first, again, other = (MASKED.pairs(windows, numbers, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert len({tuple(row.tolist()) for row in first}) == 3


def test_bits_are_what_they_always_were() -> None:
    """A run that is resumed under another numpy masks what it would have masked."""
    ids, targets = (part[0] for part in MASKED.pairs(np.arange(21)[None], [7], seed=5))
    assert targets[targets != IGNORED].tolist() == [1, 8, 14] and ids[[1, 8, 14]].tolist() == [99, 99, 99]


def test_validation_masks_belong_to_their_windows() -> None:
    """Whatever the size of the batch and however little of the text is read."""
    whole = torch.cat([targets for _, targets in validation_batches(TOKENS, 7, 100, objective=MASKED)])
    again = torch.cat([targets for _, targets in validation_batches(TOKENS, 3, 100, objective=MASKED)])
    part = torch.cat([targets for _, targets in validation_batches(TOKENS, 3, 100, 4000, objective=MASKED)])
    assert torch.equal(whole, again) and torch.equal(part, whole[::10])


def test_ends_of_documents_are_asked_for_last() -> None:
    windows = np.full((1, 21), END)
    windows[0, 4:6] = 1
    ids, targets = MASKED.pairs(windows, [0], seed=0)
    assert (targets != IGNORED).sum() == 3 and (targets[0, 4:6] == 1).all()
    assert ids.shape == (1, 20)
    short = MASKED.pairs(np.ones((2, 3), dtype=np.int64), [0, 1], seed=0)[1]
    assert ((short != IGNORED).sum(1) == 1).all(), "one at least"


@pytest.mark.parametrize("spec", ["byte", "bpe"])
def test_where_the_mask_token_comes_from(spec: str, tmp_path: Path) -> None:
    """Byte: one id more; an own BPE: one of its ids; text that spells it is text. What a run saves has it too."""
    pytest.importorskip("tokenizers")
    text = "the cat sat on the <|mask|> and the mat sat\n"
    (tmp_path / "a.txt").write_text(text * 300)
    source = open_source(str(tmp_path / "a.txt"))
    found = load_tokenizer(spec, source, 270, tmp_path, mask=True)
    assert found.mask == {"byte": 257, "bpe": 1}[spec] and found.vocab_size == {"byte": 258, "bpe": 270}[spec]
    ids = found.encode([text])[0].tolist()
    assert found.mask not in ids and found.decode(ids) == text and found.token_bytes()[found.mask] == 0
    found.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(str(tmp_path / "tokenizer.json"), source, 270, mask=True)
    assert (again.mask, again.eos, again.fingerprint) == (found.mask, found.eos, found.fingerprint)
    assert load_tokenizer(spec, source, 270, tmp_path).mask is None, "no run of the next token has one"


def test_a_file_with_a_mask_token_keeps_it(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    words = library.Tokenizer(library.models.WordLevel({"[SEP]": 0, "[MASK]": 1, "the": 2, "[UNK]": 3}, "[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("the the")
    source = open_source(str(tmp_path / "a.txt"))
    found = load_tokenizer(str(tmp_path / "tokenizer.json"), source, 4, mask=True)
    assert (found.mask, found.vocab_size) == (1, 4)
    with pytest.raises(DataError, match=r"tokenizer has 258 ids .*: set --model.vocab_size 258"):
        load_tokenizer("byte", source, 257, mask=True)
    with pytest.raises(DataError, match=r"needs at least 258 ids: set --model.vocab_size 258 or more, not 257"):
        load_tokenizer("bpe", source, 257, tmp_path, mask=True)


def test_objectives_by_name() -> None:
    tokenizer = ByteTokenizer()
    assert pick_objective("causal", tokenizer) == NextToken()
    with pytest.raises(DataError, match="tokenizer 'byte' has no mask token"):
        pick_objective("mlm", tokenizer)
    assert MASK == "<|mask|>"
