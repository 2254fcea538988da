"""ViT, layer by layer, logits and gradients: a vision transformer in its layout, under pre(entry=embedding), is
transformers' ViTForImageClassification with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm.models import VisionConfig, VisionTransformer

from .conftest import Pairs, compare_models, draw_and_copy

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")


def pairs(ours: VisionTransformer, theirs: nn.Module) -> Pairs:
    """(our parameter, theirs in our shape, what it is)."""
    start = theirs.vit.embeddings
    modules = [(ours.head, theirs.classifier, "head"), (ours.exit.own["norm"], theirs.vit.layernorm, "last norm")]
    for block, layer in zip(ours.blocks, theirs.vit.layers, strict=True):
        attention, mlp = block.attn.branch, block.mlp.branch
        modules += [
            (attention.q, layer.attention.q_proj, "q"),
            (attention.k, layer.attention.k_proj, "k"),
            (attention.v, layer.attention.v_proj, "v"),
            (attention.o, layer.attention.o_proj, "o"),
            (mlp.up, layer.mlp.fc1, "up"),
            (mlp.down, layer.mlp.fc2, "down"),
            (block.attn.own["input"], layer.layernorm_before, "norm before attention"),
            (block.mlp.own["input"], layer.layernorm_after, "norm before the MLP"),
        ]
    found = [
        (ours.patch.weight, start.patch_embeddings.projection.weight, "patches"),
        (ours.patch.bias, start.patch_embeddings.projection.bias, "patches, bias"),
        (ours.class_token.weight, start.cls_token, "class token"),
        (ours.position.weight, start.position_embeddings, "positions"),
    ]
    for mine, their, what in modules:
        found += [(mine.weight, their.weight, what), (mine.bias, their.bias, f"{what}, bias")]
    return found


def test_streams_logits_loss_and_gradients(agree: Callable[..., None]) -> None:
    shape = VisionConfig(
        scheme="pre(entry=embedding)", layers=3, width=32, hidden=48, image_size=16, classes=7, mlp="gelu",
        norm="layer", eps=1e-12, bias=True, positions="learned",
    )  # fmt: skip
    settings = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4,
        num_labels=7, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    assert settings.layer_norm_eps == shape.eps and settings.hidden_act == shape.mlp and settings.qkv_bias == shape.bias
    ours, theirs = VisionTransformer(shape).double(), transformers.ViTForImageClassification(settings).double()
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters())
    draw_and_copy(ours, pairs(ours, theirs))
    images, targets = torch.randn(2, 3, 16, 16, dtype=torch.float64), torch.tensor([3, 6])

    def run() -> tuple[Tensor, Tensor, Any]:
        logits = ours(images)
        return logits, VisionTransformer.cross_entropy(logits, targets), theirs(pixel_values=images, labels=targets)

    compare_models(agree, pairs(ours, theirs), (ours.blocks, theirs.vit.layers), run)
