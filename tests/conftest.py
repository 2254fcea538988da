"""The environment of all tests, and tiny random models: one for each kind of block, and each family known by name."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

# What the tests and the processes that they start need, whatever the shell has set, before anything imports torch. One
# thread each: sums in another order round differently, and two processes are compared bit for bit. No network.
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}
# Compiled files are used again, by the processes that tests start too: to rewrite the asserts of all tests takes each
# worker 15 seconds, and to compile the package each process one.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

VOCAB, WIDTH = 67, 32
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "vocab_size": VOCAB, "head_dim": 8, "max_position_embeddings": 64}
PLAIN = {**SHAPE, "vocab_size": VOCAB, "max_position_embeddings": 64}
OLD = {"n_embd": WIDTH, "n_layer": 3, "n_head": 4, "n_inner": 48, "vocab_size": VOCAB, "n_positions": 64}
EDGES = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EDGED = {**PLAIN, **EDGES}
GEMMA3 = {**GROUPED, **EDGES, "sliding_window": 8, "query_pre_attn_scalar": 8}
FALCON = {**SHAPE, **EDGES, "vocab_size": VOCAB, "ffn_hidden_size": 48, "bias": True}
FALCON.pop("intermediate_size")
BERT = {**PLAIN, "hidden_dropout_prob": 0.1, "type_vocab_size": 2}
T5 = {"d_model": WIDTH, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48}
T5 |= {"vocab_size": VOCAB, "decoder_start_token_id": 0}
OPT = {**EDGED, "ffn_dim": 48, "word_embed_proj_dim": WIDTH}
LOCAL = {"attention_types": [[["global", "local"], 2]], "window_size": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
VISION = {**SHAPE, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4}
IMAGES = {"vision_config": VISION, "mm_tokens_per_image": 4, "image_token_index": 66}
MULTIPLIERS = {"residual_multiplier": 0.22, "embedding_multiplier": 3.0, "attention_multiplier": 0.3}
ONE_AFTER_THE_OTHER = {"parallel_attn": False, "multi_query": False}
MIXED = {"global_attn_every_n_layers": 2, "local_attention": 8}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA3}),
    "gemma3": ("Gemma3ForConditionalGeneration", {"text_config": GEMMA3, **IMAGES}),
    "olmo2": ("Olmo2ForCausalLM", {**EDGED, "num_key_value_heads": 2}),
    "gpt2": ("GPT2LMHeadModel", {**OLD, **EDGES}),
    "gpt_neox": ("GPTNeoXForCausalLM", EDGED),
    "gptj": ("GPTJForCausalLM", {**OLD, **EDGES, "rotary_dim": 4}),
    "gpt_neo": ("GPTNeoForCausalLM", {**EDGED, **LOCAL, "num_hidden_layers": 4}),
    "opt": ("OPTForCausalLM", OPT),
    "opt-post": ("OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": WIDTH // 2}),
    "phi": ("PhiForCausalLM", EDGED),
    "phi3": ("Phi3ForCausalLM", {**EDGED, "num_key_value_heads": 2}),
    "olmo": ("OlmoForCausalLM", {**EDGED, "num_key_value_heads": 2, "clip_qkv": 1.0}),
    "granite": ("GraniteForCausalLM", {**EDGED, **MULTIPLIERS, "num_key_value_heads": 2, "logits_scaling": 2.0}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**GROUPED, **EDGES, **EXPERTS, "mlp_only_layers": [1]}),
    "stablelm-parallel": ("StableLmForCausalLM", {**EDGED, "use_parallel_residual": True, "num_key_value_heads": 2}),
    "falcon-two": ("FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-sequential": ("FalconForCausalLM", {**FALCON, **ONE_AFTER_THE_OTHER, "alibi": True}),
    "modernbert": ("ModernBertForMaskedLM", {**EDGED, **MIXED, "cls_token_id": 1, "sep_token_id": 2}),
    "bert": ("BertForMaskedLM", BERT),
    "bert-decoder": ("BertLMHeadModel", {**BERT, **EDGES, "is_decoder": True, "add_cross_attention": True}),
    "roberta": ("RobertaForMaskedLM", {**BERT, **EDGES, "pad_token_id": 1, "bos_token_id": 0}),
    "vit": ("ViTModel", {**SHAPE, "image_size": 16, "patch_size": 4, "num_channels": 3}),
    "t5": ("T5ForConditionalGeneration", {**T5, **EDGES, "feed_forward_proj": "gated-gelu"}),
    "t5-encoder": ("T5EncoderModel", T5),
}  # fmt: skip


@cache
def build(case: str) -> tuple[Any, dict[str, Any]]:
    """(model in evaluation mode, keyword arguments of a forward pass): 2 sequences of 9 tokens, none of them padding.

    Every parameter is moved away from its start, so that no gain is 1 and no bias 0.
    """
    import torch
    import transformers

    name, settings = CASES[case]
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(3, VOCAB - 1, (2, 9))
    inputs: dict[str, Any] = {"input_ids": ids}
    if case == "vit":
        inputs = {"pixel_values": torch.randn(2, 3, 16, 16)}
    if case == "t5":
        inputs["decoder_input_ids"] = torch.randint(3, VOCAB, (2, 7))
    if case == "bert-decoder":
        inputs["encoder_hidden_states"] = torch.randn(2, 5, WIDTH)
    return model, inputs


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokens are prepared once for all tests, and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEONORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def nothing_from_elsewhere() -> None:
    """A test begins as a process does: no file of settings was read, no scheme from elsewhere is loaded."""
    from geonorm import elsewhere

    elsewhere.SETTINGS.set(("", ""))
    elsewhere.MODULES.clear()


Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


@pytest.fixture
def tiny_model() -> Tiny:
    """tiny_model(case) for a name in CASES: a model and the inputs of one forward pass. Shared: leave it as it is."""
    pytest.importorskip("transformers")
    return build
