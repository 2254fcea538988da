"""What loads and serves models from a folder: vLLM's Transformers backend step by step, accelerate's device maps."""

import re
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from geonorm import names

from ..rows import each

SOME = ["geonorm", "pre", "hybrid", "hyper"]


def joined(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, attention_instances: Any, **more: Any
) -> tuple[Tensor, None]:
    """An attention function with the contract of vLLM's: one text, no mask, (tokens, heads * head_dim) back."""
    assert mask is None and q.shape[0] == 1
    layer: str = attention_instances[module.layer_idx]
    assert layer == f"layer {module.layer_idx}"
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
    return out[0].transpose(0, 1).flatten(1), None


class Parallel(nn.Module):
    """In the place of a linear layer, as vLLM puts its own there: another class, its weight made after the model."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def served(folder: Path, ids: Tensor) -> tuple[Tensor, list[str]]:
    """Logits (tokens, vocabulary) of one text as vLLM computes them: base model on meta, linear layers and embedding
    exchanged, weights from the file by name, its own head; and the names of weights that it has no place for."""
    transformers.AttentionInterface.register("joined", joined)
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = "joined"
    with accelerate.init_empty_weights(include_buffers=False):  # what vLLM copied
        base = transformers.AutoModel.from_config(config, dtype=torch.float32)
    assert type(base).is_backend_compatible() and base.get_decoder() is base
    assert {p.device.type for p in base.parameters()} == {"meta"}
    assert all(b.device.type == "cpu" for b in base.buffers())
    weights = load_file(folder / "model.safetensors")
    for pattern in base._keys_to_ignore_on_load_unexpected:
        weights = {name: value for name, value in weights.items() if not re.search(pattern, name)}
    for path, module in list(base.named_modules()):
        if isinstance(module, nn.Linear):
            weight, bias = weights.pop(f"model.{path}.weight"), weights.pop(f"model.{path}.bias", None)
            base.set_submodule(path, Parallel(weight, bias))
    base.set_input_embeddings(nn.Embedding.from_pretrained(weights.pop("model.embed_tokens.weight")))
    for name, parameter in list(base.named_parameters()):
        if parameter.is_meta:
            path, _, leaf = name.rpartition(".")
            setattr(base.get_submodule(path), leaf, nn.Parameter(weights.pop(f"model.{name}")))
    with torch.no_grad():
        hidden = base(
            input_ids=ids,
            inputs_embeds=None,
            use_cache=False,
            position_ids=torch.arange(ids.shape[1]).unsqueeze(0),
            attention_instances={i: f"layer {i}" for i in range(config.num_hidden_layers)},
            return_dict=False,
        )[0][0]
    head = weights.pop("lm_head.weight") if not config.tie_word_embeddings else base.get_input_embeddings().weight
    return hidden @ head.T * getattr(config, "logit_scale", 1.0), sorted(weights)


BIASED = {"norm": "layer", "mlp": "gelu", "bias": True}
SERVED: list[tuple[str, dict[str, Any]]] = [
    *((scheme, {}) for scheme in SOME),
    ("geonorm", {"tie_word_embeddings": True}),
    ("geonorm", {"block": "parallel", "qk_norm": "full"}),
    ("hyper", {"block": "parallel", "tie_word_embeddings": True}),
    *(("geonorm", {**BIASED, "positions": positions}) for positions in ("learned", "none")),
]


@each("scheme, fields", SERVED)
def test_vllm_computes_the_same_logits(scheme: str, fields: Any, build: Any, ids: Any, tmp_path: Path) -> None:
    model = build(scheme, **fields)
    model.save_pretrained(tmp_path)
    logits, left = served(tmp_path, ids[:1])
    assert not left
    torch.testing.assert_close(logits, model(ids[:1]).logits[0], rtol=1e-5, atol=1e-5)


PLACES = [(scheme, "blocks") for scheme in (*names(), "geonorm(learn=affine)")]
PLACES += [*((scheme, "ends") for scheme in (*SOME, "ngpt")), ("geonorm", "none"), ("ngpt", "none")]


@each("scheme, disk", PLACES)
def test_device_maps(scheme: str, disk: str, build: Any, ids: Any, tmp_path: Path) -> None:
    model = build(scheme)
    model.save_pretrained(tmp_path / "model", max_shard_size="10KB")
    places: dict[str, Any] = {"model.blocks.0": "cpu", "model.blocks.1": "disk" if disk == "blocks" else "cpu"}
    ends = ["model.embed_tokens", "model.entry", "model.exit", "lm_head"]
    ends += ["logits_slot"] if model.logits_slot is not None else []
    places.update(dict.fromkeys(ends, "disk" if disk == "ends" else "cpu"))
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map="auto" if disk == "none" else places, offload_folder=tmp_path / "offload"
    )
    assert any(p.is_meta for p in again.parameters()) == (disk != "none")  # on disk until it is used
    assert torch.equal(again(ids).logits, model(ids).logits)
