"""Our `mhc` against the layer of transformers that is built with it, DeepSeek-V4's: outputs and all gradients.

transformers adds eps to the reading weights and in every Sinkhorn step, which the paper does not: it is set to 0 here.
It keeps the transpose of the mixing matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from geonorm import Residual, Site

from .test_recorded import DIM, TOKENS, Maps, Mixer, wave

N, EPS = 4, 1e-5


class Returns(nn.Module):
    """A toy in the place of their attention or experts: takes what they are given, returns what they return."""

    def __init__(self, toy: nn.Module, pair: bool) -> None:
        super().__init__()
        self.toy, self.pair = toy, pair

    def forward(self, y: Tensor, **rest: object) -> object:
        return (self.toy(y), None) if self.pair else self.toy(y)


def theirs(layer: int) -> nn.Module:
    deepseek = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    config = SimpleNamespace(hidden_size=DIM, hc_mult=N, hc_sinkhorn_iters=20, hc_eps=0.0, rms_norm_eps=EPS)
    block = deepseek.DeepseekV4DecoderLayer.__new__(deepseek.DeepseekV4DecoderLayer)
    nn.Module.__init__(block)
    block.self_attn, block.mlp = Returns(Mixer(20.0 + layer), True), Returns(Maps(30.0 + layer), False)
    for name, phase in (("attn_hc", 1.0), ("ffn_hc", 2.0)):
        connection = deepseek.DeepseekV4HyperConnection(config)
        with torch.no_grad():
            for n, p in enumerate((connection.fn, connection.base, connection.scale)):
                p.copy_(wave(*p.shape, phase=layer + phase + 0.1 * n))
        setattr(block, name, connection)
    for name, phase in (("input_layernorm", 3.0), ("post_attention_layernorm", 4.0)):
        norm = deepseek.DeepseekV4RMSNorm(DIM, eps=EPS)
        with torch.no_grad():
            norm.weight.copy_(1 + 0.3 * wave(DIM, phase=layer + phase))
        setattr(block, name, norm)
    return block.double()


def transposed(rows: Tensor) -> Tensor:
    """Their rows of reading, writing and mixing, the mixing matrix transposed."""
    mixing = rows[2 * N :].view(N, N, -1).transpose(0, 1).reshape(N * N, -1)
    return torch.cat((rows[: 2 * N], mixing.view(N * N, *rows.shape[1:])))


def ours(block: nn.Module, layer: int) -> nn.ModuleList:
    sites = nn.ModuleList()
    for kind, branch, connection, norm in (
        ("attn", block.self_attn, block.attn_hc, block.input_layernorm),
        ("mlp", block.mlp, block.ffn_hc, block.post_attention_layernorm),
    ):
        residual = Residual(branch.toy, "mhc", Site(layer, kind, 2), DIM, eps=EPS).double()
        with torch.no_grad():
            residual.own.get_parameter("input.weight").copy_(norm.weight)
            residual.own.get_parameter("mapping.weight").copy_(transposed(connection.fn))
            residual.own.get_parameter("mapping.bias").copy_(transposed(connection.base))
            residual.own.get_parameter("mapping.scale").copy_(connection.scale)
        sites.append(residual)
    return sites


def test_the_layer_of_deepseek_v4(agree: Callable[..., None], stay_wide: None) -> None:
    blocks = [theirs(layer) for layer in range(2)]
    sites = [ours(block, layer) for layer, block in enumerate(blocks)]
    x = wave(1, TOKENS, N, DIM, phase=3.0)
    found = {}
    for name in ("theirs", "ours"):
        y = start = x.clone().requires_grad_()
        for block, pair in zip(blocks, sites, strict=True):
            y = block(y, input_ids=None) if name == "theirs" else pair[1](pair[0](y))
        for block in blocks:
            block.zero_grad()
        (y * wave(*y.shape, phase=5.0)).sum().backward()
        toys = [p.grad.clone() for block in blocks for b in (block.self_attn, block.mlp) for p in b.parameters()]
        found[name] = (y, start.grad, toys)
    agree(found["ours"][0], found["theirs"][0], "output")
    agree(found["ours"][1], found["theirs"][1], "gradient of the stream")
    for mine, their in zip(found["ours"][2], found["theirs"][2], strict=True):
        agree(mine, their, "gradient of a sub-layer")
    for block in blocks:
        block.zero_grad()
    y = x
    for block in blocks:
        y = block(y, input_ids=None)
    (y * wave(*y.shape, phase=5.0)).sum().backward()
    for block, pair in zip(blocks, sites, strict=True):
        for residual, connection, norm in (
            (pair[0], block.attn_hc, block.input_layernorm),
            (pair[1], block.ffn_hc, block.post_attention_layernorm),
        ):
            grads = {name: p.grad for name, p in residual.own.named_parameters()}
            agree(grads["input.weight"], norm.weight.grad, "gradient of the norm")
            agree(grads["mapping.weight"], transposed(connection.fn.grad), "gradient of the mapping")
            agree(grads["mapping.bias"], transposed(connection.base.grad), "gradient of the biases")
            agree(grads["mapping.scale"], connection.scale.grad, "gradient of the scales")


def test_the_transpose_would_be_told_apart(stay_wide: None) -> None:
    """After 20 rounds a mixing matrix and the one with rows before columns are alike, its transpose is not."""
    block = theirs(0)
    pair = ours(block, 0)
    x = wave(1, TOKENS, N, DIM, phase=3.0)
    with torch.no_grad():
        pair[0].own.get_parameter("mapping.bias").copy_(block.attn_hc.base)
        pair[0].own.get_parameter("mapping.weight").copy_(block.attn_hc.fn)
        assert (pair[1](pair[0](x)) - block(x, input_ids=None)).abs().max() > 1e-2
