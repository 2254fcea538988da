"""Attention to the first token and its largest score, planted, with nulls; share of clamped updates by construction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from geonorm import Decoder, DecoderConfig
from geonorm.measure.attention import AttentionMeasure, WatchAttention, counted_queries, first_places
from geonorm.measure.capture import Capture
from geonorm.measure.probe import ProbedModel

from ..conftest import CASES
from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]
SHAPE = DecoderConfig(layers=2, width=32, heads=4, vocab_size=32, context=16)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_of(model: Any, *batches: Any) -> list[dict[str, Any]]:
    probed = ProbedModel(model)
    probed.measure(batches)
    return probed.capture.rows()


def watched(run: Callable[[], Any]) -> tuple[Tensor, Tensor, Tensor]:
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    with WatchAttention(lambda *one: calls.append(one), lambda batch, keys: first_places(None, batch, keys)):
        run()
    (call,) = calls
    return call


@each("mask", ["causal", "none", "bool", "added", "window"])
@each("size", [1 << 24, 600])
def test_attention_to_the_first_token_is_that_of_the_weights(
    mask: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of scaled_dot_product_attention, with grouped keys and a few queries at a time, and of a softmax over scores."""
    monkeypatch.setattr("geonorm.measure.attention.SCORES", size)
    q, k, v = draw(2, 4, 9, 8), draw(2, 2, 9, 8, seed=1), draw(2, 2, 9, 8, seed=2)
    allowed = torch.ones(9, 9, dtype=torch.bool) if mask == "none" else torch.ones(9, 9, dtype=torch.bool).tril()
    allowed = allowed.triu(-3) if mask == "window" else allowed
    added = torch.zeros(9, 9, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)
    attn_mask = {"bool": allowed[None, None], "window": allowed, "added": added[None, None]}.get(mask)
    settings: dict[str, Any] = {"is_causal": mask == "causal", "scale": 0.5, "enable_gqa": True}
    product = watched(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **settings))
    scores = q @ k.repeat_interleave(2, 1).mT * 0.5 + added * (mask != "none")
    for mass, seen, peak in (product, watched(lambda: F.softmax(scores, dim=-1))):
        wanted = scores.softmax(-1)[..., 0].float()
        torch.testing.assert_close(mass, wanted, rtol=1e-5, atol=1e-6, check_dtype=False)
        assert torch.equal(seen, (allowed.sum(-1) * allowed[:, 0]).expand(2, 9))
        torch.testing.assert_close(peak, scores.amax(-1).float(), check_dtype=False)


def test_the_largest_score_is_of_every_token_that_is_none_of_padding() -> None:
    """In a window the largest may be of a query that no longer sees the first token."""
    measure = AttentionMeasure()
    mass, peak = torch.zeros(1, 2, 4), torch.tensor([[[1.0, 2.0, 7.0, 9.0], [0.0, 3.0, 4.0, 5.0]]])
    seen, real = torch.tensor([[1, 2, 0, 0]]), torch.tensor([[1, 1, 1, 0]])
    measure.add(mass, seen, peak, counted_queries(real, torch.tensor([0]), seen), real)
    assert measure.row()["attn_logit"] == 7.0


@each("preference, window", [(0.0, None), (60.0, None), (0.0, 4)])
def test_a_planted_attention_sink_in_a_decoder(preference: float, window: int | None) -> None:
    """Keys of nothing: attention is even, which is the null. A key of the first token alone: all attention. Queries
    that do not see the first token do not count."""
    torch.manual_seed(0)
    model = Decoder(replace(SHAPE, positions="none", bias=True, window=window))
    ids = torch.randint(1, 32, (3, 12))
    ids[:, 0] = 0
    with torch.no_grad():
        model.embed.weight[:, 0] = 0
        model.embed.weight[0] = F.one_hot(torch.tensor(0), 32).float()
        branch = model.blocks[0].attn.branch
        branch.k.weight.zero_(), branch.q.weight.zero_(), branch.k.bias.zero_()
        branch.q.bias.fill_(1.0)
        branch.k.weight[:, 0] = preference
    row, mlp, *_ = rows_of(model, ids[:2], ids[2:])
    seeing = range(2, 1 + (window or 12))
    null = sum(1 / i for i in seeing) / len(seeing)
    assert row["attn_first_null"] == pytest.approx(null)
    assert row["attn_first"] == pytest.approx(1.0 if preference else null, rel=1e-5)
    assert row["attn_first_head"] == pytest.approx(row["attn_first"], rel=1e-5)
    assert row["attn_logit"] == pytest.approx(preference * (32 * 8) ** 0.5, rel=1e-4)  # one-hot of length sqrt(32)
    assert mlp["attn_first"] is None and mlp["attn_first_null"] is None and mlp["attn_logit"] is None


@each("family", CASES)
def test_every_family_has_its_attention_seen(family: str, tiny_model: Tiny) -> None:
    """Each attention once, between 0 and 1, with the null of its mask; cross-attention is another stream's."""
    model, inputs = tiny_model(family)
    capture = Capture(model)
    with torch.no_grad(), capture.watching():
        model(**inputs)
    for row in capture.rows():
        if row["kind"] in ("attn", "parallel"):
            assert 0 < row["attn_first"] <= row["attn_first_head"] <= 1, row["t"]
            assert 0 < row["attn_first_null"] < 1
        else:
            assert row["attn_first"] is None


@each("case", ["right", "left", "t5"])
def test_padding_takes_no_part_in_attention(case: str, tiny_model: Tiny) -> None:
    """Each stack's attention begins where its own mask does."""
    ids, mask = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(2)), torch.ones(2, 9).long()
    if case == "t5":
        mask[:, :4] = 0
        second = torch.ones(2, 9).long()
        second[:, :2] = 0
        alone = {"input_ids": ids[:, 4:], "decoder_input_ids": ids[:, 2:]}
        padded = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids, "decoder_attention_mask": second}
    else:
        real = (torch.arange(9) < 5) if case == "right" else (torch.arange(9) >= 4)
        mask *= real
        alone = {"input_ids": ids[:, real]}
        padded = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    model = tiny_model("t5" if case == "t5" else "llama")[0]
    for one, other in zip(rows_of(model, alone), rows_of(model, padded), strict=True):
        for key in ("attn_first", "attn_first_null", "attn_logit"):
            assert one[key] == (None if other[key] is None else pytest.approx(other[key], rel=1e-4)), key
        assert (one["attn_first"] is None) == (one["kind"] != "attn")


@each("batch", [3, 1])
def test_half_of_the_tokens_are_clamped_by_construction(batch: int) -> None:
    """MLPs answer tokens with a positive first entry by a long update and all others by none."""
    torch.manual_seed(0)
    model = Decoder(replace(SHAPE, scheme="geonorm", mlp="gelu", positions="none"))
    with torch.no_grad():
        model.embed.weight[:, 0] = torch.tensor([4.0, -4.0]).repeat(16)  # by the parity of the token
        for block in model.blocks:
            block.attn.branch.o.weight.zero_(), block.mlp.branch.up.weight.zero_(), block.mlp.branch.down.weight.zero_()
            block.mlp.branch.up.weight[:, 0] = 100.0
            block.mlp.branch.down.weight[1] = 1.0
    ids = torch.arange(36).reshape(3, 12) % 32
    assert [row["clamped"] for row in rows_of(model, *ids.split(batch))] == [0.0, 0.5, 0.0, 0.5]
    uneven = torch.tensor([[0, 2, 4, 1], [1, 3, 5, 7]])
    assert [row["clamped"] for row in rows_of(model, uneven)] == [0.0, 0.375, 0.0, 0.375]
    without_clamp = rows_of(Decoder(replace(SHAPE, scheme="pre")), ids)
    assert [row["clamped"] for row in without_clamp] == [None] * 4
