"""GPT-2, logits and gradients: the preset nano-gpt2 under pre(entry=embedding) is transformers' GPT2LMHeadModel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from geonorm.models import Decoder, preset

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")


def pairs(ours: Decoder, theirs: nn.Module) -> list[tuple[Tensor, Tensor, str]]:
    """(our parameter, theirs, what it is); their matrices are (in, out), their q, k, v one matrix."""
    found = [
        (ours.embed.weight, theirs.transformer.wte.weight, "embedding"),
        (ours.position.weight, theirs.transformer.wpe.weight, "positions"),
    ]
    norms = [(ours.exit.own["norm"], theirs.transformer.ln_f)]
    for block, layer in zip(ours.blocks, theirs.transformer.h, strict=True):
        norms += [(block.attn.own["input"], layer.ln_1), (block.mlp.own["input"], layer.ln_2)]
        attention, mlp = block.attn.branch, block.mlp.branch
        whole = [(torch.cat([getattr(m, kind) for m in (attention.q, attention.k, attention.v)]), kind)
                 for kind in ("weight", "bias")]  # fmt: skip
        found += [(tensor.t(), getattr(layer.attn.c_attn, kind), f"q k v {kind}") for tensor, kind in whole]
        for mine, their, what in (
            (attention.o, layer.attn.c_proj, "o"),
            (mlp.up, layer.mlp.c_fc, "up"),
            (mlp.down, layer.mlp.c_proj, "down"),
        ):
            found += [(mine.weight.t(), their.weight, what), (mine.bias, their.bias, f"{what} bias")]
    for mine, their in norms:
        found += [(mine.weight, their.weight, "gains"), (mine.bias, their.bias, "norm bias")]
    return found


def test_logits_and_gradients(agree: Callable[..., None]) -> None:
    shape = replace(preset("nano-gpt2", scheme="pre(entry=embedding)"), layers=2, width=32, hidden=48, vocab_size=61)
    settings = transformers.GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_inner=48, n_positions=shape.context,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    ours, theirs = Decoder(shape).double(), transformers.GPT2LMHeadModel(settings).double()
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters())
    torch.manual_seed(0)
    for p in ours.parameters():  # norms and biases, too, away from where they start
        nn.init.normal_(p, 0.0, 0.3)
    with torch.no_grad():
        for mine, their, _ in pairs(ours, theirs):
            their.copy_(mine)
    ids = torch.randint(61, (2, 12))
    logits, wanted = ours(ids), theirs(input_ids=ids, use_cache=False).logits
    agree(logits, wanted, "logits")
    weights = torch.sin(torch.arange(logits.numel(), dtype=torch.float64)).view_as(logits)
    leaves = list(ours.parameters())
    slopes = dict(zip(map(id, leaves), torch.autograd.grad((logits * weights).sum(), leaves), strict=True))
    (wanted * weights).sum().backward()
    for p in leaves:
        p.data = slopes[id(p)]  # the same places now hold the gradients
    for mine, their, what in pairs(ours, theirs):
        agree(mine, their.grad, f"gradient of {what}")
