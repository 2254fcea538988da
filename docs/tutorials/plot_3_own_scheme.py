"""
A scheme of your own
====================

A scheme says what a residual owns and how it writes. Training, theory, figures and export follow from that.
"""

from dataclasses import dataclass

import torch

import geonorm

# %%
# Half of the normalised update is added, by a learned share that starts at a half. ``h`` is the step size: 1
# for a layer, and the theory takes the derivative at 0.


@dataclass(frozen=True)
class Half(geonorm.Placement):
    parts = {"input": "norm", "output": "norm", "share": 0.5}

    def write(self, x, u, p, site, h=1.0):
        return x + h * p.share * p.output(u)


config = geonorm.DecoderConfig(scheme=Half(), layers=2, width=32, heads=2, vocab_size=64)
model = geonorm.Decoder(config)
print(model(torch.randint(0, 64, (2, 16))).shape)

# %%
# How fast does it turn a token, compared with Peri-LN? The speed factor is a derivative of ``write``: it
# divides the tangential part of the update. Half the step is twice the factor.

site = geonorm.Site(layer=0, kind="attn", depth=2)
theta, force = torch.randn(4, 8).double(), torch.randn(4, 8).double()
half, peri = (geonorm.dynamics.speed(scheme, theta, force, site) for scheme in (Half(), "peri"))
print(half / peri)

# %%
# Is it a known rule in other coordinates?

print(geonorm.same(Half(), "peri"))
