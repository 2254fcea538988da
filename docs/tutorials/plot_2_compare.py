"""
Compare schemes on a laptop
===========================

All schemes see the same batches, and each pair of runs with one seed is compared. The models here are far too
small and the runs too short to say anything about schemes: the page shows how a comparison is read.
"""

import geonorm

comparison = geonorm.compare(
    ["pre", "post", "geonorm"],
    steps=40,
    seeds=2,
    lrs=[6e-3],
    model={"layers": 2, "width": 32, "heads": 2, "context": 64},
    evaluation={"tokens": 4096},
    out="runs/first",
)
columns = ["scheme", "n", "val_loss_mean", "difference", "difference_low", "difference_high"]
comparison.frame()[columns].round(4)

# %%
# ``difference`` is the scheme minus the first, paired by seed, with its 95 % interval. With two seeds such an
# interval is wide. *Not resolved* means that it contains 0.
#
# Every figure of the report is there by name.

comparison.plot("loss_curves")

# %%
# The folder holds the page, the runs and everything that repeats them. The same call goes on where it was
# stopped.

print(geonorm.load("runs/first"))
