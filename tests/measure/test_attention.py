"""Attention to the first token, likeness of depths, clamped tokens, spread by norms: planted, with nulls."""

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
from geonorm.measure.layers import likeness
from geonorm.measure.metrics import pool_spreads
from geonorm.measure.observe import watch_calls
from geonorm.measure.subject import Subject

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def watched(run: Callable[[], Any], mask: Tensor | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    with WatchAttention(lambda *one: found.append(one), lambda batch, keys: first_places(mask, batch, keys)):
        run()
    return found


@pytest.mark.parametrize("mask", ["causal", "none", "bool", "added", "window"])
@pytest.mark.parametrize("size", [1 << 24, 600])
def test_attention_to_the_first_token_is_that_of_the_weights(
    mask: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of scaled_dot_product_attention, with grouped keys and a few queries at a time, and of a softmax over scores."""
    monkeypatch.setattr("geonorm.measure.attention.SCORES", size)
    q, k, v = draw(2, 4, 9, 8), draw(2, 2, 9, 8, seed=1), draw(2, 2, 9, 8, seed=2)
    allowed = torch.ones(9, 9, dtype=torch.bool) if mask == "none" else torch.ones(9, 9, dtype=torch.bool).tril()
    allowed = allowed.triu(-3) if mask == "window" else allowed
    added = torch.zeros(9, 9, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)
    given = {"bool": allowed[None, None], "window": allowed, "added": added[None, None]}.get(mask)
    found = watched(
        lambda: F.scaled_dot_product_attention(
            q, k, v, attn_mask=given, is_causal=mask == "causal", scale=0.5, enable_gqa=True
        )
    )
    scores = q @ k.repeat_interleave(2, 1).mT * 0.5 + added * (mask != "none")
    eager = watched(lambda: F.softmax(scores, dim=-1))
    wanted = weights(scores)[..., 0]
    ((total, seen, peak),) = found
    torch.testing.assert_close(total, wanted.float(), rtol=1e-5, atol=1e-6, check_dtype=False)
    assert torch.equal(seen, (allowed.sum(-1) * allowed[:, 0]).expand(2, 9))
    torch.testing.assert_close(eager[0][0], wanted.float(), check_dtype=False)
    assert torch.equal(eager[0][1], seen)
    for each in (peak, eager[0][2]):
        torch.testing.assert_close(each, scores.amax(-1).float(), check_dtype=False)


def test_the_largest_score_is_of_every_token_that_is_none_of_padding() -> None:
    """In a window the largest may be of a query that no longer sees the first token."""
    measure = AttentionMeasure()
    mass, peak = torch.zeros(1, 2, 4), torch.tensor([[[1.0, 2.0, 7.0, 9.0], [0.0, 3.0, 4.0, 5.0]]])
    seen, real = torch.tensor([[1, 2, 0, 0]]), torch.tensor([[1, 1, 1, 0]])
    measure.add(mass, seen, peak, counted_queries(real, torch.tensor([0]), seen), real)
    assert measure.row()["attn_logit"] == 7.0


@pytest.mark.parametrize(("preference", "window"), [(0.0, None), (60.0, None), (0.0, 4)])
def test_a_planted_attention_sink_in_a_decoder(preference: float, window: int | None) -> None:
    """Keys of nothing: attention is even, which is the null. A key of the first token alone: all attention. Tokens that
    do not see the first are not asked."""
    torch.manual_seed(0)
    shape = DecoderConfig(layers=2, width=32, heads=4, vocab_size=32, context=16, positions="none", bias=True)
    model = Decoder(replace(shape, window=window))
    ids = torch.randint(1, 32, (3, 12))
    ids[:, 0] = 0
    with torch.no_grad():
        model.embed.weight[:, 0] = 0
        model.embed.weight[0] = F.one_hot(torch.tensor(0), 32).float()
        block = model.blocks[0].attn.branch
        block.k.weight.zero_(), block.q.weight.zero_(), block.k.bias.zero_()
        block.q.bias.fill_(1.0)
        block.k.weight[:, 0] = preference
    subject = Subject(model)
    subject.measure([ids[:2], ids[2:]])
    row, mlp = subject.capture.rows()[:2]
    seeing = range(2, 1 + (window or 12))
    null = sum(1 / i for i in seeing) / len(seeing)
    assert row["attn_first_null"] == pytest.approx(null)
    assert row["attn_first"] == pytest.approx(1.0 if preference else null, rel=1e-5)
    assert row["attn_first_head"] == pytest.approx(row["attn_first"], rel=1e-5)
    assert row["attn_logit"] == pytest.approx(preference * (32 * 8) ** 0.5, rel=1e-4)  # one-hot of length sqrt(32)
    assert mlp["attn_first"] is None and mlp["attn_first_null"] is None and mlp["attn_logit"] is None


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


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_takes_no_part_in_the_attention_to_the_first_token(side: str, tiny_model: Tiny) -> None:
    model = tiny_model("llama")[0]
    ids = torch.randint(3, 60, (1, 9), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(9) < 5) if side == "right" else (torch.arange(9) >= 4)
    alone, padded = Subject(model), Subject(model)
    alone.measure([ids[:, mask]])
    places = (mask[None].long().cumsum(1) - 1).clamp(min=0)
    padded.measure([{"input_ids": ids, "attention_mask": mask[None].long(), "position_ids": places}])
    for one, other in zip(alone.capture.rows(), padded.capture.rows(), strict=True):
        for key in ("attn_first", "attn_first_null", "attn_logit", "radius"):
            assert one[key] == (None if other[key] is None else pytest.approx(other[key], rel=1e-4)), key
        assert (one["attn_first"] is None) == (one["kind"] == "mlp")


def test_padding_of_one_shape_in_both_stacks(tiny_model: Tiny) -> None:
    """Each stack's attention begins where its own mask does, at other places for the encoder than for the decoder."""
    model = tiny_model("t5")[0]
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(2))
    masks = torch.ones(2, 2, 9).long()
    masks[0, :, :4], masks[1, :, :2] = 0, 0
    alone, padded = Subject(model), Subject(model)
    alone.measure([{"input_ids": ids[:, 4:], "decoder_input_ids": ids[:, 2:]}])
    names = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")
    padded.measure([dict(zip(names, (ids, ids, *masks), strict=True))])
    for one, other in zip(alone.capture.rows(), padded.capture.rows(), strict=True):
        for key in ("attn_first", "attn_first_null", "attn_logit"):
            assert one[key] == (None if other[key] is None else pytest.approx(other[key], rel=1e-4)), key
        assert (one["attn_first"] is None) == (one["kind"] != "attn")


def test_cka_and_cosine_of_planted_streams() -> None:
    """A rotation and a scale leave CKA at 1 and take the cosine; streams without anything in common have 0 of both,
    even where dimensions outnumber tokens, and where the plain CKA would be near 1."""
    x = draw(64, 512)
    turn = torch.linalg.qr(draw(512, 512, seed=1))[0]
    found = {(row["first"], row["second"]): row for row in likeness([x, 3 * x @ turn, draw(64, 512, seed=2), 2 * x])}
    assert found[0, 1]["cka"] == pytest.approx(1) and abs(found[0, 1]["cos"]) < 0.06
    assert found[0, 3]["cka"] == pytest.approx(1) and found[0, 3]["cos"] == pytest.approx(1)
    assert abs(found[0, 2]["cka"]) < 0.1 and abs(found[0, 2]["cos"]) < 0.02
    shared = draw(400, 4, seed=3)
    one, other = (torch.cat([shared, 0.1 * draw(400, 4, seed=seed)], 1) for seed in (4, 5))
    assert likeness([one, other])[0]["cka"] > 0.98
    noise = [likeness([draw(32, 256, seed=s), draw(32, 256, seed=100 + s)])[0]["cka"] for s in range(40)]
    assert abs(sum(noise) / 40) < 0.02
    assert likeness([x[:3], x[:3]])[0]["cka"] is None
    assert likeness([x, torch.full_like(x, torch.nan)])[0] == {"first": 0, "second": 1, "cos": None, "cka": None}


def test_depths_are_compared_on_the_same_tokens(tiny_model: Tiny) -> None:
    """Against the hidden states themselves, whole, in two batches, one padded."""
    model, _ = tiny_model("llama")
    ids = torch.randint(3, 60, (5, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[4, 6:] = 0
    subject = Subject(model)
    subject.measure([ids[:3], {"input_ids": ids[3:], "attention_mask": mask[3:]}])
    states: list[list[Tensor]] = []
    with torch.no_grad():
        for part in (slice(0, 3), slice(3, 5)):
            ends: dict[int, Tensor] = {}

            def keep(k: int, _: Tensor, y: Tensor, ends: dict[int, Tensor] = ends) -> None:
                ends[k] = y

            with watch_calls(dict(enumerate(model.model.layers)), keep):
                out = model(ids[part], attention_mask=mask[part], output_hidden_states=True)
            states.append([end[mask[part].bool()] for end in (out.hidden_states[0], *ends.values())])
    whole = likeness([torch.cat(pair) for pair in zip(*states, strict=True)])
    found = subject.capture.layer_rows()
    assert len(found) == len(whole)
    for row, wanted in zip(found, whole, strict=True):
        assert row["cos"] == pytest.approx(wanted["cos"], abs=1e-5)
        assert row["cka"] == pytest.approx(wanted["cka"], abs=1e-4)


@pytest.mark.parametrize(("angle", "share"), [("pi/4", 0.0), ("0.0001", 1.0)])
def test_the_clamped_share_of_a_run_of_ours(angle: str, share: float) -> None:
    torch.manual_seed(0)
    scheme = f"geonorm(max_angle={angle})"
    model = Decoder(DecoderConfig(scheme=scheme, layers=2, width=32, heads=4, vocab_size=32, context=16))
    with torch.no_grad():
        for block in model.blocks:
            block.attn.branch.o.weight.mul_(0.01), block.mlp.branch.down.weight.mul_(0.01)
    subject = Subject(model)
    subject.measure([torch.randint(0, 32, (3, 12))])
    assert [row["clamped"] for row in subject.capture.rows()] == [share] * 4
    plain = Subject(Decoder(DecoderConfig(scheme="pre", layers=1, width=32, heads=4, vocab_size=32, context=16)))
    plain.measure([torch.randint(0, 32, (3, 12))])
    assert [row["clamped"] for row in plain.capture.rows()] == [None, None]


@pytest.mark.parametrize("batch", [3, 1])
def test_half_of_the_tokens_are_clamped_by_construction(batch: int) -> None:
    """MLPs answer tokens with a positive first entry by a long update and all others by none."""
    torch.manual_seed(0)
    model = Decoder(
        DecoderConfig("geonorm", layers=2, width=32, heads=4, vocab_size=32, context=16, mlp="gelu", positions="none")
    )
    with torch.no_grad():
        model.embed.weight[:, 0] = torch.tensor([4.0, -4.0]).repeat(16)  # by the parity of the token
        for block in model.blocks:
            block.attn.branch.o.weight.zero_(), block.mlp.branch.up.weight.zero_(), block.mlp.branch.down.weight.zero_()
            block.mlp.branch.up.weight[:, 0] = 100.0
            block.mlp.branch.down.weight[1] = 1.0
    ids = torch.arange(36).reshape(3, 12) % 32
    subject = Subject(model)
    subject.measure(list(ids.split(batch)))
    assert [row["clamped"] for row in subject.capture.rows()] == [0.0, 0.5, 0.0, 0.5]
    subject = Subject(model)
    subject.measure([torch.tensor([[0, 2, 4, 1], [1, 3, 5, 7]])])
    assert [row["clamped"] for row in subject.capture.rows()] == [0.0, 0.375, 0.0, 0.375]


def test_spread_before_and_after_norms_is_pooled() -> None:
    """Geometric means; a norm behind which all lengths are one has no factor."""
    row = {"kind": "attn", "norm_before": 10.0, "norm_after": 5.0}
    rows = [
        row | {"norm_before_std": 4.0, "norm_after_std": 0.1},
        row | {"norm_before_std": 1.0, "norm_after_std": 0.1},
        row | {"norm_before_std": 1.0, "norm_after_std": 1e-7},
        row | {"kind": None, "norm_before_std": 9.0, "norm_after_std": 1.0},
    ]
    found = pool_spreads(rows)
    assert found == pytest.approx({"norms": 2, "before": 2.0, "after": 0.1, "factor": 20.0, "low": 10.0, "high": 40.0})
    assert pool_spreads(rows[2:]) is None and pool_spreads([]) is None


@pytest.mark.parametrize("scheme", ["mhc", "attnres", "siamese", "post", "prores(geonorm)", "nag", "mix(post, pre)"])
def test_streams_of_every_kind_are_probed(scheme: str) -> None:
    """One stream or several, with a ceiling or without: each site has its rows, each depth its likeness."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(scheme=scheme, layers=3, width=32, heads=4, vocab_size=32, context=16))
    subject = Subject(model)
    subject.measure([torch.randint(0, 32, (3, 12))])
    rows, layers = subject.capture.rows(), subject.capture.layer_rows()
    assert len(rows) == 6 and [(row["first"], row["second"]) for row in layers][-1] == (2, 3)
    assert all(row["radius"] > 0 for row in rows)
    assert all(row["attn_first"] is not None for row in rows if row["kind"] == "attn")
    assert all(row["clamped"] is None or 0 <= row["clamped"] <= 1 for row in rows)
