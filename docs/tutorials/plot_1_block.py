"""
GeoNorm in a block of your own
==============================

nanoGPT's block adds the output of each sub-layer to the hidden state. GeoNorm turns the hidden state towards it.
In nanoGPT's ``model.py`` that is this change. Then train as before, at one, two and four times your learning rate.

.. code-block:: diff

    +from geonorm import geodesic_update
     class Block(nn.Module):
    -    def __init__(self, config):
    +    def __init__(self, config, layer):
             super().__init__()
    -        self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
             self.attn = CausalSelfAttention(config)
    -        self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
             self.mlp = MLP(config)
    +        self.register_buffer("decay", torch.tensor(1.0 / (layer + 1)), persistent=False)
         def forward(self, x):
    -        x = x + self.attn(self.ln_1(x))
    -        x = x + self.mlp(self.ln_2(x))
    +        x = geodesic_update(x, self.attn(x), decay=self.decay)
    +        x = geodesic_update(x, self.mlp(x), decay=self.decay)
             return x
     # GPT.__init__
    -            h = nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
    +            h = nn.ModuleList([Block(config, layer) for layer in range(config.n_layer)]),
    -        for pn, p in self.named_parameters():
    -            if pn.endswith('c_proj.weight'):
    -                torch.nn.init.normal_(p, mean=0.0, std=0.02/math.sqrt(2 * config.n_layer))
     # GPT._init_weights, of nn.Linear and of nn.Embedding
    -            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
    +            torch.nn.init.normal_(module.weight, mean=0.0, std=module.weight.shape[1] ** -0.5)
     # GPT.forward
             x = self.transformer.drop(tok_emb + pos_emb)
    +        x = F.rms_norm(x, x.shape[-1:])
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
    print(f"block {block}: length {length:.3f}, largest turn {turn:.3f}, π/4t {torch.pi / 4 / block:.3f}")

# %%
# Any other scheme goes around a sub-layer, with its norms and learned numbers inside.

layer = geonorm.Residual(nn.Linear(64, 64), "peri", geonorm.Site(layer=0, kind="mlp", depth=12), dim=64)
print(layer)
