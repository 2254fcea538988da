"""The one model implementation: every scheme trains in it, and caching changes nothing."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from geonorm import Decoder, Site, names
from geonorm.errors import ConfigError
from geonorm.models import generate
from geonorm.models.attention import LayerCache, rope
from geonorm.models.config import BERT
from geonorm.models.decoder import IGNORED
from geonorm.schemes import advance

from ..rows import each
from .tiny import decoder, ids

VARIANTS: dict[str, dict[str, Any]] = {
    "GPT-2": {"mlp": "gelu_tanh", "bias": True, "norm": "layer", "tied": True, "positions": "learned"},
    "wide heads": {"head_width": 12, "kv_heads": 2, "qk_norm": "full"},
    "partly rotated": {"rotary": 0.5},
    "multi-query": {"kv_heads": 1},
    "qk head": {"qk_norm": "head", "kv_heads": 2},
    "qk full": {"qk_norm": "full", "kv_heads": 2},
    "dyt": {"norm": "dyt"},
    "relu squared": {"mlp": "relu2"},
    "gated attention": {"attn_gate": True},
    "capped logits": {"soft_cap": 15.0},
    "value residual": {"values": "first", "kv_heads": 2},
    "value residual, parallel": {"values": "first", "block": "parallel"},
    "value embeddings": {"values": "token", "kv_heads": 2},
    "derf": {"norm": "derf"},
    "gated norm": {"norm": "gated"},
    "dyt without bias": {"norm": "dyt", "norm_bias": False},
    "no gains": {"gains": False},
    "both sides": {"causal": False},
    "BERT": {**BERT, "hidden": 48},
    "parallel": {"block": "parallel"},
    "parallel, gelu with biases": {"block": "parallel", "mlp": "gelu", "bias": True, "qk_norm": "head", "kv_heads": 2},
}


def check_trains(model: Decoder) -> None:
    loss = model.loss(ids(), ids(seed=1))
    loss.backward()
    assert 2 < loss.item() < 8  # about log 61 = 4.1
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    with torch.no_grad():  # what multiplies a parameter that starts at 0 has no gradient before the first step
        for p in model.parameters():
            p += 1e-3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    advance(model)  # nor what is warmed up from 0
    model.zero_grad()
    model.loss(ids(), ids(seed=1)).backward()
    still = [n for n, p in model.named_parameters() if p.grad is not None and not p.grad.any()]
    assert not still, "parameters that the loss does not see"


def test_embedding_and_reading_matrices_trade_their_lengths() -> None:
    """Where sub-layers read the state without a norm (docs/theory-depth.md)."""
    for scheme, low, high in (("geonorm(entry=embedding, update=unit)", 0.0, 1e-3), ("pre(entry=embedding)", 0.5, 2.0)):
        before = (model := decoder(scheme=scheme))(ids())
        for role, weight, *_ in model.weights():
            weight.data *= 3.0 if role == "embed" else 1 / 3 if role in ("q", "k", "v", "up", "gate") else 1.0
        assert low < (model(ids()) - before).norm() / before.norm() < high, scheme


@each("scheme", ["geonorm", "pre", "ngpt", "residual_dual", "hyper"])
@each("variant", VARIANTS)
def test_every_layout_trains(variant: str, scheme: str) -> None:
    check_trains(decoder(scheme=scheme, **VARIANTS[variant]))


@each("scheme", names())
def test_gradients_of_embeddings_near_0_are_finite_and_shapes_need_no_numbers(scheme: str) -> None:
    model = decoder(scheme=scheme)
    model.embed.weight.data *= 1e-20
    model.loss(ids(), ids(seed=1)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert model.to("meta")(ids().to("meta")).shape == (2, 12, 61)


@each("options", [{"scheme": "ngpt"}, {"tied": True}, {"soft_cap": 15.0}, {**BERT, "hidden": 48}])
def test_a_loss_in_pieces_is_the_loss(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many logits: value and gradients in fp64, where some targets are none."""
    model, text, targets = decoder(**options).double(), ids(), ids(seed=1)
    targets[0, :5] = IGNORED
    results = []
    for most, tokens in ((2**27, targets.numel()), (8 * model.config.vocab_size, 6)):
        monkeypatch.setattr("geonorm.models.decoder.MOST_LOGITS", most)
        monkeypatch.setattr(model, "cross_entropy", spy := Mock(wraps=Decoder.cross_entropy))
        model.zero_grad()
        (loss := model.loss(text, targets)).backward()
        results.append([loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        assert max(len(call.args[0]) for call in spy.call_args_list) == tokens
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-15)


CACHED = [{"positions": "learned"}, {"positions": "none"}, {"window": 1}, {"window": 5, "full_every": 2, "kv_heads": 2}]
CACHED += [{"values": values, "kv_heads": 2} for values in ("first", "token")]


@each("changes", [*({"scheme": s, "kv_heads": 2, "qk_norm": "head"} for s in names()), *CACHED])
@torch.no_grad()
def test_cache_in_chunks_equals_one_pass(changes: dict[str, Any]) -> None:
    """Tokens that are to come therefore change nothing."""
    model, text = decoder(**changes).double(), ids()
    whole = model(text)
    cache = [LayerCache(12) for _ in model.blocks]
    parts = [model(text[:, a:b], cache) for a, b in ((0, 5), (5, 6), (6, 10), (10, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-10)


def test_positions_are_what_they_are_called() -> None:
    """Two equal tokens after each other: without positions, attention over equal values tells them apart by nothing."""
    same = torch.full((1, 6), 3)
    blind, told = decoder(positions="none")(same), decoder(positions="learned")(same)
    torch.testing.assert_close(blind[:, 1:], blind[:, :-1], rtol=0, atol=1e-5)
    assert (told[:, 1:] - told[:, :-1]).abs().max() > 0.1
    drawn = dict(decoder(positions="none").named_parameters())
    for name, weight in decoder(positions="learned").named_parameters():
        assert name == "position.weight" or torch.equal(weight, drawn[name]), "positions are drawn last"


def test_more_tokens_than_learned_positions() -> None:
    model = decoder(positions="learned")
    with pytest.raises(ConfigError, match=r"^17 tokens are more than the 16 positions that this model has learned"):
        model(ids(tokens=17))
    made = generate(model, ids(tokens=15), 3)
    assert [next(made).shape, next(made).shape] == [(2, 1), (2, 1)]
    with pytest.raises(ConfigError, match=r"^17 tokens"):
        next(made)


def test_parallel_blocks_are_one_residual_around_both() -> None:
    model, other = decoder(scheme="pre", block="parallel"), decoder(scheme="pre")
    assert [block.both.place() for block in model.blocks] == [Site(layer, "parallel", 2) for layer in range(2)]
    for (role, ours, *_), (known, theirs, *_) in zip(model.weights(), other.weights(), strict=True):
        assert role == known and torch.equal(ours, theirs), "one seed draws the same matrices for both layouts"
    x = torch.randn(2, 12, 32)
    turns = rope(torch.arange(12), 8, 10000.0)
    for ours, theirs in zip(model.blocks, other.blocks, strict=True):
        y = F.rms_norm(x, (32,), eps=1e-6)
        expected = x + theirs.attn.branch(y, positions=turns) + theirs.mlp.branch(y)
        torch.testing.assert_close(ours(x, positions=turns), expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(theirs(x, positions=turns), expected, atol=1e-2), "one by one is another model"


def test_loss_is_cross_entropy_in_fp32() -> None:
    model = decoder()
    logits = model(ids())
    losses = -logits.log_softmax(-1).gather(-1, ids(seed=1).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(model.loss(ids(), ids(seed=1)), losses.mean())
    torch.testing.assert_close(model.loss(ids(), ids(seed=1), "none"), losses.flatten())
    assert model.bfloat16().loss(ids(), ids(seed=1)).dtype == torch.float32


@pytest.mark.parametrize("block", ["sequential", "parallel"])
@pytest.mark.parametrize("scheme", ["geonorm", "hyper"])
def test_without_causality_every_token_sees_all_others(scheme: str, block: str) -> None:
    """The gradient of a token's logits with respect to every token's embedding; of a causal model those before it."""
    for causal in (True, False):
        model, seen = decoder(scheme=scheme, block=block, causal=causal), []
        model.embed.register_forward_hook(lambda _, args, out, seen=seen: seen.append(out))
        (slopes,) = torch.autograd.grad(model(ids(1))[0, 5].square().sum(), seen[-1])
        assert (slopes[0].abs().amax(-1) > 0).tolist() == [not causal or token <= 5 for token in range(12)]


def test_an_encoder_has_the_weights_of_the_decoder_and_writes_no_text() -> None:
    causal, both = decoder(), decoder(causal=False)
    assert list(causal.state_dict()) == list(both.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(causal.parameters(), both.parameters(), strict=True))
    with pytest.raises(ConfigError, match=r"both sides of a token \(--objective mlm\)"):
        next(generate(both, ids(1), 3))
