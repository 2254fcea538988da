"""Padding, and slots that nothing is written to, are not measured; stacks have masks of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig
from geonorm.errors import ConfigError
from geonorm.measure.capture import Capture, token_axis

from ..rows import each
from .test_capture import Tiny, watched


def test_padding_is_left_out(tiny_model: Tiny) -> None:
    """A batch with padding has the rows of its tokens: those of each sequence alone."""
    model, _ = tiny_model("llama")
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    padded = watched(Capture(model), masks={"decoder": mask}, input_ids=ids, attention_mask=mask)
    apart = Capture(model)
    for row, length in ((0, 9), (1, 5)):
        watched(apart, input_ids=ids[row : row + 1, :length])
    compare(padded.rows(), apart.rows())
    compare(padded.norm_rows(), apart.norm_rows())
    assert {row["tokens"] for row in padded.rows()} == {14}


@pytest.mark.parametrize("scheme", ["attnres", "hyper"])
def test_padding_of_several_streams(scheme: str) -> None:
    """Norms that read all streams of a token at once are measured of its streams, and of no padding."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(scheme=scheme, layers=2, width=24, heads=2, vocab_size=31, context=16))
    ids, mask = torch.randint(0, 31, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    padded = watched(Capture(model), ids, masks={"decoder": mask})
    apart = watched(watched(Capture(model), ids[:1]), ids[1:, :5])
    compare(padded.rows(), apart.rows())
    compare(padded.norm_rows(), apart.norm_rows())


@pytest.mark.parametrize("padded", [False, True])
def test_slots_that_nothing_is_written_to_are_not_averaged(padded: bool) -> None:
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(scheme="attnres", layers=1, width=24, heads=2, vocab_size=31, context=16))
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = not padded
    seen: list[Tensor] = []
    key = model.get_submodule("exit.own.recall.key")
    key.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    capture = watched(Capture(model), torch.randint(0, 31, (2, 6)), masks={"decoder": mask} if padded else None)
    (row,) = [row for row in capture.norm_rows() if row["norm"] == "exit.own.recall.key"]
    lengths = seen[0][:, :, :3][mask.bool()].norm(dim=-1)  # the embedding, and what two sub-layers wrote
    assert seen[0][:, :, 3:].eq(0).all() and row["tokens"] == lengths.numel() == 3 * int(mask.sum())
    assert row["norm_before"] == pytest.approx(lengths.mean().item(), rel=1e-5)


def compare(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert some and len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            loose = 2e-2 if "_p" in name else 1e-4
            if isinstance(value, float):
                assert value == pytest.approx(other[name], rel=loose, abs=1e-5), name
            else:
                assert value == other[name], name


def test_padding_of_opts_flat_tokens(tiny_model: Tiny) -> None:
    model, inputs = tiny_model("opt")
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, 6:] = 0
    capture = watched(Capture(model), masks={"decoder": mask}, **inputs, attention_mask=mask)
    assert {row["tokens"] for row in capture.rows() + capture.norm_rows()} == {int(mask.sum())}


def test_encoder_and_decoder_have_masks_of_their_own(tiny_model: Tiny) -> None:
    model, inputs = tiny_model("t5")
    masks = {"encoder": torch.ones_like(inputs["input_ids"]), "decoder": torch.ones_like(inputs["decoder_input_ids"])}
    masks["encoder"][0, 4:], masks["decoder"][1, 3:] = 0, 0
    own = {"attention_mask": masks["encoder"], "decoder_attention_mask": masks["decoder"]}
    capture = watched(Capture(model), masks=masks, **inputs, **own)
    for row in capture.rows() + capture.norm_rows():
        assert row["tokens"] == int(masks[row["stack"]].sum())
    with pytest.raises(ConfigError, match="probe without padding"), capture.watching(decoder=torch.zeros(1, 2)):
        model(**inputs)


@each("tokens", [9, 4, 2])
@each("case", ["gemma3_text", "phi", "stablelm", "qwen3"])
def test_norms_of_queries_and_keys_behind_the_transpose(case: str, tokens: int, tiny_model: Tiny) -> None:
    """(batch, heads, tokens, features), or tokens first, also with as many tokens as there are heads of queries (4) or
    keys (2, but for phi): the rows of each sequence alone."""
    stock, _ = tiny_model(case)
    config = copy.deepcopy(stock.config)
    if case in ("phi", "stablelm"):
        config.qk_layernorm = True
    torch.manual_seed(0)
    model = type(stock)(config).eval()
    ids = torch.randint(3, 60, (2, tokens), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, tokens, dtype=torch.int64)
    mask[1, tokens // 2 :] = 0
    padded = watched(Capture(model), masks={"decoder": mask}, input_ids=ids, attention_mask=mask)
    apart = watched(Capture(model), input_ids=ids[:1])
    watched(apart, input_ids=ids[1:, : tokens // 2])
    inner = [row for row in padded.norm_rows() if "attn.q_" in row["norm"] or "attn.k_" in row["norm"]]
    assert len(inner) >= 2 * 3
    for one, other in zip(padded.norm_rows(), apart.norm_rows(), strict=True):
        for name in ("norm", "tokens", "norm_before", "norm_after", "rotation"):  # in whatever order heads come
            assert one[name] == (pytest.approx(other[name], rel=1e-4, abs=1e-6) if name != "norm" else other[name]), (
                name
            )


def test_tokens_that_cannot_be_told_from_heads() -> None:
    """By shape, by memory, or not at all."""
    mask, rows = torch.ones(2, 4), torch.randn(2, 4, 4 * 8)
    plain, turned = rows.view(2, 4, 4, 8), rows.view(2, 4, 4, 8).transpose(1, 2)
    assert token_axis(mask, plain) == 1 and token_axis(mask, turned) == 2
    assert token_axis(mask, plain.clone()) is None and token_axis(mask, turned.clone()) is None
    assert token_axis(mask, torch.randn(2, 4, 3, 8)) == 1 and token_axis(mask, torch.randn(2, 3, 4, 8)) == 2
    # keys of another stack, with as many heads as the mask has tokens
    assert token_axis(mask, torch.randn(2, 5, 4 * 8).view(2, 5, 4, 8)) is None
    assert token_axis(mask, torch.randn(2, 5, 3, 8)) is None
