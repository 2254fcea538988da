"""The runs of this experiment, most of them the grid norm x optimizer x batch size x learning rate.

python experiments/005-geometry/train.py OUT [part of a name ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from grid import train
from programme import Grid, settings

SCHEME = "pre(entry=embedding)"
COMMON = settings(
    preset="nano", data="books-small", scheme=SCHEME, evaluation__tokens=4096, checkpoint__keep=1,
    runtime__tensorboard="false",
)  # fmt: skip
SHORT = settings(steps=80, evaluation__every=20, evaluation__trace_tokens=512, checkpoint__every=80)
DEEP = settings(
    steps=60, evaluation__every=30, checkpoint__every=60, batch_size=4, lr="6e-3",
    model__layers=16, model__width=64, model__hidden=172,
)  # fmt: skip
DECAY = {"adamw": 0.1, "muon": 0.1, "sgd": 1e-4}
"""SGD's is a term of the gradient, which its momentum and its far higher rates multiply."""
RATES = {"adamw": ("2e-3", "6e-3", "1.8e-2"), "muon": ("2e-3", "6e-3", "1.8e-2"), "sgd": ("0.1", "0.3", "1")}


def grid() -> Grid:
    course = {
        f"{norm}-{optimizer}-batch{batch}-lr{lr}": [
            *COMMON, *SHORT,
            *settings(model__norm=norm, batch_size=batch, lr=lr),
            *settings(optim__name=optimizer, optim__weight_decay=DECAY[optimizer]),
        ]
        for optimizer, rates in RATES.items()
        for lr in rates
        for batch in (1, 4)
        for norm in ("layer", "rms")
    }  # fmt: skip
    deep = {
        f"deep-{norm}-seed{seed}": [*COMMON, *DEEP, *settings(model__norm=norm, seed=seed)]
        for seed in range(3)
        for norm in ("rms", "layer")
    }
    return course | deep


if __name__ == "__main__":
    sys.exit(train(grid(), *sys.argv[1:]))
