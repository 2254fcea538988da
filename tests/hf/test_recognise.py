"""The scheme of a model by the structure of its layers: families that differ from Llama, and wrong layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from geonorm import hf, probe  # noqa: E402
from geonorm.errors import ConfigError  # noqa: E402
from geonorm.measure.recognise import recognise  # noqa: E402

from ..conftest import EDGES, GROUPED  # noqa: E402
from ..rows import each  # noqa: E402

TINY = {**GROUPED, **EDGES, "num_hidden_layers": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_local_experts": 4}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
FULL_AND_LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2, **LINEAR}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "arcee": ({}, "pre"),
    "exaone4": ({"sliding_window": 4}, "olmo2"),
    "glm4": ({}, "peri"),
    "cohere": ({}, "pre"),
    "gpt_oss": ({**EXPERTS, "layer_types": ["sliding_attention", "full_attention"] * 2}, "pre"),
    "qwen3_5_text": (FULL_AND_LINEAR, "pre"),
    "qwen3_next": (
        {**FULL_AND_LINEAR, **EXPERTS, "mlp_only_layers": [1], "shared_expert_intermediate_size": 24},
        "pre",
    ),
    "mamba": ({"state_size": 4}, "pre"),
    "openai-gpt": ({}, "post"),
    "beam": ({**EXPERTS, "n_group": 1, "topk_group": 1, "n_routed_experts": 4}, "beam"),
}
"""Side by side, experts, windows, linear attention, layers that differ within one model."""


def moved(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@each("family", OTHERS)
def test_other_families_keep_their_logits_learn_are_saved_and_come_back(
    family: str, ids: Tensor, tmp_path: Path
) -> None:
    settings, placement = OTHERS[family]
    model = moved(transformers.AutoConfig.for_model(family, **{**TINY, **settings}))
    with torch.no_grad():
        wanted = model(ids).logits
    scheme = hf.scheme_of(model)
    assert str(scheme) == f"{placement}(entry=embedding)"
    report = hf.apply(model, scheme)
    torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    report.undo()
    assert torch.equal(model(ids).logits, wanted)
    sites = probe(model, ids).sites
    assert len({(row["layer"], row["kind"]) for row in sites}) == report.sites
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


Change = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


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


def per_channel(layer: Any, x: Tensor, u: Tensor, y: Tensor) -> Tensor:
    return x + torch.linspace(0.9, 1.1, x.shape[-1]) * u


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
    "a factor per channel": {"write": per_channel},
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
    """Gains that are not the norm's weight, a stream that is changed between blocks, parameters that nothing reads."""
    for change, said in (
        (lambda m: m.model.layers[1].register_forward_pre_hook(lambda _, args: (1.01 * args[0], *args[1:])), "changes"),
        (lambda m: m.model.layers[0].input_layernorm.register_forward_hook(lambda *a: 1.01 * a[2]), "handed more"),
    ):
        model = copy.deepcopy(tiny_model("llama")[0])
        change(model)
        with pytest.raises(ConfigError, match=said):
            hf.scheme_of(model)
    model = moved(transformers.AutoConfig.for_model("arcee", **TINY))
    model.model.layers[1].adapter = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"parameters that apply does not know: adapter\.weight"):
        hf.apply(model, "geonorm")
    assert type(model).__name__ == "ArceeForCausalLM"


@each("family, said", [("minimax", "the stream begins again"), ("bloom", "mlp")])
def test_other_rules_are_refused_with_what_was_seen(family: str, said: str) -> None:
    settings = {**TINY, **EXPERTS, "n_layer": 2, "n_head": 4, "n_group": 1, "topk_group": 1, "n_routed_experts": 4}
    model = moved(transformers.AutoConfig.for_model(family, **settings))
    for call in (hf.scheme_of, lambda model: hf.apply(model, "geonorm")):
        with pytest.raises(ConfigError, match=said) as refused:
            call(model)
        assert "seen before it" in str(refused.value) and "\n" not in str(refused.value)


@torch.no_grad()
@each("factor", [0.99, 1.01])
def test_another_factor_is_not_beam(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.beam import modeling_beam

    model = moved(transformers.AutoConfig.for_model("beam", **{**TINY, **OTHERS["beam"][0]}))
    add = modeling_beam.depth_scaled_residual_add
    monkeypatch.setattr(modeling_beam, "depth_scaled_residual_add", lambda *args: factor * add(*args))
    with pytest.raises(ConfigError, match="rebuilt under beam"):
        hf.scheme_of(model)
