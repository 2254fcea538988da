"""The one model implementation: every scheme trains in it, caching changes nothing, and `pre` is Llama."""

from __future__ import annotations

from math import pi
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from geonorm import Decoder, Site, names, parse
from geonorm.errors import ConfigError
from geonorm.models import generate
from geonorm.models.attention import rope
from geonorm.models.config import BERT
from geonorm.models.decoder import IGNORED
from geonorm.norms import NormSpec
from geonorm.schemes import Parts, advance

from ..rows import each
from .tiny import decoder, ids

VARIANTS: dict[str, dict[str, Any]] = {
    "gelu with biases": {"mlp": "gelu", "bias": True},
    "GPT-2": {"mlp": "gelu_tanh", "bias": True, "norm": "layer", "tied": True, "positions": "learned"},
    "wide heads": {"head_width": 12, "kv_heads": 2, "qk_norm": "full"},
    "partly rotated": {"rotary": 0.5},
    "no positions": {"positions": "none"},
    "tied": {"tied": True},
    "grouped": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "qk head": {"qk_norm": "head", "kv_heads": 2},
    "qk full": {"qk_norm": "full", "kv_heads": 2},
    "layer norm": {"norm": "layer"},
    "layer norm without bias": {"norm": "layer", "norm_bias": False},
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


@each("scheme", ["geonorm", "pre", "ngpt", "residual_dual", "hyper"])
@each("variant", VARIANTS)
def test_every_layout_trains(variant: str, scheme: str) -> None:
    check_trains(decoder(scheme=scheme, **VARIANTS[variant]))


def test_a_few_steps_learn_a_batch() -> None:
    model = decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = model.loss(ids(), ids(seed=1)).item()
    for _ in range(20):
        optimizer.zero_grad()
        model.loss(ids(), ids(seed=1)).backward()
        optimizer.step()
    assert model.loss(ids(), ids(seed=1)).item() < first - 1


@each("scheme", names())
def test_future_tokens_do_not_change_past_logits(scheme: str) -> None:
    model, text = decoder(scheme=scheme), ids()
    changed = text.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 61
    before, after = model(text), model(changed)
    torch.testing.assert_close(after[:, :7], before[:, :7], rtol=0, atol=1e-6)
    assert (after[:, 7:] - before[:, 7:]).abs().amax(-1).min() > 1e-3


def test_past_tokens_and_their_order_matter() -> None:
    model, text = decoder(), ids()
    swapped = text.clone()
    swapped[:, [0, 1]] = text[:, [1, 0]]
    assert (model(swapped)[:, -1] - model(text)[:, -1]).abs().max() > 1e-4


@each("scheme", names())
@torch.no_grad()
def test_cache_in_chunks_equals_one_pass(scheme: str) -> None:
    model, text = decoder(scheme=scheme, kv_heads=2, qk_norm="head").double(), ids()
    whole = model(text)
    cache = model.new_cache(12)
    parts = [model(text[:, a:b], cache) for a, b in ((0, 5), (5, 6), (6, 10), (10, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_more_tokens_than_a_cache_has_room_for_are_refused() -> None:
    model, text = decoder(scheme="pre"), ids()
    cache = model.new_cache(4)
    model(text[:, :4], cache)
    with pytest.raises(ConfigError, match="5 tokens do not fit a cache for 4"):
        model(text[:, 4:5], cache)


@each("scheme", names())
def test_cached_generation_equals_uncached(scheme: str) -> None:
    model = decoder(scheme=scheme, kv_heads=2)

    def text(**kwargs: Any) -> list[list[int]]:
        made = generate(model, ids(tokens=4), 8, generator=torch.Generator().manual_seed(1), **kwargs)
        return torch.cat(list(made), 1).tolist()

    assert text(temperature=0.8) == text(temperature=0.8, cached=False)
    assert text(temperature=0) == text(temperature=0, cached=False)


@pytest.mark.parametrize("positions", ["learned", "none"])
@torch.no_grad()
def test_cache_with_other_positions(positions: str) -> None:
    model, text = decoder(positions=positions).double(), ids()
    cache = model.new_cache(12)
    parts = [model(text[:, a:b], cache) for a, b in ((0, 5), (5, 6), (6, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), model(text), rtol=1e-10, atol=1e-10)


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


def test_residuals_are_listed_from_input_to_output() -> None:
    assert [(s.layer, s.kind, s.depth) for s, _ in decoder().residuals()] == [
        (0, "attn", 2),
        (0, "mlp", 2),
        (1, "attn", 2),
        (1, "mlp", 2),
    ]


def test_parallel_blocks_are_one_residual_around_both() -> None:
    model, twin = decoder(scheme="pre", block="parallel"), decoder(scheme="pre")
    assert [(s.layer, s.kind, s.depth) for s, _ in model.residuals()] == [(0, "parallel", 2), (1, "parallel", 2)]
    roles = [role for role, *_ in model.weights()]
    assert (
        roles == [role for role, *_ in twin.weights()]
        and model.matmul_parameter_count() == twin.matmul_parameter_count()
    )
    for (_, ours, _, _), (_, theirs, _, _) in zip(model.weights(), twin.weights(), strict=True):
        assert torch.equal(ours, theirs), "one seed draws the same matrices for both layouts"
    x = torch.randn(2, 12, 32)
    turns = rope(torch.arange(12), 8, 10000.0)
    for ours, theirs in zip(model.blocks, twin.blocks, strict=True):
        y = F.rms_norm(x, (32,), eps=1e-6)
        expected = x + theirs.attn.branch(y, positions=turns) + theirs.mlp.branch(y)
        torch.testing.assert_close(ours(x, positions=turns), expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(theirs(x, positions=turns), expected, atol=1e-2), (
            "one after the other is another model"
        )


def test_two_norms_of_gpt_neox_fold_into_one() -> None:
    """x + attn(g1 n(x) + b1) + mlp(g2 n(x) + b2) equals one norm without gains and matrices W g, biases c + W b."""
    model = decoder(scheme="pre", block="parallel", norm="layer", gains=False, bias=True, mlp="gelu").double()
    twin = decoder(scheme="pre", norm="layer", bias=True, mlp="gelu").double()
    generator = torch.Generator().manual_seed(5)
    turns = rope(torch.arange(12), 8, 10000.0)
    x = torch.randn(2, 12, 32, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        for ours, theirs in zip(model.blocks, twin.blocks, strict=True):
            for part in (theirs.attn, theirs.mlp):
                for parameter in part.parameters():
                    parameter += 0.2 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            expected = x + theirs.attn.branch(theirs.attn.own["input"](x), positions=turns)
            expected = expected + theirs.mlp.branch(theirs.mlp.own["input"](x))
            for mine, part, first in (
                (ours.both.branch.attn, theirs.attn, "qkv"),
                (ours.both.branch.mlp, theirs.mlp, ["up"]),
            ):
                mine.load_state_dict(part.branch.state_dict())
                gain, shift = part.own["input"].weight, part.own["input"].bias
                for name in first:
                    linear = getattr(mine, name)
                    linear.bias += linear.weight @ shift
                    linear.weight *= gain
            torch.testing.assert_close(ours(x, positions=turns), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layer", [0, 1, 4])
def test_a_parallel_site_is_the_only_sublayer_of_its_block(layer: int) -> None:
    """geonorm(index=sublayer) turns by 1/(l + 1) there, the linear decay has L steps: the same as index=block."""
    x, u = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([[0.0, 9.0]], dtype=torch.float64)
    for decay, rate in (("harmonic", 1 / (layer + 1)), ("linear", (5 - layer) / 5)):
        scheme, site = parse(f"geonorm(index=sublayer, decay={decay})"), Site(layer, "parallel", 5)
        after = scheme.write(x, u, Parts(scheme, site, NormSpec("rms", 2))(), site)
        assert torch.atan2(after[0, 1], after[0, 0]).item() == pytest.approx(rate * pi / 4, rel=1e-12)


def test_loss_is_cross_entropy_in_fp32() -> None:
    model = decoder()
    logits = model(ids())
    losses = -logits.log_softmax(-1).gather(-1, ids(seed=1).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(model.loss(ids(), ids(seed=1)), losses.mean())
    torch.testing.assert_close(model.loss(ids(), ids(seed=1), "none"), losses.flatten())
    assert model.bfloat16().loss(ids(), ids(seed=1)).dtype == torch.float32


@each("scheme", names())
def test_autocast_keeps_the_stream_in_fp32(scheme: str) -> None:
    model = decoder(scheme=scheme)
    seen: list[torch.dtype] = []
    for _, residual in model.residuals():
        residual.register_forward_hook(
            lambda _, __, out: seen.append((out[0] if isinstance(out, tuple) else out).dtype)
        )
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids())
    assert seen == [torch.float32] * 4
    torch.testing.assert_close(logits.float(), model(ids()), rtol=0.1, atol=0.15)


LLAMA = {
    "embed.weight": "model.embed_tokens.weight",
    "exit.own.norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    **{
        f"blocks.{{}}.{ours}.weight": f"model.layers.{{}}.{theirs}.weight"
        for ours, theirs in {
            "attn.own.input": "input_layernorm",
            "attn.branch.q": "self_attn.q_proj",
            "attn.branch.k": "self_attn.k_proj",
            "attn.branch.v": "self_attn.v_proj",
            "attn.branch.o": "self_attn.o_proj",
            "mlp.own.input": "post_attention_layernorm",
            "mlp.branch.gate": "mlp.gate_proj",
            "mlp.branch.up": "mlp.up_proj",
            "mlp.branch.down": "mlp.down_proj",
        }.items()
    },
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(("tied", "kv_heads"), [(False, 2), (True, 1)])
def test_pre_equals_llama(
    tied: bool, kv_heads: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    if dtype == torch.float64:  # transformers normalises in fp32 whatever the input; its formula in fp64 instead

        def forward(self: Any, x: Tensor) -> Tensor:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

        monkeypatch.setattr(transformers.models.llama.modeling_llama.LlamaRMSNorm, "forward", forward)
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=61,
            hidden_size=128,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,  # 64 wide: enough frequencies to tell 1/theta^e from theta^-e
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-6,
            max_position_embeddings=64,
            tie_word_embeddings=tied,
            initializer_range=0.15,
        )
    )
    for name, parameter in llama.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    llama = llama.to(dtype).eval()
    model = decoder(scheme="pre(entry=embedding)", width=128, heads=2, tied=tied, kv_heads=kv_heads).to(dtype)
    theirs = llama.state_dict()
    state = model.state_dict()
    loaded = set()
    for ours, name in LLAMA.items():
        for layer in range(2):
            state[ours.format(layer)].copy_(theirs[name.format(layer)])
            loaded |= {ours.format(layer), name.format(layer)}
    assert loaded == set(theirs) | {key for key in state if not key.endswith(".layer")}
    text = ids(tokens=40)
    with torch.no_grad():
        expected = llama(text).logits
        found = model(text)
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


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


def test_what_bert_adds_leaves_all_other_draws_as_they_are() -> None:
    plain = decoder(mlp="gelu", bias=True).state_dict()
    more = decoder(mlp="gelu", bias=True, embed_norm=True, transform=True).state_dict()
    assert all(torch.equal(more[name], value) for name, value in plain.items())
    added = {name.partition(".")[0] for name in set(more) - set(plain)}
    assert added == {"embed_norm", "transform", "head"} and not more["head.bias"].any()
    assert more["transform.dense.weight"].std().item() == pytest.approx(32**-0.5, rel=0.1)


def test_targets_that_are_ignored_count_for_nothing() -> None:
    model, targets = decoder(causal=False), ids(seed=1)
    chosen = torch.arange(12) % 3 == 1
    part = targets.masked_fill(~chosen, IGNORED)
    each = model.loss(ids(), targets, reduction="none").view_as(targets)
    torch.testing.assert_close(model.loss(ids(), part), each[:, chosen].mean())
    torch.testing.assert_close(model.loss(ids(), part, reduction="none").view_as(targets), each * chosen)
