"""The scheme of a model by the structure of its layers: families that differ from Llama, and wrong layers."""

import copy
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from geonorm import hf, probe
from geonorm.errors import ConfigError
from geonorm.hf.tiny import default_config, tiny
from geonorm.measure.anatomy import FAMILIES, bert
from geonorm.measure.recognise import recognise, stack_of
from geonorm.schemes import enter_as, find, names, parse
from geonorm.schemes.registry import name_of

from ..conftest import CASES
from ..rows import each

OTHERS = {
    **dict.fromkeys(("arcee", "cohere", "gpt_oss", "qwen3_5_text", "qwen3_next", "mamba", "recurrent_gemma"), "pre"),
    **dict.fromkeys(("falcon_h1", "diffllama", "nanochat", "bamba", "glm_moe_dsa"), "pre"),
    **{name: "post" for name, stacks in FAMILIES.items() if stacks is bert and name not in CASES},
    "exaone4": "olmo2", "glm4": "peri", "beam": "beam", "zaya": "affine", "gemma4_text": "peri(layer_scalar=learned)",
}  # fmt: skip
"""Side by side, experts, linear attention, layers that differ, learned parts, choices handed on; known by name."""
SEEN = {
    "muse_spark_text": "muse", "deepseek_v4": "mhc(head=learned)", "glm5_next_text": "mhc(head=mean)",
    "hy_v4": "mhc(mix=identity, head=learned)", "qwen4_exp_text": "gated_streams",
    "inkling2_text": "attnres(blocks=2, values=norm, queries=qkv, every=6)",
}  # fmt: skip
"""A text model without a head, and several streams."""
SHIPPED = {
    "beam": "Beam", "zaya": "ZAYA1", "gemma4_text": "Gemma 4", "glm4": "GLM-4", "exaone4": "EXAONE 4.0",
    "muse_spark_text": "Muse-Spark", "deepseek_v4": "DeepSeek-V4", "glm5_next_text": "GLM-5.3", "hy_v4": "Hy4",
    "qwen4_exp_text": "Qwen4-Exp", "gpt_oss": "gpt-oss", "olmo2": "OLMo 2", "olmo3": "3", "flex_olmo": "FlexOlmo",
    "gemma2": "Gemma 2", "gemma3_text": "3", "afmoe": "AFMoE", "kolibri1": "Kolibri 1", "lfm3": "LFM3",
    "muse_glimmer_text": "Muse Glimmer", "hyperclovax": "HyperCLOVA X", "openai-gpt": "the first GPT", "bart": "BART",
    "marian": "Marian", "mistral": "Mistral", "qwen3": "Qwen3", "deepseek_v3": "DeepSeek-V3", "granite": "Granite",
    "inkling2_text": "Inkling-2", "mistral_large4_text": "Mistral",
}  # fmt: skip
"""What About calls the models of a family that ship the scheme."""


def built(family: str) -> Any:
    return tiny(default_config(family))


def entering(scheme: str) -> str:
    return str(enter_as(parse(scheme), "embedding"))


def test_the_schemes_say_which_models_ship_them() -> None:
    """All that say so, but layerscale, of vision models, and two whose norm is moved (tests/parity/test_shipped.py)."""
    schemes = {family: hf.scheme_of(built(family)) for family in SHIPPED}
    assert [family for family, name in SHIPPED.items() if name not in schemes[family].about.shipped] == []
    assert {family: str(schemes[family]) for family in SEEN} == {name: entering(rule) for name, rule in SEEN.items()}
    for family, scheme in (("hy_v4", schemes["hy_v4"]), ("nanochat", schemes["mistral"])):
        assert hf.scheme_of(built(family).bfloat16()) == scheme, "the nearest head; a norm of a norm is a norm"
    named = {name for name in names() if find(name).about.shipped}
    assert named - {name_of(type(scheme)) for scheme in schemes.values()} == {"layerscale", "deepnorm", "ngpt"}


@each("family", OTHERS)
def test_other_families_keep_their_logits_learn_are_saved_and_come_back(
    family: str, ids: Tensor, tmp_path: Path
) -> None:
    model = built(family)
    with torch.no_grad():
        wanted = model(ids).logits
    scheme = hf.scheme_of(model)
    assert str(scheme) == entering(OTHERS[family])
    report = hf.apply(model, scheme)
    torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    report.undo()
    assert torch.equal(model(ids).logits, wanted)
    sites = {(row["layer"], row["kind"], row["scheme"]) for row in probe(model, ids).sites}
    assert len(sites) == report.sites and {rule for *_, rule in sites} == {str(scheme)}
    hf.apply(model, "geonorm")
    optimizer = torch.optim.AdamW(model.train().parameters(), 3e-3)
    losses = []
    for _ in range(4):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval().save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(ids).logits, model(ids).logits)  # of experts not bit for bit
    assert again.config.scheme == "geonorm"
    assert transformers.PreTrainedConfig.from_pretrained(tmp_path).scheme == "geonorm"  # as Trainer reads it to resume


@each("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each("family", ["llama", "glm4"])
def test_a_model_as_it_begins_is_recognised(family: str, dtype: torch.dtype) -> None:
    """Before training a norm of the stream is nearly the stream, and rounding gives both a factor."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "vocab_size": 256}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "pad_token_id": 0}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(family, **shape), dtype=dtype
    )
    assert str(hf.scheme_of(model)) == entering({"llama": "pre", "glm4": "peri"}[family])


Change = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def test_scales_that_have_moved_are_recognised_in_half_precision(tmp_path: Path) -> None:
    """Zaya has learned scales on an fp32 stream, and a bf16 update."""
    tiny(default_config("zaya")).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert str(hf.scheme_of(model)) == "affine(entry=embedding)"


def planted(write: Change | None = None, reading: float = 1.0, norm: bool = True, start: bool = False) -> type:
    """Llama's layer, with another attention sub-layer or an MLP that adds to the stream of the block's start."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    class Layer(LlamaDecoderLayer):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
            x = first = hidden_states
            y = self.input_layernorm(x)
            u = self.self_attn(hidden_states=reading * y if norm else x, **kwargs)[0]
            x = x + u if write is None else write(self, x, u, y)
            out: Tensor = (first if start else x) + self.mlp(self.post_attention_layernorm(x))
            return out

    return Layer


def tangential(layer: Any, x: Tensor, u: Tensor, y: Tensor) -> Tensor:
    return x + u - (u * x).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x


WRONG: dict[str, dict[str, Any]] = {
    "a factor of the stream": {"write": lambda layer, x, u, y: 1.01 * x + u},
    "a factor of the stream, a norm of the update": {
        "write": lambda layer, x, u, y: 0.7 * x + layer.input_layernorm(u)
    },
    "a factor of the update": {"write": lambda layer, x, u, y: x + 1.01 * u},
    "a factor of the reading": {"reading": 1.01},
    "no norm before the attention": {"norm": False},
    "a norm of the stream after it": {"write": lambda layer, x, u, y: layer.input_layernorm(x + u)},
    "a norm of the update": {"write": lambda layer, x, u, y: x + layer.input_layernorm(u)},
    "the reading is added": {"write": lambda layer, x, u, y: y + u},
    "the update is tangential": {"write": tangential},
    "a factor per channel": {"write": lambda layer, x, u, y: x + torch.linspace(0.9, 1.1, x.shape[-1]) * u},
    "a constant is added": {"write": lambda layer, x, u, y: x + u + 0.01},
    "added to the start of the block": {"start": True},
}


@torch.no_grad()
@each("wrong, layers", [(name, layers) for name in WRONG for layers in ((1,), (0, 1, 2))])
def test_a_layer_that_is_wrong_is_never_taken_for_the_rule(wrong: str, layers: Any, tiny_model: Any) -> None:
    """In one block or in all: refused, or another rule."""
    model = copy.deepcopy(tiny_model("llama")[0])
    for layer in layers:
        model.model.layers[layer].__class__ = planted(**WRONG[wrong])
    try:
        scheme = str(hf.scheme_of(model))
    except ConfigError as refused:
        assert "\n" not in str(refused)
    else:
        assert scheme != "pre(entry=embedding)", wrong


@torch.no_grad()
@each("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_rule_in_other_words_and_a_factor_of_the_update(dtype: torch.dtype, tiny_model: Any) -> None:
    model = copy.deepcopy(tiny_model("llama")[0]).to(dtype)
    for layer in model.model.layers:
        layer.__class__ = planted()
    assert str(hf.scheme_of(model)) == "pre(entry=embedding)"
    model.model.layers[2].multiplier = 1.01  # as Granite's blocks have one; without it the factor is another rule
    model.model.layers[2].__class__ = planted(lambda layer, x, u, y: x + layer.multiplier * u)
    assert [layer[0].branches[0].scale for layer in recognise(model).layers] == [None, None, 1.01]


@torch.no_grad()
def test_what_is_wrong_beside_the_sums_is_refused(tiny_model: Any) -> None:
    """Gains that are not the norm's weight, a stream changed between blocks, parameters that nothing reads, NaN."""
    for change, said in (
        (lambda m: m.model.layers[1].register_forward_pre_hook(lambda _, args: (1.01 * args[0], *args[1:])), "changes"),
        (lambda m: m.model.layers[0].input_layernorm.register_forward_hook(lambda *a: 1.01 * a[2]), "handed more"),
        (lambda m: m.model.layers[1].mlp.down_proj.weight[0].fill_(torch.nan), r"layers\.1 .* holds NaN or infinity"),
    ):
        model = copy.deepcopy(tiny_model("llama")[0])
        change(model)
        with pytest.raises(ConfigError, match=said):
            hf.scheme_of(model)
    model = built("arcee")
    model.model.layers[1].adapter = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"parameters that apply does not know: adapter\.weight"):
        hf.apply(model, "geonorm")
    assert type(model).__name__ == "ArceeForCausalLM"


@each("family, said", [("minimax", "the stream begins again"), ("bloom", "mlp")])
def test_other_rules_are_refused_with_what_was_seen(family: str, said: str) -> None:
    model = built(family)
    for call in (hf.scheme_of, lambda model: hf.apply(model, "geonorm")):
        with pytest.raises(ConfigError, match=said) as refused:
            call(model)
        assert "seen before it" in str(refused.value) and "\n" not in str(refused.value)


# what in the modeling file of a family makes the rule, and which number of its results is off
RULES = {
    "beam": ("beam.depth_scaled_residual_add", None), "zaya": ("zaya.ZayaResidualScaling.forward", None),
    "muse_spark_text": ("muse_spark.MuseSparkResidualGate.forward", None),
    "gemma4_text": ("gemma4.Gemma4TextDecoderLayer.forward", None),
    "deepseek_v4": ("deepseek_v4.DeepseekV4HyperConnection.forward", 0),
    "glm5_next_text": ("glm5_next.Glm5NextTextHyperConnection.forward", 1),
    "hy_v4": ("hy_v4.HYV4HyperConnection.forward", 0),
    "inkling2_text": ("inkling2.Inkling2UnweightedRMSNorm.forward", None),
    "qwen4_exp_text": ("qwen4_exp.Qwen4ExpTextGatedResidual.forward", 2),
}  # fmt: skip


@torch.no_grad()
@each("family, factor", [(family, factor) for family in RULES for factor in (0.99, 1.01)])
def test_another_factor_is_another_rule(family: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    place, number = RULES[family]
    file, *parents, name = place.split(".")
    home = reduce(getattr, parents, import_module(f"transformers.models.{file}.modeling_{file}"))
    rule = getattr(home, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        out = rule(*args, **kwargs)
        if not isinstance(out, tuple):
            return factor * out
        return tuple(factor * each if at == number else each for at, each in enumerate(out))

    monkeypatch.setattr(home, name, wrong)
    with pytest.raises(ConfigError, match=r"rebuilt under|leave in another way|changes the stream"):
        hf.scheme_of(built(family))


def test_a_factor_that_has_been_changed_is_seen(tiny_model: Any) -> None:
    model = copy.deepcopy(tiny_model("granite")[0])
    for factor in (0.22, 0.5):
        for layer in model.model.layers:
            layer.residual_multiplier = factor
        assert stack_of(model).sublayers[0].branches[0].scale == factor


@each("family, streams", [("hy_v4", 4), ("qwen4_exp_text", 4), ("inkling2_text", 3)])
def test_streams_are_not_changed(family: str, streams: int, ids: Tensor) -> None:
    """The probe reads their mean, where blocks hand on all of them."""
    model = built(family)
    with pytest.raises(ConfigError, match="part and meet outside of its blocks"):
        hf.apply(model, "geonorm")
    if family == "inkling2_text":
        with pytest.raises(ConfigError, match="beside the hidden state"):
            probe(model, ids)
        return
    seen: list[Tensor] = []
    home, *_ = next(layers for layers in model.modules() if isinstance(layers, nn.ModuleList))
    home.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for handed in (ids, ids[:, :streams]):  # as many tokens as streams, too
        radius = probe(model, handed).sites[0]["radius"]
        mean = seen[-1].view(*handed.shape, streams, -1).mean(-2)
        assert radius == pytest.approx(float(mean.norm(dim=-1).mean()), rel=1e-4)
