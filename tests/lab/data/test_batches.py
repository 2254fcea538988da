"""Batches are a function of (seed, step): any rank layout and any starting point give the same rows; masks belong to
their windows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from geonorm.errors import DataError
from geonorm.lab.data import load_tokenizer, open_source
from geonorm.lab.data.batches import TURN, Batches, MaskedTokens, NextToken, pick_objective, validation_batches
from geonorm.lab.data.tokenizer import ByteTokenizer
from geonorm.lab.data.tokens import TokenFiles
from geonorm.models.decoder import IGNORED

from ...rows import each

TOKENS = np.arange(1000, dtype=np.uint16)


@given(
    per_rank=st.integers(1, 6),
    context=st.integers(1, 9),
    seed=st.integers(0, 5),
    step=st.integers(0, 500),
    world=st.sampled_from([1, 2, 3, 5, 7]),
)
@settings(deadline=None, max_examples=60)
def test_any_world_size_gives_the_same_rows(per_rank, context, seed, step, world):
    size = per_rank * world
    inputs, targets = Batches(TOKENS, size, context, seed).at(step)
    assert inputs.shape == targets.shape == (size, context)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    others = {"contiguous": [range(rank * per_rank, (rank + 1) * per_rank) for rank in range(world)]}
    others["strided"] = [slice(rank, None, world) for rank in range(world)]
    again = Batches(TOKENS, size, context, seed)
    again.at(step + 7)  # the order of calls does not matter
    for name, rows in others.items():
        for part, whole in zip(
            zip(*(again.at(step, rows=chosen) for chosen in rows), strict=True), (inputs, targets), strict=True
        ):
            joined = torch.cat(part) if name == "contiguous" else torch.stack(part, dim=1).flatten(0, 1)
            assert torch.equal(joined, whole)


@each("size", [1, 7, 33, 99])
def test_every_block_once_per_epoch(size):
    context, blocks = 10, 99  # 1000 tokens: the last 9 lack a target for a whole block
    batches = Batches(TOKENS, size, context, seed=3)
    assert batches.blocks == [blocks]
    steps = -(-3 * blocks // size)
    starts = torch.cat([batches.at(step)[0][:, 0] for step in range(steps)])[: 3 * blocks]
    epochs = starts.reshape(3, blocks)
    assert torch.equal(epochs.sort(dim=1).values, (torch.arange(blocks) * context).expand(3, blocks))
    assert not torch.equal(epochs[0], epochs[1])


def test_seeds_give_other_orders_and_never_change():
    first = {seed: Batches(TOKENS, 6, 100, seed).at(0)[0][:, 0].tolist() for seed in range(4)}
    assert len({tuple(order) for order in first.values()}) == 4
    # written down once: recorded runs rely on the order
    assert Batches(TOKENS, 6, 100, seed=0).at(0)[0][:, 0].tolist() == [0, 200, 100, 800, 500, 400]
    assert Batches(TOKENS, 6, 100, seed=3).at(4)[0][:, 0].tolist() == [500, 0, 700, 500, 700, 300]


def test_a_mixture_is_drawn_by_weights_from_texts_without_repetition():
    """Shares in the first 2,000 windows to sampling error, over a turn to rounding; any rows, from any step on."""
    texts = [np.arange(first, first + 10 * size + 1) for first, size in ((0, 50), (10_000, 700), (20_000, 90))]
    tokens = TokenFiles(texts, (3.0, 4.5, 1.0))
    assert len(tokens) == 8403 and tokens[495:505].tolist() == [*range(495, 501), *range(10_000, 10_004)]
    shares = np.array([3, 4.5, 1]) / 8.5
    batches = Batches(tokens, 500, 10, seed=1)
    rows = torch.cat([batches.at(step)[0] for step in range(4)])
    counts = np.bincount(rows[:, 0].numpy() // 10_000)
    assert (abs(counts - 2000 * shares) < 4 * np.sqrt(2000 * shares * (1 - shares))).all()
    places = [batches.place(sample) for sample in range(TURN + 3000)]
    turn = [id(text) for text, _ in places[:TURN]]
    assert all(abs(turn.count(id(text)) - TURN * share) < 1 for text, share in zip(texts, shares, strict=True))
    for text, size in zip(texts, (50, 700, 90), strict=True):  # each block once in an epoch of its text
        drawn = np.array([block for other, block in places if other is text])
        epochs = drawn[: len(drawn) // size * size].reshape(-1, size)
        assert (np.sort(epochs, axis=1) == np.arange(size)).all()
    assert torch.equal(Batches(tokens, 500, 10, seed=1).at(3, slice(7, 9))[0], rows[1507:1509])
    assert not torch.equal(Batches(tokens, 500, 10, seed=2).at(0)[0], rows[:500])
    twins = Batches(TokenFiles([texts[0], texts[0] + 1], (1.0, 1.0)), 2, 10, seed=1)
    one, two = ([n for text, n in map(twins.place, range(200)) if text is each][:50] for each in twins.texts)
    assert one != two, "texts of one length have orders of their own"


def test_too_little_data_is_one_line():
    Batches(TOKENS[:21], 2, 10, seed=0)
    for tokens, size, message in ((20, 2, "20 tokens give 1 windows of 10 but a batch needs 2"), (0, 1, "0 windows")):
        with pytest.raises(DataError, match=message) as caught:
            Batches(TOKENS[:tokens], size, 10, seed=0)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="part 2 of the mixture does not fill one window of 10 tokens"):
        Batches(TokenFiles([TOKENS, TOKENS[:10]], (1.0, 1.0)), 2, 10, seed=0)
    with pytest.raises(DataError, match="do not fill one window"):
        next(validation_batches(TOKENS[:10], 1, 10))


@given(st.integers(1, 8), st.integers(1, 60), st.none() | st.integers(1, 1200))
@settings(deadline=None, max_examples=60)
def test_validation_windows_are_fixed_ordered_and_do_not_overlap(size, context, limit):
    batches = list(validation_batches(TOKENS, size, context, limit))
    inputs, targets = (torch.cat([batch[side] for batch in batches]) for side in (0, 1))
    count, blocks = len(inputs), 999 // context
    assert inputs[:, 0].tolist() == [place * blocks // count * context for place in range(count)], "spread evenly"
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(context)) and torch.equal(targets, inputs + 1)
    assert all(len(batch[0]) == size for batch in batches[:-1])
    assert count == (blocks if limit is None else min(blocks, max(1, limit // context)))
    again = list(validation_batches(TOKENS, size, context, limit))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, again, strict=True))


# --- masked tokens ----------------------------------------------------------------------------------

END, HIDDEN, SIZE = 98, 99, 100
MASKED = MaskedTokens(HIDDEN, END, SIZE)
LONG = np.arange(40_001, dtype=np.uint16) * 7 % 97


def test_the_share_of_every_window_and_what_becomes_of_it() -> None:
    ids, targets = Batches(LONG, 400, 100, seed=3, objective=MASKED).at(0)
    plain, _ = Batches(LONG, 400, 100, seed=3).at(0)
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
    batches = Batches(LONG[:801], 4, 100, seed=0, objective=MASKED)
    whole = batches.at(5)
    for part in (slice(0, 2), slice(2, 4), slice(1, None, 2)):
        found = Batches(LONG[:801], 4, 100, seed=0, objective=MASKED).at(5, part)
        assert all(torch.equal(a, b[part]) for a, b in zip(found, whole, strict=True))
    windows, numbers = np.tile(LONG[:101].astype(np.int64), (3, 1)), [0, 1, 2**40]
    first, again, other = (MASKED.pairs(windows, numbers, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert len({tuple(row.tolist()) for row in first}) == 3


def test_bits_are_what_they_always_were() -> None:
    """A run that is resumed under another numpy masks what it would have masked."""
    ids, targets = (part[0] for part in MASKED.pairs(np.arange(21)[None], [7], seed=5))
    assert targets[targets != IGNORED].tolist() == [1, 8, 14] and ids[[1, 8, 14]].tolist() == [99, 99, 99]
    ((_, held_out),) = validation_batches(np.arange(21), 1, 20, objective=MASKED)
    assert held_out[held_out != IGNORED].tolist() == [0, 8, 14]


def test_validation_masks_belong_to_their_windows() -> None:
    """Whatever the size of the batch and however little of the text is read."""
    whole = torch.cat([targets for _, targets in validation_batches(LONG, 7, 100, objective=MASKED)])
    again = torch.cat([targets for _, targets in validation_batches(LONG, 3, 100, objective=MASKED)])
    part = torch.cat([targets for _, targets in validation_batches(LONG, 3, 100, 4000, objective=MASKED)])
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
    (tmp_path / "tokenizer.json").write_text(found.json, "utf-8")
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
    with pytest.raises(DataError, match="tokenizer 'byte' has no mask token"):
        pick_objective("mlm", ByteTokenizer())
    assert pick_objective("causal", ByteTokenizer()) == NextToken()
    with pytest.raises(DataError, match=r"tokenizer has 258 ids .*: set --model.vocab_size 258"):
        load_tokenizer("byte", source, 257, mask=True)
