"""
GeoNorm in a block of your own
==============================

nanoGPT's block adds the output of each sub-layer to the hidden state. GeoNorm turns the hidden state towards
it. This page makes the change as a diff of four lines, and checks what it promises.
"""

import torch
from torch import nn

import geonorm

# %%
# The block before: two norms, two additions.


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
# block t = 1, 2, ... is at most π/4 divided by t. (Two linear layers stand here for attention and MLP.)


class GeoNormBlock(nn.Module):
    def __init__(self, layer: int, dim: int):
        super().__init__()
        self.attn, self.mlp = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.decay = 1.0 / (layer + 1)

    def forward(self, x):
        x = geonorm.geodesic_update(x, self.attn(x), decay=self.decay)
        return geonorm.geodesic_update(x, self.mlp(x), decay=self.decay)


# %%
# Normalise once, after the embedding. From then on the length of a token stays what it is.

x = nn.functional.rms_norm(torch.randn(4, 16, 64), (64,))
pre, geo = x, x
lengths = []
for layer in range(12):
    pre, geo = PreNormBlock(64)(pre), GeoNormBlock(layer, 64)(geo)
    lengths.append((layer + 1, round(pre.norm(dim=-1).mean().item(), 2), round(geo.norm(dim=-1).mean().item(), 2)))
print("block, length under Pre-Norm, length under GeoNorm")
for row in lengths[::3]:
    print(row)

# %%
# Any other scheme goes around a sub-layer the same way, with its norms and learned numbers inside.

layer = geonorm.Residual(nn.Linear(64, 64), "peri", geonorm.Site(layer=0, kind="mlp", depth=12), dim=64)
print(layer)
