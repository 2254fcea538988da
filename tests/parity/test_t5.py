"""T5, stream by stream, logits and gradients: the layout of nano-t5 under pre(entry=embedding) is transformers'
T5ForConditionalGeneration with gated GELU. transformers 5 ties the head of every T5; tie_word_embeddings=False says
that logits are not scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from geonorm.nn import Decoder, preset
from geonorm.nn.encoder_decoder import EncoderDecoder
from geonorm.norms import RMSNorm

from .conftest import streams

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")

Named = list[tuple[Tensor, Tensor, str]]


def pairs(ours: EncoderDecoder, theirs: nn.Module) -> Named:
    """(our parameter, theirs, what it is)."""
    found = [
        (ours.embed.weight, theirs.shared.weight, "embedding"),
        (ours.encoder.exit.own["norm"].weight, theirs.encoder.final_layer_norm.weight, "norm behind the encoder"),
        (ours.exit.own["norm"].weight, theirs.decoder.final_layer_norm.weight, "norm behind the decoder"),
    ]
    for mine, their, stack in ((ours.encoder, theirs.encoder, "encoder"), (ours, theirs.decoder, "decoder")):
        table = their.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        found.append((mine.relative.weight, table, f"positions of the {stack}"))
        for number, (block, layers) in enumerate(zip(mine.blocks, their.block, strict=True)):
            for (kind, residual), layer in zip(block.named_children(), layers.layer, strict=True):
                what = f"{stack} {number} {kind}"
                found.append((residual.own["input"].weight, layer.layer_norm.weight, f"{what}, norm"))
                if kind == "mlp":
                    names = (("gate", "wi_0"), ("up", "wi_1"), ("down", "wo"))
                    branch, module = residual.branch, layer.DenseReluDense
                else:
                    names = tuple((name, name) for name in "qkvo")
                    branch, module = residual.branch, layer.SelfAttention if kind == "attn" else layer.EncDecAttention
                for name, other in names:
                    found.append((getattr(branch, name).weight, getattr(module, other).weight, f"{what}, {name}"))
    return found


def test_streams_logits_loss_and_gradients(agree: Callable[..., None]) -> None:
    shape = replace(
        preset("nano-t5", scheme="pre(entry=embedding)"),
        layers=2, encoder_layers=3, width=32, heads=4, hidden=48, vocab_size=61, tied=True, qk_scale=8**0.25,
    )  # fmt: skip
    settings = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    assert settings.layer_norm_epsilon == shape.eps
    ours, theirs = EncoderDecoder(shape).double(), transformers.T5ForConditionalGeneration(settings).double()
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters())
    torch.manual_seed(0)
    for p in ours.parameters():
        nn.init.normal_(p, 0.0, 0.2)
    for module in ours.modules():
        if isinstance(module, RMSNorm):
            module.weight.data += 1
    with torch.no_grad():
        for mine, their, _ in pairs(ours, theirs):
            their.copy_(mine)
    assert {id(p) for p in theirs.parameters()} == {id(their) for _, their, _ in pairs(ours, theirs)}
    # distances in every bucket: single ones, ranges, and what lies beyond the last
    source, answer = torch.randint(61, (2, 150)), torch.randint(61, (2, 140))
    targets = torch.randint(61, (2, 140))
    layers = [streams(mine) for mine in (ours.encoder.blocks, ours.blocks)]
    others = [streams(their.block) for their in (theirs.encoder, theirs.decoder)]
    logits = ours(source, answer)
    reply = theirs(input_ids=source, decoder_input_ids=answer, labels=targets)
    for stack, mine, their in zip(("encoder", "decoder"), layers, others, strict=True):
        for number, pair in enumerate(zip(mine, their, strict=True)):
            agree(*pair, f"stream behind {stack} block {number}")
    agree(logits, reply.logits, "logits")
    loss = Decoder.cross_entropy(logits.flatten(0, 1), targets.flatten())
    agree(loss, reply.loss, "loss")
    slopes = torch.autograd.grad(loss, [mine for mine, _, _ in pairs(ours, theirs)])
    reply.loss.backward()
    for slope, (_, their, what) in zip(slopes, pairs(ours, theirs), strict=True):
        agree(slope, their.grad, f"gradient of {what}")
