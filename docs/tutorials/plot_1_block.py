"""
GeoNorm in a block of your own
==============================

nanoGPT's block adds the output of each sub-layer to the hidden state. GeoNorm turns the hidden state towards it.
In nanoGPT's ``model.py`` that is this change. Then try half to twice your learning rate.

.. literalinclude:: /static/nanogpt.diff
   :language: diff

:download:`This file </static/nanogpt.diff>` applies to nanoGPT of 2025-11: ``git apply nanogpt.diff``. Every matrix
starts with standard deviation 1/√inputs; the final norm before the head stays.
"""

# %%
# What it promises: a token keeps its length, and in block t = 1, 2, ... each sub-layer turns it by at most π/4
# divided by t. Here updates are as long as the token, so the turns reach that limit.

import torch
from torch import nn

import geonorm

x = nn.functional.rms_norm(torch.randn(4, 16, 64), (64,))  # once, after the embedding
for block in (1, 2, 4, 8):
    y = geonorm.geodesic_update(x, torch.randn_like(x), decay=1 / block)
    length, turn = y.norm(dim=-1).mean(), geonorm.sphere.angle(x, y).max()
    limit = torch.pi / 4 / block
    print(f"block {block}: length {length:.3f}, largest turn {turn:.3f} of {limit:.3f}")

# %%
# Any other scheme goes around a sub-layer, with its norms and learned numbers inside.

site = geonorm.Site(layer=0, kind="mlp", depth=12)
layer = geonorm.Residual(nn.Linear(64, 64), "peri", site, dim=64)
print(layer)
