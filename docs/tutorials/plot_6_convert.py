"""
From Pre-Norm to GeoNorm
========================

``apply`` changes the scheme of a model in place, ``undo`` takes it back bit for bit. A model that was trained
under another scheme must be trained on.
"""

import torch
import transformers

import geonorm.hf

torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    vocab_size=256,
)
model = transformers.LlamaForCausalLM(config).eval()
ids = torch.randint(0, 256, (4, 32))
before = model(ids).logits

# %%
# Under its own scheme nothing changes: this shows that the library has read the model rightly.

report = geonorm.hf.apply(model, geonorm.hf.scheme_of(model))
print((model(ids).logits - before).abs().max())
report.undo()

# %%
# Under GeoNorm the output differs, and the model trains on. ``entry=embedding``: a Llama has no embedding norm.

report = geonorm.hf.apply(model, "geonorm(entry=embedding)")
print(report)
optimizer = torch.optim.AdamW(geonorm.parameter_groups(model, lr=3e-3))
for step in range(5):
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, round(loss.item(), 3))
