"""BERT, layer by layer, logits and gradients: the preset nano-bert under post(entry=embedding) is transformers'
BertForMaskedLM on one kind of token, whose vector is part of each position's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm.models import Decoder, preset
from geonorm.models.decoder import IGNORED

from .conftest import Pairs, compare_models, draw_and_copy

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")


def pairs(ours: Decoder, theirs: nn.Module) -> Pairs:
    """(our parameter, theirs, what it is), but for the table of kinds of token."""
    start, end = theirs.bert.embeddings, theirs.cls.predictions
    modules = [
        (ours.embed_norm, start.LayerNorm, "norm of the embedding"),
        (ours.transform.dense, end.transform.dense, "transform"),
        (ours.transform.norm, end.transform.LayerNorm, "norm of the transform"),
    ]
    for block, layer in zip(ours.blocks, theirs.bert.encoder.layer, strict=True):
        attention, mlp = block.attn.branch, block.mlp.branch
        seen = layer.attention.self
        modules += [
            (attention.q, seen.query, "q"),
            (attention.k, seen.key, "k"),
            (attention.v, seen.value, "v"),
            (attention.o, layer.attention.output.dense, "o"),
            (mlp.up, layer.intermediate.dense, "up"),
            (mlp.down, layer.output.dense, "down"),
            (block.attn.own["stream"], layer.attention.output.LayerNorm, "norm behind attention"),
            (block.mlp.own["stream"], layer.output.LayerNorm, "norm behind the MLP"),
        ]
    found = [
        (ours.embed.weight, start.word_embeddings.weight, "embedding"),
        (ours.position.weight, start.position_embeddings.weight, "positions"),
        (ours.head.bias, end.bias, "bias of the logits"),
    ]
    for mine, their, what in modules:
        found += [(mine.weight, their.weight, what), (mine.bias, their.bias, f"{what}, bias")]
    return found


def test_streams_logits_loss_and_gradients(agree: Callable[..., None]) -> None:
    shape = replace(preset("nano-bert", scheme="post(entry=embedding)"), layers=3, width=32, hidden=48, vocab_size=61)
    settings = transformers.BertConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=shape.context, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    assert settings.layer_norm_eps == shape.eps and settings.hidden_act == shape.mlp
    ours, theirs = Decoder(shape).double(), transformers.BertForMaskedLM(settings).double()
    kinds = theirs.bert.embeddings.token_type_embeddings.weight
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters()) - kinds.numel()
    draw_and_copy(ours, pairs(ours, theirs))
    with torch.no_grad():
        theirs.bert.embeddings.position_embeddings.weight -= kinds[0]
    ids, chosen = torch.randint(61, (2, 12)), torch.arange(12) % 5 == 2
    targets = torch.where(chosen, torch.randint(61, (2, 12)), IGNORED)

    def run() -> tuple[Tensor, Tensor, Any]:
        logits = ours(ids)
        loss = Decoder.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss, theirs(input_ids=ids, labels=targets)

    slopes = compare_models(agree, pairs(ours, theirs), (ours.blocks, theirs.bert.encoder.layer), run)
    agree(slopes["positions"].sum(0), kinds.grad[0], "gradient of the one kind of token")
