"""Models in transformers: the decoder's own function, in every way that transformers may call it."""

import copy
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import geonorm.errors
from geonorm import Decoder, hf, names
from geonorm.hf.export import hf_name

from ..rows import each

EVERY = [*names(), "mix(ngpt, geonorm, share=0.5)", "pre(entry=embedding)", "geonorm(learn=affine, final=none)"]
SOME = ["geonorm", "pre", "ngpt", "residual_dual", "hyper", "hybrid"]
GPT2 = {"norm": "layer", "norm_bias": False, "norm_eps": 1e-5, "mlp": "gelu_tanh", "bias": True}
WINDOWS = ({"attention_dropout": 0.5}, {"sliding_window": 4}, {"sliding_window": 4, "full_every": 2})
LAYOUTS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "gelu with biases": {"mlp": "gelu", "bias": True},
    "parallel": {"block": "parallel"},
    "qk head": {"qk_norm": "head"},
    "qk full": {"qk_norm": "full"},
    "layer norm": {"norm": "layer"},
    "no gains": {"gains": False},
    "learned positions, as GPT-2": {**GPT2, "positions": "learned"},
    "no positions": {**GPT2, "positions": "none"},
    "window": {"sliding_window": 4},
    "window in every second block": {"sliding_window": 4, "full_every": 2},
    "value residual": {"values": "first"},
    "value embeddings": {"values": "token"},
    "gated attention, squared ReLU": {"attn_gate": True, "mlp": "relu2"},
    "capped logits": {"soft_cap": 0.7},
}


def greedy(model: Any, ids: Any, **settings: Any) -> Any:
    usual = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, **usual | settings)


@each("scheme", EVERY)
def test_every_scheme_is_its_decoder_generates_alike_with_and_without_cache_and_survives_saving(
    scheme: str, build: Any, ids: Any, tmp_path: Path
) -> None:
    model = build(scheme)
    decoder = Decoder(model.config.shape())
    decoder.load_state_dict({name: model.state_dict()[hf_name(name)] for name in decoder.state_dict()})
    logits = model(ids).logits
    torch.testing.assert_close(logits, decoder.eval()(ids), rtol=0, atol=0)
    found = greedy(model, ids)
    assert found.shape == (2, 14) and torch.equal(found, greedy(model, ids, use_cache=False))
    if scheme in SOME:
        assert torch.equal(found, greedy(model, ids, cache_implementation="static", disable_compile=True))
    one = greedy(model, ids[:1])  # a single token takes its own path through the geodesic step
    assert torch.equal(one, found[:1])
    model.save_pretrained(tmp_path)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert type(again) is hf.GeoNormForCausalLM and again.config.scheme == model.config.scheme
    assert torch.equal(logits, again(ids).logits)


@each("scheme", EVERY)
def test_one_seed_draws_the_weights_of_the_decoder(scheme: str, build: Any) -> None:
    config = build(scheme).config
    torch.manual_seed(3)
    ours = Decoder(config.shape()).state_dict()
    torch.manual_seed(3)
    theirs = hf.GeoNormForCausalLM(config).state_dict()
    assert {hf_name(name) for name in ours} == set(theirs)
    assert all(torch.equal(value, theirs[hf_name(name)]) for name, value in ours.items())


@each("scheme, layout", [*zip(cycle(["geonorm", "ngpt", "pre(entry=embedding)"]), LAYOUTS), ("attnres", "parallel")])
def test_every_layout_is_its_decoder_generates_and_survives_saving(
    scheme: str, layout: str, build: Any, ids: Any, tmp_path: Path
) -> None:
    model = build(scheme, **LAYOUTS[layout])
    decoder = Decoder(model.config.shape()).eval()
    decoder.load_state_dict({name: model.state_dict()[hf_name(name)] for name in decoder.state_dict()})
    torch.testing.assert_close(model(ids).logits, decoder(ids), rtol=1e-5, atol=1e-5)
    assert torch.equal(greedy(model, ids), greedy(model, ids, use_cache=False))
    check_left_padding(model, ids)
    model.save_pretrained(tmp_path)
    again = hf.GeoNormForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(model(ids).logits, again(ids).logits) and again.config.shape() == model.config.shape()
    tied = again.lm_head.weight.data_ptr() == again.get_input_embeddings().weight.data_ptr()
    assert tied == bool(layout == "tied")


@each("scheme", SOME)
def test_buffers_and_scalars_that_no_file_holds_are_made_anew(
    scheme: str, build: Any, ids: Any, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    model = build(scheme)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.endswith(".layer") and ".own." not in k and "slot" not in k}
    assert len(kept) < len(weights)
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    torch.manual_seed(0)
    again = hf.GeoNormForCausalLM.from_pretrained(tmp_path)
    fresh = hf.GeoNormForCausalLM(model.config).state_dict()
    for name, value in again.state_dict().items():
        expected = weights[name] if name in kept else fresh[name]
        assert torch.equal(value, expected), name


def check_left_padding(model: Any, ids: Any) -> None:
    """Positions count from the first token of the text."""
    padded = torch.cat((torch.zeros(2, 3, dtype=ids.dtype), ids), 1)
    mask = torch.cat((torch.zeros(2, 3, dtype=ids.dtype), torch.ones_like(ids)), 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = model(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
    torch.testing.assert_close(found, model(ids).logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(greedy(model, padded, attention_mask=mask)[:, 3:], greedy(model, ids))


@each("scheme", ["geonorm", "siamese"])
@torch.no_grad()
def test_packed_texts_and_an_exported_graph(scheme: str, build: Any, ids: Any) -> None:
    model = build(scheme)
    first, second = ids[:1, :5], ids[1:]
    positions = torch.cat((torch.arange(5), torch.arange(9)))[None]
    for cached in ({}, {"use_cache": False}):
        packed = model(torch.cat((first, second), 1), position_ids=positions, **cached).logits
        torch.testing.assert_close(packed[:, :5], model(first).logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(packed[:, 5:], model(second).logits, rtol=1e-5, atol=1e-5)
    made = torch.export.export(model, (), {"input_ids": ids, "use_cache": False}, strict=False).module()
    torch.testing.assert_close(made(input_ids=ids, use_cache=False).logits, model(ids).logits)


@each("scheme", ["geonorm", "hyper", "siamese", "residual_dual"])
def test_hidden_states_are_what_sub_layers_see(scheme: str, build: Any, ids: Any) -> None:
    """All of them or some; logits are what they are without. Of one stream they have the gradient of the loss."""
    model = build(scheme)
    plain, streams = model(ids).logits, []
    for block in model.model.blocks:
        block.register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    out = model(ids, output_hidden_states=True)
    assert torch.equal(out.logits, plain) and len(out.hidden_states) == 3
    for state, stream in zip(out.hidden_states, streams, strict=False):
        assert torch.equal(state, model.model.entry.scheme.seen(stream)) and state.shape == (2, 9, 32)
    some = model(ids, output_hidden_states=[0, -1]).hidden_states
    assert torch.equal(some[0], out.hidden_states[0]) and torch.equal(some[-1], out.hidden_states[-1])
    if scheme == "geonorm":
        out.hidden_states[1].retain_grad()
        out.logits.square().mean().backward()
        assert out.hidden_states[1].grad.abs().sum() > 0


COMPILED = ("geonorm", "ngpt", "hyper")
"""Schemes that are compiled on each change, in all tests together; the others with the slow ones."""


@pytest.mark.parametrize(
    "scheme", [*COMPILED, *(pytest.param(name, marks=pytest.mark.slow) for name in EVERY if name not in COMPILED)]
)
def test_every_scheme_is_one_graph(scheme: str, build: Any, ids: Any) -> None:
    model = build(scheme) if scheme in SOME else build(scheme, num_hidden_layers=1)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")(ids).logits
        torch.testing.assert_close(compiled, model(ids).logits, rtol=1e-4, atol=1e-5)


@each("scheme, values", [*((scheme, "own") for scheme in SOME), ("lambdas", "first"), ("attnres", "token")])
@each("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_gradient_checkpointing_gives_the_same_gradients(
    scheme: str, values: str, reentrant: bool, build: Any, ids: Any
) -> None:
    (plain, saving), passes = (build(scheme, values=values).train() for _ in range(2)), []
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for model in (plain, saving):
        model.model.blocks[0].attn.register_forward_pre_hook(lambda *_: passes.append(0))
        model(ids, labels=ids).loss.backward()
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert len(passes) == 3 and a.grad is not None and torch.equal(a.grad, b.grad), name


def test_half_precision_keeps_the_stream_wide(build: Any, ids: Any) -> None:
    wide = build()
    narrow = copy.deepcopy(wide).to(torch.bfloat16)
    out = narrow(ids, output_hidden_states=True)
    assert out.logits.dtype == torch.bfloat16 and out.hidden_states[1].dtype == torch.float32
    assert narrow.model.blocks[1].attn.layer.item() == 1  # a rounded buffer would be another depth
    torch.testing.assert_close(out.logits.float(), wide(ids).logits, rtol=0.1, atol=0.1)
    assert torch.equal(greedy(narrow, ids), greedy(narrow, ids, use_cache=False))


@each("scheme, tied", [*zip(SOME, cycle([True, False])), ("geonorm", False), ("ngpt", False)])
def test_embeddings_grow(scheme: str, tied: bool, build: Any, ids: Any, tmp_path: Path) -> None:
    model = build(scheme, tie_word_embeddings=tied)
    with torch.no_grad():
        for scale in model.logits_slot.parameters() if model.logits_slot else ():
            scale *= 1 + torch.arange(len(scale)) / 99
        before = model(ids).logits
        model.resize_token_embeddings(70)
        after = model(ids).logits
    assert after.shape[-1] == 70 and model.config.vocab_size == 70
    torch.testing.assert_close(after[..., :61], before)
    model.train()(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    kept = {name: p.clone() for name, p in model.named_parameters()}
    model.constrain()  # new rows too stand where the scheme wants them
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, kept[name])
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, model.eval()(ids).logits)


@torch.no_grad()
@each("scheme, fields", [*((name, {}) for name in SOME), *(("geonorm", fields) for fields in WINDOWS)])
def test_attention_functions_agree_and_eager_returns_its_weights(
    scheme: str, fields: Any, build: Any, ids: Any
) -> None:
    model = build(scheme, **fields)
    wanted = model(ids, output_hidden_states=True)
    model.set_attn_implementation("eager")
    found = model(ids, output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(found.hidden_states, wanted.hidden_states, rtol=1e-4, atol=1e-5)
    assert all(w.shape == (2, 4, 9, 9) and not w.triu(1).any() for w in found.attentions)
    torch.testing.assert_close(found.attentions[0].sum(-1), torch.ones(2, 4, 9))
    beyond, window = torch.ones(9, 9).tril(-4).bool(), "sliding_window" in fields
    sees = [bool(weights[..., beyond].any()) for weights in found.attentions]
    assert sees == [not window, not window or "full_every" in fields]


def test_frozen_weights_stay_frozen(build: Any) -> None:
    decoder = Decoder(build("ngpt").config.shape())
    decoder.embed.weight.requires_grad_(False)
    model = hf.adapt(decoder)
    assert not decoder.embed.weight.requires_grad and decoder.head.weight.requires_grad
    assert not model.model.embed_tokens.weight.requires_grad
    scale = model.requires_grad_(False).logits_slot.scale.weight.fill_(2)
    model.resize_token_embeddings(61)
    assert model.logits_slot.scale.weight is scale
    model.resize_token_embeddings(70)
    assert model.logits_slot.scale.weight[:61].eq(2).all() and not model.logits_slot.scale.weight.requires_grad


def test_tables_of_token_vectors_do_not_grow(build: Any) -> None:
    with pytest.raises(geonorm.errors.ConfigError, match="values=token: tables of token vectors in the blocks do not"):
        build(values="token").resize_token_embeddings(70)
