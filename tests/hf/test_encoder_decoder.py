"""The encoder-decoder in transformers: its model's own function, in every way that transformers may call it, what it
writes with a cache and without, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm.errors import ConfigError
from geonorm.lab.data import NO_TEXT, load_tokenizer
from geonorm.nn import DecoderConfig
from geonorm.nn.encoder_decoder import EncoderDecoder
from geonorm.nn.sampling import generate_answer

transformers = pytest.importorskip("transformers")

from geonorm import hf  # noqa: E402
from geonorm.hf.encoder_decoder import adapt_both, both_name  # noqa: E402

SHAPE = DecoderConfig(
    layers=2, encoder_layers=3, width=16, heads=4, kv_heads=2, hidden=24, vocab_size=61, context=32
)  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "T5": {"positions": "relative", "mlp": "geglu"},
    "rotary": {},
    "tied, positions learned": {"positions": "learned", "embed_norm": True, "transform": True, "tied": True},
}
SCHEMES = ["geonorm", "pre(entry=embedding)", "ngpt", "hyper", "siamese", "attnres"]
TOKENS = {"decoder_start_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}


def build(scheme: str = "geonorm", **changes: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    model = EncoderDecoder(replace(SHAPE, scheme=scheme, **changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2 or "relative" in name:
                parameter += 0.1 * torch.rand(parameter.shape)
    return model


def texts() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, 61, (2, 9), generator=generator), torch.randint(2, 61, (2, 7), generator=generator)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_its_model_and_survives_saving(scheme: str, layout: str, tmp_path: Path) -> None:
    own = build(scheme, **LAYOUTS[layout])
    model, (source, answer) = adapt_both(own, **TOKENS), texts()
    assert model.get_input_embeddings().weight.data_ptr() == own.embed.weight.data_ptr()
    wanted = own(source, answer)
    out = model(input_ids=source, decoder_input_ids=answer, output_hidden_states=True)
    assert torch.equal(out.logits, wanted)
    assert [s.shape for s in out.encoder_hidden_states] == [(2, 9, 16)] * 4
    assert [s.shape for s in out.decoder_hidden_states] == [(2, 7, 16)] * 3
    model.save_pretrained(tmp_path)
    load = transformers.AutoModelForSeq2SeqLM.from_pretrained
    again, info = load(tmp_path, output_loading_info=True, attn_implementation="eager")
    assert not any(info.values()) and type(again) is hf.GeoNormForConditionalGeneration
    assert again.config.shape() == own.config
    seen = again(input_ids=source, decoder_input_ids=answer, output_attentions=True)
    torch.testing.assert_close(seen.logits, wanted, rtol=1e-3, atol=1e-4)
    assert [a.shape for a in seen.encoder_attentions] == [(2, 4, 9, 9)] * 3 and (seen.encoder_attentions[0] > 0).all()
    assert [a.shape for a in seen.cross_attentions] == [(2, 4, 7, 9)] * 2 and (seen.cross_attentions[0] > 0).all()
    assert [a.shape for a in seen.decoder_attentions] == [(2, 4, 7, 7)] * 2 and not seen.decoder_attentions[0].triu(
        1
    ).any()
    body = transformers.AutoModel.from_pretrained(tmp_path)
    assert torch.equal(
        body(input_ids=source, decoder_input_ids=answer).last_hidden_state, out.decoder_hidden_states[-1]
    )


def test_an_attention_function_that_asks_the_module_sees_each_side() -> None:
    """One that leaves `is_causal` out, as functions of one's own may: where no mask says it, the module does."""

    def ask(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any) -> tuple[Tensor, None]:
        k, v = (t.repeat_interleave(module.num_key_value_groups, 1) for t in (k, v))
        causal = module.is_causal and mask is None
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scaling)
        return seen.transpose(1, 2), None

    transformers.AttentionInterface.register("asks", ask)
    own, (source, answer) = build(), texts()
    model = adapt_both(own, **TOKENS)
    model.set_attn_implementation("asks")
    out = model(input_ids=source, decoder_input_ids=answer)
    torch.testing.assert_close(out.logits, own(source, answer), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_token_at_a_time_is_the_whole_answer(scheme: str) -> None:
    own = build(scheme, **LAYOUTS["T5"])
    model, (source, answer) = adapt_both(own, **TOKENS), texts()
    wanted, memory, past, found = own(source, answer), model.get_encoder()(source), None, []
    for token in answer.split(1, 1):
        out = model(encoder_outputs=memory, decoder_input_ids=token, past_key_values=past, use_cache=True)
        past = out.past_key_values
        found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-4, atol=2e-5)
    ours = torch.cat(list(generate_answer(own, source[:1], 1, 6, temperature=0)), 1)[0].tolist()
    ours = ours[: ours.index(1) + 1] if 1 in ours else ours
    for settings in ({}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}):
        written = model.generate(source[:1], max_new_tokens=6, do_sample=False, **settings)[0].tolist()
        assert written == [1, *ours], settings
    beams = model.generate(source, max_new_tokens=4, num_beams=3, num_return_sequences=2)
    assert beams.shape[0] == 4 and torch.equal(
        beams, model.generate(source, max_new_tokens=4, num_beams=3, num_return_sequences=2, use_cache=False)
    )


def test_a_rotation_that_changes_over_begins_the_cache_anew() -> None:
    own = build(rope_scaling="longrope(factor=4, short_factor=1 1, long_factor=3 9, original=4)")
    model, (source, _) = adapt_both(own, decoder_start_token_id=1, eos_token_id=60, pad_token_id=0), texts()
    cached, slow = (
        torch.cat(list(generate_answer(own, source, 1, 8, temperature=0, cached=cached)), 1) for cached in (True, False)
    )
    assert torch.equal(cached, slow)
    written = model.generate(source, max_new_tokens=8, do_sample=False)
    assert torch.equal(written, model.generate(source, max_new_tokens=8, do_sample=False, use_cache=False))
    ended = [*cached[0].tolist(), 60].index(60)
    assert written[0, 1 : 1 + ended].tolist() == cached[0, :ended].tolist()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("layout", ["T5", "rotary"])
def test_padding_changes_nothing(layout: str, implementation: str, side: str) -> None:
    """Of the source on either side, and of the answer."""
    own = build(**LAYOUTS[layout])
    model, (source, answer) = adapt_both(own, **TOKENS), texts()
    model.set_attn_implementation(implementation)

    def pad(ids: Tensor) -> tuple[Tensor, Tensor]:
        parts = [ids, torch.zeros(2, 4, dtype=ids.dtype)]
        masks = [torch.ones_like(ids), parts[1]]
        order = 1 if side == "right" else -1
        return torch.cat(parts[::order], 1), torch.cat(masks[::order], 1)

    (source, seen), (given, read) = pad(source), pad(answer)
    found = model(input_ids=source, attention_mask=seen, decoder_input_ids=given, decoder_attention_mask=read).logits
    assert found.isfinite().all()
    wanted = own(texts()[0], answer)
    torch.testing.assert_close(found[read.bool()].view(wanted.shape), wanted, rtol=1e-4, atol=2e-5)
    written = [
        model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
        for ids, mask in ((source, seen), (texts()[0], None))
    ]
    assert torch.equal(*written)


@pytest.mark.parametrize("scheme", ["ngpt", "hyper"])
def test_labels_are_what_a_run_learns_from_also_with_checkpointing(scheme: str) -> None:
    own = build(scheme, **LAYOUTS["T5"]).train()
    source, answer = texts()
    labels = torch.where(torch.arange(7) < 5, answer, -100)
    read = torch.cat((torch.ones_like(answer[:, :1]), answer[:, :5], torch.zeros_like(answer[:, :1])), 1)
    wanted = own.loss(torch.cat((source, read), 1), labels)
    wanted.backward()
    slopes = {both_name(name): p.grad for name, p in own.named_parameters()}
    for reentrant in (None, True, False):
        model = adapt_both(build(scheme, **LAYOUTS["T5"]), **TOKENS).train()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        out = model(input_ids=source, labels=labels, output_hidden_states=True)
        torch.testing.assert_close(out.loss, wanted, rtol=1e-5, atol=1e-6)
        out.loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, slopes[name], rtol=1e-3, atol=1e-5, msg=name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    model.constrain()
    if scheme == "ngpt":
        lengths = model.get_input_embeddings().weight.norm(dim=-1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_one_seed_draws_the_weights_of_the_model() -> None:
    config = hf.GeoNormEncoderDecoderConfig.of(SHAPE)
    for scheme in ("geonorm", "deepnorm", "ngpt"):
        config.scheme = scheme
        torch.manual_seed(3)
        ours = EncoderDecoder(config.shape()).state_dict()
        torch.manual_seed(3)
        theirs = hf.GeoNormForConditionalGeneration(config).state_dict()
        assert {both_name(name) for name in ours} == set(theirs)
        assert all(torch.equal(value, theirs[both_name(name)]) for name, value in ours.items()), scheme


def test_a_vocabulary_that_grows() -> None:
    for tied in (True, False):
        model, (source, answer) = adapt_both(build("ngpt", tied=tied), **TOKENS), texts()
        before = model(input_ids=source, decoder_input_ids=answer).logits
        model.resize_token_embeddings(64)
        after = model(input_ids=source, decoder_input_ids=answer).logits
        assert after.shape[-1] == 64 and model.config.vocab_size == 64
        torch.testing.assert_close(after[..., :61], before)
        assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT's own
def test_lora_finds_queries_and_values_of_all_attentions() -> None:
    peft = pytest.importorskip("peft")
    (source, answer), model = texts(), adapt_both(build(), **TOKENS)
    before = model(input_ids=source, decoder_input_ids=answer).logits
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="SEQ_2_SEQ_LM", init_lora_weights=False))
    found = [name for name, module in tuned.named_modules() if hasattr(module, "lora_A")]
    assert len(found) == 2 * (3 + 2 + 2) and sum(".cross." in name for name in found) == 4
    after = tuned(input_ids=source, decoder_input_ids=answer).logits
    assert not torch.allclose(after, before, atol=1e-3)
    merged = tuned.merge_and_unload()(input_ids=source, decoder_input_ids=answer).logits
    torch.testing.assert_close(merged, after, rtol=1e-4, atol=1e-4)


def test_half_precision_and_positions_of_packed_answers() -> None:
    model, (source, answer) = adapt_both(build(**LAYOUTS["T5"]), **TOKENS).bfloat16(), texts()
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        mask = torch.cat((torch.zeros(2, 2), torch.ones(2, 5)), 1).long()
        out = model(input_ids=source, decoder_input_ids=answer, decoder_attention_mask=mask, labels=answer)
        assert out.logits.dtype == torch.bfloat16 and out.logits.isfinite().all() and out.loss.isfinite()
    model = adapt_both(build(), **TOKENS)
    places = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    packed = model(input_ids=source, decoder_input_ids=answer, decoder_position_ids=places, use_cache=False).logits
    alone = model(input_ids=source, decoder_input_ids=answer[:, 3:]).logits
    torch.testing.assert_close(packed[:, 3:], alone, rtol=1e-4, atol=2e-5)


def test_what_is_frozen_is_frozen_in_a_t5() -> None:
    """And in the model that it was made of."""
    model = adapt_both(build("pre(entry=embedding)", **{**LAYOUTS["T5"], "kv_heads": None}), **TOKENS)
    model.requires_grad_(False)
    stock = hf.to_stock(model)
    assert not any(p.requires_grad for part in (stock, model) for p in part.parameters())
    model.model.decoder.blocks[0].cross.branch.q.requires_grad_(True)
    trained = [name for name, p in hf.to_stock(model).named_parameters() if p.requires_grad]
    assert trained == ["decoder.block.0.layer.1.EncDecAttention.q.weight"]


def test_a_t5_with_more_decoder_than_encoder_blocks_generates(tmp_path: Path) -> None:
    """transformers' `generate` makes it a cache of as many layers as the encoder has."""
    t5 = {**LAYOUTS["T5"], "kv_heads": None, "vocab_size": 263}
    source, byte = texts()[0], load_tokenizer("byte", NO_TEXT, 263, sentinels=6)
    for blocks, cached in ((1, False), (2, True)):
        own = build("pre(entry=embedding)", encoder_layers=blocks, **t5)
        folder = hf.export(own, byte.json, byte.eos, tmp_path / str(blocks), layout="stock", sentinels=byte.sentinels)
        theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder)
        assert theirs.generation_config.use_cache is not False or not cached
        wanted = adapt_both(own, decoder_start_token_id=byte.eos, eos_token_id=byte.eos, pad_token_id=byte.eos)
        written = [model.generate(source, max_new_tokens=6, do_sample=False) for model in (theirs, wanted)]
        assert torch.equal(*written)
        stock = hf.to_stock(wanted)
        assert torch.equal(stock.generate(source, max_new_tokens=6, do_sample=False), written[1])


def test_what_is_refused() -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
    assert hf.GeoNormEncoderDecoderConfig(**size).encoder_layers == 2
    source, answer = texts()
    model = adapt_both(build(), eos_token_id=1)
    for act, message in (
        (
            lambda: hf.GeoNormConfig(**size, encoder_layers=2),
            "encoder_layers 2 makes an encoder-decoder: use GeoNormEnc",
        ),
        (
            lambda: hf.GeoNormEncoderDecoderConfig(**size, sliding_window=4),
            "model.window 4 is not for encoder-decoders",
        ),
        (
            lambda: hf.GeoNormEncoderDecoderConfig(**size, is_causal=False),
            "model.causal False is not for encoder-decod",
        ),
        (lambda: hf.GeoNormEncoderDecoderConfig(**size, encoder_layer=2), "did you mean 'encoder_layers'"),
        (lambda: model(input_ids=source, labels=answer), "labels need decoder_start_token_id"),
    ):
        with pytest.raises(ConfigError, match=message):
            act()
    with pytest.raises(ValueError, match="give either decoder_input_ids or decoder_inputs_embeds"):
        model(input_ids=source)


def test_states_of_the_last_layer_of_an_encoder_that_is_deeper() -> None:
    model = adapt_both(build(layers=1, encoder_layers=3), eos_token_id=1).eval()
    found = model(torch.arange(1, 7)[None], decoder_input_ids=torch.arange(3)[None], output_hidden_states=[-1])
    kept = [state is not None for state in found.encoder_hidden_states]
    assert kept == [False, False, False, True]
