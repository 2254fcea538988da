"""Whole models of transformers, rebuilt: every residual of theirs replaced by ours, their sub-layers kept.

A tiny model of each family gets random weights. In a copy, each layer (found by the name of its class) becomes a chain
of `geonorm.Residual`s around the layer's own attention and MLP, with its norm weights copied. The two models then
give the same output and the same gradient for every parameter, embeddings included, in fp64.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import Residual, Site

from ..rows import each

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")

Run = Callable[[nn.Module], Tensor]
Branch = Callable[..., Any]  # (the layer of transformers, what the branch reads, **what the layer was called with)


def call(path: str, **renamed: str) -> Branch:
    """The sub-layer at `path`, given those arguments of the layer that it takes."""

    def run(layer: nn.Module, y: Tensor, **given: Any) -> Any:
        module = attrgetter(path)(layer)
        takes = inspect.signature(module.forward).parameters
        given = {renamed.get(key, key): value for key, value in given.items()}
        return module(y, **{key: value for key, value in given.items() if key in takes})

    return run


def chain(*paths: str) -> Branch:
    """Position-wise modules one after the other."""

    def run(layer: nn.Module, y: Tensor, **given: Any) -> Tensor:
        for path in paths:
            y = attrgetter(path)(layer)(y)
        return y

    return run


def together(attention: Branch, mlp: Branch) -> Branch:
    """Attention and MLP side by side as one update."""

    def run(layer: nn.Module, y: Tensor, **given: Any) -> tuple[Any, ...]:
        update, *rest = attention(layer, y, **given)
        return update + mlp(layer, y, **given), *rest

    return run


def affine(path: str, branch: Branch) -> Branch:
    """The gains of a norm at the door of the branch: where two branches share one N but not its gains."""

    def run(layer: nn.Module, y: Tensor, **given: Any) -> Any:
        norm = attrgetter(path)(layer)
        return branch(layer, y * norm.weight + norm.bias, **given)

    return run


def keyed(branch: Branch) -> Branch:
    """Cross-attention in BART's layer: keys and mask have other names there."""

    def run(layer: nn.Module, y: Tensor, **given: Any) -> Any:
        keys, mask = given["encoder_hidden_states"], given["encoder_attention_mask"]
        return branch(layer, y, **{**given, "key_value_states": keys, "attention_mask": mask})

    return run


def bloom(path: str) -> Branch:
    """BLOOM's sub-layers add the residual themselves: zero makes them the update alone."""

    def run(layer: nn.Module, y: Tensor, **given: Any) -> Any:
        return call(path)(layer, y, residual=torch.zeros_like(y), **given)

    return run


def windows(layer: nn.Module, y: Tensor, input_dimensions: tuple[int, int], **given: Any) -> Tensor:
    """Swin's attention in one window that covers the picture."""
    assert layer.shift_size == 0 and (layer.window_size,) * 2 == tuple(input_dimensions)
    out: Tensor = layer.attention(y)[0]
    return out


class Calls(nn.Module):
    def __init__(self, layer: nn.Module, branch: Branch) -> None:
        super().__init__()
        self.layer, self.run = layer, branch

    def forward(self, y: Tensor, **given: Any) -> Any:
        out = self.run(self.layer, y, **given)
        return tuple(out) if isinstance(out, list) else out


@dataclass
class Part:
    """One residual: site kind, branch, and for each of the scheme's own modules where its weights come from."""

    kind: str
    branch: Branch
    own: dict[str, str] = field(default_factory=dict)


def attn(branch: str | Branch, **own: str) -> Part:
    return Part("attn", call(branch) if isinstance(branch, str) else branch, own)


def mlp(branch: str | Branch, **own: str) -> Part:
    return Part("mlp", chain(branch) if isinstance(branch, str) else branch, own)


@dataclass
class Layer:
    """How a layer of transformers reads in our words."""

    scheme: str
    norm: str
    parts: list[Part]
    offset: float = 0.0  # their gain is offset + weight
    gains: bool = True
    eps: float | None = None  # None: as their norms say
    answer: str = "stream"  # or "tuple": the layer returns the stream and what else the first branch returned


class Rebuilt(nn.Module):
    """A layer of transformers as a chain of our residuals, called and answering as the layer was."""

    def __init__(self, layer: nn.Module, spec: Layer, index: int, depth: int, width: int) -> None:
        super().__init__()
        self.called_with = inspect.signature(layer.forward)
        # since transformers 5.24 GPT-J's layer returns the stream alone
        self.answer = "stream" if self.called_with.return_annotation is Tensor else spec.answer
        self.pairs: list[tuple[str, str]] = []  # (name of our parameter, name of theirs)
        for key, value in vars(layer).items():
            if isinstance(value, (str, int)) and not key.startswith("_") and key != "training":
                setattr(self, key, value)  # such as attention_type, which the model reads from its layers
        parts = []
        for n, part in enumerate(spec.parts):
            eps = spec.eps
            for path in part.own.values():
                norm = attrgetter(path)(layer)
                eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", eps)) if spec.eps is None else eps
            site = Site(index, part.kind, depth, 3 if part.kind == "cross" else 2)
            residual = Residual(Calls(layer, part.branch), spec.scheme, site, width, spec.norm, spec.gains, eps or 0.0)
            for own, path in part.own.items():
                self.tie(residual.own[own], attrgetter(path)(layer), f"parts.{n}.own.{own}", path, spec.offset)
            parts.append(residual)
        self.parts = nn.ModuleList(parts)

    def tie(self, own: nn.Module, theirs: nn.Module | nn.Parameter, name: str, path: str, offset: float) -> None:
        """Copies their weights: of a norm by name, else the one vector that both have (a learned scale)."""
        if isinstance(theirs, nn.Parameter):
            named = {path: theirs}
        else:
            named = {f"{path}.{key}": value for key, value in theirs.named_parameters()}
        for full, value in named.items():
            key = "bias" if full.endswith(".bias") else "weight"
            own.get_parameter(key).data = value.data + (offset if key == "weight" else 0.0)
            self.pairs.append((f"{name}.{key}", full))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = self.called_with.bind(*args, **kwargs).arguments
        given = {**given, **given.pop("kwargs", {})}
        x = given.pop(next(iter(self.called_with.parameters)))
        rest: list[Any] = []
        for n, part in enumerate(self.parts):
            out = part(x, **given)
            x, *more = out if isinstance(out, tuple) else (out,)
            rest = more if n == 0 else rest
        return (x, *rest) if self.answer == "tuple" else x


# fmt: off
TEXT = {
    "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "attention_dropout": 0.0, "use_cache": False,
}
HEADS = {**TEXT, "head_dim": 4}
GPT2 = {"vocab_size": 29, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
GPT1 = {**GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BERT = {**TEXT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OPT = {**TEXT, "ffn_dim": 24, "do_layer_norm_before": False, "dropout": 0.0, "word_embed_proj_dim": 16}
BLOOM = {"vocab_size": 29, "hidden_size": 16, "n_layer": 2, "n_head": 4, "hidden_dropout": 0, "attention_dropout": 0}
T5 = {"vocab_size": 29, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
BART = {
    "vocab_size": 29, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "dropout": 0.0,
}
PICTURE = {
    "image_size": 8, "patch_size": 2, "num_channels": 3, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 24, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0,
}
SWIN = {
    "image_size": 8, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [4], "window_size": 4,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0,
}

IN, POST = "input_layernorm", "post_attention_layernorm"
GEMMA = (IN, POST, "pre_feedforward_layernorm", "post_feedforward_layernorm")
GLM = (IN, "post_self_attn_layernorm", POST, "post_mlp_layernorm")


def pre(norm: str = "rms", scheme: str = "pre", **options: Any) -> Layer:
    return Layer(scheme, norm, [attn("self_attn", input=IN), mlp("mlp", input=POST)], **options)


def peri(a: str, b: str, c: str, d: str, **options: Any) -> Layer:
    return Layer("peri", "rms", [attn("self_attn", input=a, output=b), mlp("mlp", input=c, output=d)], **options)


def side_by_side(attention: str, norm: str, answer: str = "stream") -> Layer:
    part = Part("parallel", together(call(attention), chain("mlp")), {"input": norm})
    return Layer("pre", "layer", [part], answer=answer)


def two_gains(attention: str, first: str, second: str, answer: str = "stream") -> Layer:
    """Attention and MLP side by side with two norms: one N without gains, the gains in the branches."""
    branch = together(affine(first, call(attention)), affine(second, chain("mlp")))
    return Layer("pre", "layer", [Part("parallel", branch)], gains=False, eps=1e-5, answer=answer)


def t5(part: Part, answer: str = "tuple") -> Layer:
    part.own = {"input": "layer_norm"}
    return Layer("pre", "rms", [part], answer=answer)


def bert(layer: nn.Module, y: Tensor, **given: Any) -> Tensor:
    out: Tensor = layer.attention.output.dense(call("attention.self")(layer, y, **given)[0])
    return out


FEED = mlp(chain("fc1", "activation_fn", "fc2"), stream="final_layer_norm")
SELF = attn("self_attn", stream="self_attn_layer_norm")
CROSS = Part("cross", keyed(call("encoder_attn")), {"stream": "encoder_attn_layer_norm"})
BARE = [attn("self_attn"), mlp("mlp")]
OUT = Layer("olmo2", "rms", [attn("self_attn", output=POST), mlp("mlp", output="post_feedforward_layernorm")])
SCALED = Layer("layerscale", "layer", [
    attn("attention", input="layernorm_before", scale="lambda_1"),
    mlp("mlp", input="layernorm_after", scale="lambda_2"),
])

# family: (model, configuration, {class of its layers: how it reads in our words})
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Layer]]] = {
    # Pre-Norm
    "Llama": ("LlamaModel", TEXT, {"LlamaDecoderLayer": pre()}),
    "Qwen3": ("Qwen3Model", HEADS, {"Qwen3DecoderLayer": pre()}),
    "GPT-2": ("GPT2Model", GPT2, {
        "GPT2Block": Layer("pre", "layer", [attn("attn", input="ln_1"), mlp("mlp", input="ln_2")]),
    }),
    "OLMo (no gains)": ("OlmoModel", TEXT, {"OlmoDecoderLayer": Layer("pre", "layer", BARE, gains=False, eps=1e-5)}),
    "nanochat (no gains)": ("NanoChatModel", TEXT, {
        "NanoChatDecoderLayer": Layer("pre", "rms", BARE, gains=False, eps=1e-6),
    }),
    "Nemotron (gain 1 + w)": ("NemotronModel", TEXT, {"NemotronDecoderLayer": pre("layer", offset=1.0)}),
    "Granite (step 0.22)": ("GraniteModel", {**TEXT, "residual_multiplier": 0.22}, {
        "GraniteDecoderLayer": pre(scheme="pre(alpha=0.22)"),
    }),
    "BLOOM": ("BloomModel", BLOOM, {
        "BloomBlock": Layer("pre", "layer", [attn(bloom("self_attention"), input=IN), mlp(bloom("mlp"), input=POST)],
                            answer="tuple"),
    }),
    "T5 (self, cross, MLP)": ("T5Model", T5, {
        "T5LayerSelfAttention": t5(attn(call("SelfAttention", attention_mask="mask"))),
        "T5LayerCrossAttention": t5(Part("cross", call("EncDecAttention", attention_mask="mask"))),
        "T5LayerFF": t5(mlp("DenseReluDense"), answer="stream"),
    }),
    # attention and MLP side by side
    "GPT-J": ("GPTJModel", {**GPT2, "rotary_dim": 4}, {"GPTJBlock": side_by_side("attn", "ln_1", "tuple")}),
    "StableLM (parallel)": ("StableLmModel", {**TEXT, "use_parallel_residual": True}, {
        "StableLmDecoderLayer": side_by_side("self_attn", IN),
    }),
    "Falcon 40B (two gains)": ("FalconModel", {**TEXT, "num_kv_heads": 2, "new_decoder_architecture": True}, {
        "FalconDecoderLayer": two_gains("self_attention", "ln_attn", "ln_mlp", "tuple"),
    }),
    "GPT-NeoX (two gains)": ("GPTNeoXModel", {**TEXT, "use_parallel_residual": True}, {
        "GPTNeoXLayer": two_gains("attention", IN, POST),
    }),
    # Post-Norm
    "BERT": ("BertModel", BERT, {
        "BertLayer": Layer("post", "layer", [
            attn(bert, stream="attention.output.LayerNorm"),
            mlp(chain("intermediate", "output.dense"), stream="output.LayerNorm"),
        ]),
    }),
    "GPT (2018)": ("OpenAIGPTModel", GPT1, {
        "Block": Layer("post", "layer", [attn("attn", stream="ln_1"), mlp("mlp", stream="ln_2")], answer="tuple"),
    }),
    "OPT-350m": ("OPTModel", OPT, {"OPTDecoderLayer": Layer("post", "layer", [SELF, FEED])}),
    "BART (self, cross, MLP)": ("BartModel", BART, {
        "BartEncoderLayer": Layer("post", "layer", [SELF, FEED]),
        "BartDecoderLayer": Layer("post", "layer", [SELF, CROSS, FEED]),
    }),
    # norm on the output of the sub-layer
    "OLMo 2": ("Olmo2Model", TEXT, {"Olmo2DecoderLayer": OUT}),
    "OLMo 3": ("Olmo3Model", TEXT, {"Olmo3DecoderLayer": OUT}),
    "EXAONE 4": ("Exaone4Model", TEXT, {"Exaone4DecoderLayer": OUT}),
    "Swin v2": ("Swinv2Model", SWIN, {
        "Swinv2Layer": Layer("olmo2", "layer", [
            attn(windows, output="layernorm_before"), mlp(chain("intermediate", "output"), output="layernorm_after"),
        ], answer="tuple"),
    }),
    # a learned scale per feature on the update
    "BEiT": ("BeitModel", {**PICTURE, "layer_scale_init_value": 0.1}, {"BeitLayer": SCALED}),
    "DINOv2": ("Dinov2Model", PICTURE, {
        "Dinov2Layer": Layer("layerscale", "layer", [
            attn("attention", input="norm1", scale="layer_scale1"), mlp("mlp", input="norm2", scale="layer_scale2"),
        ]),
    }),
    # norms on both sides
    "Gemma 2": ("Gemma2Model", HEADS, {"Gemma2DecoderLayer": peri(*GEMMA, offset=1.0)}),
    "Gemma 3": ("Gemma3TextModel", HEADS, {"Gemma3DecoderLayer": peri(*GEMMA, offset=1.0)}),
    "GLM-4": ("Glm4Model", HEADS, {"Glm4DecoderLayer": peri(*GLM)}),
}
# fmt: on


@each("rebuilt", FAMILIES)
def test_the_rebuilt_model_is_the_model(rebuilt: str, agree: Callable[..., None], run: Run) -> None:
    name, options, layers = FAMILIES[rebuilt]
    theirs = tiny(name, options)
    ours = copy.deepcopy(theirs)
    swapped = rebuild(ours, layers)
    outs = [run(model) for model in (theirs, ours)]
    agree(outs[1], outs[0], "output")
    weights = torch.sin(torch.arange(outs[0].numel(), dtype=torch.float64)).view_as(outs[0])
    for out in outs:
        (out * weights).sum().backward()
    left = {key: p.grad for key, p in theirs.named_parameters() if p.grad is not None}
    for path, rebuilt, old in swapped:
        for mine, their in rebuilt.pairs:
            agree(rebuilt.get_parameter(mine).grad, left.pop(f"{path}.{their}"), f"gradient of {path}.{their}")
        copies = dict(old.named_parameters())
        assert all(copies[their].grad is None for _, their in rebuilt.pairs)  # their norms took no part
        for key, p in copies.items():
            if f"{path}.{key}" in left:
                agree(p.grad, left.pop(f"{path}.{key}"), f"gradient of {path}.{key}")
    rest = dict(ours.named_parameters())
    assert left, "the embedding at least is outside the layers"
    for key, grad in left.items():
        agree(rest[key].grad, grad, f"gradient of {key}")


def tiny(name: str, options: dict[str, Any]) -> nn.Module:
    """A model of a few thousand random fp64 parameters, norm weights and biases included."""
    cls = getattr(transformers, name)
    config = cls.config_class(**options)
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation="eager").double().eval()
    for p in model.parameters():
        nn.init.normal_(p, 0.0, 0.5)
    return model


def rebuild(model: nn.Module, layers: dict[str, Layer]) -> list[tuple[str, Rebuilt, nn.Module]]:
    """Replaces every layer of a named class in place: (path, ours, theirs)."""
    found = [(path, module) for path, module in model.named_modules() if type(module).__name__ in layers]
    assert {type(module).__name__ for _, module in found} == set(layers)
    width = next(v for v in (getattr(model.config, k, None) for k in ("hidden_size", "embed_dim")) if v)
    swapped = []
    for index, (path, module) in enumerate(found):
        rebuilt = Rebuilt(module, layers[type(module).__name__], index, len(found), width).eval().double()
        parent, _, key = path.rpartition(".")
        setattr(model.get_submodule(parent), key, rebuilt)
        swapped.append((path, rebuilt, module))
    return swapped
