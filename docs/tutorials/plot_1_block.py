"""
GeoNorm in a block of your own
==============================

nanoGPT's block adds the output of each sub-layer to the hidden state. GeoNorm turns the hidden state towards
it. This page makes the change and checks what it promises.
"""

import torch
from torch import nn

import geonorm

# %%
# The block before: two norms, two additions. Linear layers stand for attention and MLP.


class PreNormBlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm_1, self.attn = nn.RMSNorm(dim), nn.Linear(dim, dim)
        self.norm_2, self.mlp = nn.RMSNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        x = x + self.attn(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


# %%
# The block after. The norms go; the layer number comes in, because the step shrinks with depth: the angle of
# block t = 1, 2, ... is at most π/4 divided by t. All matrices start with standard deviation 1/√inputs.


class GeoNormBlock(nn.Module):
    def __init__(self, layer: int, dim: int):
        super().__init__()
        self.attn, self.mlp = nn.Linear(dim, dim), nn.Linear(dim, dim)
        for part in (self.attn, self.mlp):
            nn.init.normal_(part.weight, std=dim**-0.5)
        self.register_buffer("decay", torch.tensor(1.0 / (layer + 1)), persistent=False)

    def forward(self, x):
        x = geonorm.geodesic_update(x, self.attn(x), decay=self.decay)  # was x + attn(norm_1(x))
        return geonorm.geodesic_update(x, self.mlp(x), decay=self.decay)  # was x + mlp(norm_2(x))


# %%
# Normalise once, after the embedding. From then on the length of a token stays what it is.

x = nn.functional.rms_norm(torch.randn(4, 16, 64), (64,))
pre, geo, lengths = x, x, []
for layer in range(12):
    pre, geo = PreNormBlock(64)(pre), GeoNormBlock(layer, 64)(geo)
    lengths.append((layer + 1, round(pre.norm(dim=-1).mean().item(), 2), round(geo.norm(dim=-1).mean().item(), 2)))
print("block, length under Pre-Norm, length under GeoNorm")
print(*lengths[::3], sep="\n")

# %%
# Any other scheme goes around a sub-layer the same way, with its norms and learned numbers inside.

layer = geonorm.Residual(nn.Linear(64, 64), "peri", geonorm.Site(layer=0, kind="mlp", depth=12), dim=64)
print(layer)
