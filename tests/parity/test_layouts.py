"""Models in our layouts are those of transformers with the same weights: streams, logits, loss and every gradient.

nano-bert under post(entry=embedding) is BertForMaskedLM on one kind of token, whose vector is part of each position's;
nano-gpt2 under pre(entry=embedding) is GPT2LMHeadModel; a vision transformer under it is ViTForImageClassification.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm.models import Decoder, VisionConfig, VisionTransformer, preset
from geonorm.models.decoder import IGNORED
from geonorm.norms import LayerNorm

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")

SHARED = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
          "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48, "vocab_size": 61,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
VIT: dict[str, Any] = {"mlp": "gelu", "norm": "layer", "eps": 1e-12, "bias": True, "positions": "learned"}
# ours: theirs, a parameter or a module with weight and bias; those of a block, and the others. #1 is the second third.
PLACES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "bert": ("bert.encoder.layer", {
        "attn.branch.q": "attention.self.query", "attn.branch.k": "attention.self.key",
        "attn.branch.v": "attention.self.value", "attn.branch.o": "attention.output.dense",
        "mlp.branch.up": "intermediate.dense", "mlp.branch.down": "output.dense",
        "attn.own.stream": "attention.output.LayerNorm", "mlp.own.stream": "output.LayerNorm",
    }, {
        "embed.weight": "bert.embeddings.word_embeddings.weight", "head.bias": "cls.predictions.bias",
        "position.weight": "bert.embeddings.position_embeddings.weight",
        "embed_norm": "bert.embeddings.LayerNorm", "transform.dense": "cls.predictions.transform.dense",
        "transform.norm": "cls.predictions.transform.LayerNorm",
    }),
    "gpt2": ("transformer.h", {
        "attn.branch.q": "attn.c_attn#0", "attn.branch.k": "attn.c_attn#1", "attn.branch.v": "attn.c_attn#2",
        "attn.branch.o": "attn.c_proj", "mlp.branch.up": "mlp.c_fc", "mlp.branch.down": "mlp.c_proj",
        "attn.own.input": "ln_1", "mlp.own.input": "ln_2",
    }, {
        "embed.weight": "transformer.wte.weight", "position.weight": "transformer.wpe.weight",
        "exit.own.norm": "transformer.ln_f",
    }),
    "vit": ("vit.layers", {
        "attn.branch.q": "attention.q_proj", "attn.branch.k": "attention.k_proj",
        "attn.branch.v": "attention.v_proj", "attn.branch.o": "attention.o_proj",
        "mlp.branch.up": "mlp.fc1", "mlp.branch.down": "mlp.fc2",
        "attn.own.input": "layernorm_before", "mlp.own.input": "layernorm_after",
    }, {
        "patch": "vit.embeddings.patch_embeddings.projection", "class_token.weight": "vit.embeddings.cls_token",
        "position.weight": "vit.embeddings.position_embeddings", "head": "classifier",
        "exit.own.norm": "vit.layernorm",
    }),
}  # fmt: skip


def build(layout: str) -> tuple[Any, Any]:
    """Ours and theirs, of one shape."""
    if layout == "vit":
        shape = VisionConfig("pre(entry=embedding)", 3, 32, hidden=48, image_size=16, classes=7, **VIT)
        settings = transformers.ViTConfig(image_size=16, patch_size=4, num_labels=7, **SHARED)
        assert settings.layer_norm_eps == shape.eps and settings.hidden_act == shape.mlp
        return VisionTransformer(shape), transformers.ViTForImageClassification(settings)
    rule = "post(entry=embedding)" if layout == "bert" else "pre(entry=embedding)"
    decoder = replace(preset(f"nano-{layout}", scheme=rule), layers=3, width=32, hidden=48, vocab_size=61)
    if layout == "gpt2":
        settings = transformers.GPT2Config(n_positions=decoder.context, **GPT2)
        return Decoder(decoder), transformers.GPT2LMHeadModel(settings)
    settings = transformers.BertConfig(vocab_size=61, max_position_embeddings=decoder.context, **SHARED)
    assert settings.layer_norm_eps == decoder.eps and settings.hidden_act == decoder.mlp
    return Decoder(decoder), transformers.BertForMaskedLM(settings)


def parameters(model: nn.Module, path: str) -> list[nn.Parameter]:
    named = dict(model.named_parameters())
    return [named[path]] if path in named else [named[f"{path}.{kind}"] for kind in ("weight", "bias")]


Pair = tuple[nn.Parameter, nn.Parameter, Callable[[Tensor], Tensor], str]


def pairs(layout: str, ours: nn.Module, theirs: nn.Module) -> Iterator[Pair]:
    """Our parameter, theirs, the part of theirs that is ours, and what it is."""
    list_of_blocks, block, whole = PLACES[layout]
    rows = [(mine, their, False) for mine, their in whole.items()]
    for n in range(3):
        rows += [(f"blocks.{n}.{mine}", f"{list_of_blocks}.{n}.{their}", True) for mine, their in block.items()]
    for mine, their, inside in rows:
        path, _, third = their.partition("#")

        def part(t: Tensor, third: str = third, turned: bool = inside and layout == "gpt2") -> Tensor:
            t = t.chunk(3, -1)[int(third)] if third else t
            return t.t() if turned else t

        for ours_is, theirs_is in zip(parameters(ours, mine), parameters(theirs, path), strict=True):
            yield ours_is, theirs_is, part, f"{mine}, {'bias' if ours_is.dim() == 1 else 'weight'}"


def streams(blocks: nn.ModuleList) -> list[Tensor]:
    """The stream behind every block, filled in by the next forward pass."""
    states: list[Tensor] = []
    for block in blocks:
        block.register_forward_hook(lambda _, args, out: states.append(out[0] if isinstance(out, tuple) else out))
    return states


def answers(layout: str, ours: Any, theirs: Any) -> tuple[Tensor, Tensor, Any]:
    """Our logits and loss, and what their model answers."""
    if layout == "vit":
        images, targets = torch.randn(2, 3, 16, 16, dtype=torch.float64), torch.tensor([3, 6])
        logits = ours(images)
        return logits, VisionTransformer.cross_entropy(logits, targets), theirs(pixel_values=images, labels=targets)
    ids = torch.randint(61, (2, 12))
    logits, labels, targets = ours(ids), ids, ids.roll(-1, 1).index_fill(1, torch.tensor([11]), IGNORED)
    if layout == "bert":
        labels = targets = torch.where(torch.arange(12) % 5 == 2, torch.randint(61, (2, 12)), IGNORED)
    return logits, Decoder.cross_entropy(logits.flatten(0, 1), targets.flatten()), theirs(input_ids=ids, labels=labels)


@pytest.mark.parametrize("layout", PLACES)
def test_streams_logits_loss_and_gradients(layout: str, agree: Callable[..., None]) -> None:
    ours, theirs = (model.double() for model in build(layout))
    kinds = theirs.bert.embeddings.token_type_embeddings.weight if layout == "bert" else torch.zeros(0)
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters()) - kinds.numel()
    # every parameter away from its start; with small gains tokens become alike, and gradients of attention noise
    torch.manual_seed(0)
    for p in ours.parameters():
        nn.init.normal_(p, 0.0, 0.3)
    for module in ours.modules():
        if isinstance(module, LayerNorm):
            module.weight.data += 1
    with torch.no_grad():
        for mine, their, part, _ in pairs(layout, ours, theirs):
            part(their).copy_(mine.view_as(part(their)))
        if layout == "bert":
            theirs.bert.embeddings.position_embeddings.weight -= kinds[0]
    both = streams(ours.blocks), streams(theirs.get_submodule(PLACES[layout][0]))
    logits, loss, answer = answers(layout, ours, theirs)
    for number, (a, b) in enumerate(zip(*both, strict=True)):
        agree(a, b, f"stream behind block {number}")
    assert number == 2
    agree(logits, answer.logits, "logits")
    agree(loss, answer.loss, "loss")
    loss.backward()
    answer.loss.backward()
    compared = set()
    for mine, their, part, what in pairs(layout, ours, theirs):
        compared.add(mine)
        if "branch.k, bias" in what:  # adds the same to all scores of a query: its gradient is rounding on both sides
            assert mine.grad.abs().max() < 1e-12 and part(their.grad).abs().max() < 1e-12
        else:
            agree(mine.grad, part(their.grad).reshape(mine.shape), f"gradient of {what}")
    assert compared == set(ours.parameters())
    if layout == "bert":
        agree(ours.position.weight.grad.sum(0), kinds.grad[0], "gradient of the one kind of token")
