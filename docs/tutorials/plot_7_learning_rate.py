"""
Tune the learning rate fairly
=============================

Schemes differ in their best learning rate by up to four times. A comparison at one rate compares rates.
``tune`` searches each scheme's own rate in factors of √2, past the first minimum, with a seed that does not
count.
"""

import geonorm

comparison = geonorm.compare(
    ["pre", "geonorm"],
    steps=12,
    seeds=1,
    lrs=[5.7e-3, 8e-3],
    tune=True,
    model={"layers": 2, "width": 32, "heads": 2, "context": 64},
    evaluation={"tokens": 4096},
    out="runs/tuned",
)
comparison.frame()[["scheme", "lr", "n", "val_loss_mean"]]

# %%
# Loss against learning rate, a curve for each scheme. A best rate at the edge of what was tried is a bound,
# not a best rate, and is called so.

comparison.plot("learning_rates")
