"""
Look inside a model
===================

``probe`` measures what every sub-layer does to the hidden state: how far it turns a token, how much longer it
makes it, and whether the tokens come together. It takes a Hugging Face model by name, a run, or a module.
Here a small model is made on the spot.
"""

import torch
import transformers

import geonorm

torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=6,
    num_attention_heads=4,
    vocab_size=256,
)
model = transformers.LlamaForCausalLM(config).eval()
ids = torch.randint(0, 256, (8, 64))
result = geonorm.probe(model, ids)
columns = ["layer", "kind", "radius", "ratio", "angle", "cos_pair"]
result.frame()[columns].round(3)

# %%
# ``radius`` is the length of the hidden state, ``ratio`` the tangential update over that length, ``angle``
# the turn in radians, ``cos_pair`` the mean cosine between tokens: near 1 they are all the same.

result.plot("steps")

# %%
# Which rule does the model follow? The answer is checked on numbers: a layer that is rebuilt from its own
# parts under that rule must give the layer's output.

print(geonorm.hf.scheme_of(model))
