"""The runs of this experiment: both ends, and each with one factor of the other end at a time; three seeds.

python experiments/006-uniform-direction/train.py OUT [part of a name ...]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from grid import train
from programme import Grid, settings

COMMON: dict[str, object] = {
    "preset": "nano",
    "data": "books-small",
    "scheme": "pre(entry=embedding)",
    "lr": "6e-3",
    "batch_size": 2,
    "steps": 150,
    "model__eps": "1e-5",
    "evaluation__every": 50,
    "evaluation__tokens": 4096,
    "checkpoint__every": 150,
    "checkpoint__keep": 1,
    "runtime__tensorboard": "false",
}
SEEDS = 3
Factors = Mapping[str, Mapping[str, object]]
LLAMA: Factors = {
    "norm": {"model__norm": "rms"},
    "positions": {"model__positions": "rope"},
    "tied": {"model__tied": "false"},
    "mlp": {"model__mlp": "swiglu", "model__hidden": 344},
    "bias": {"model__bias": "false"},
}
GPT2: Factors = {
    "norm": {"model__norm": "layer"},
    "positions": {"model__positions": "learned"},
    "tied": {"model__tied": "true"},
    "mlp": {"model__mlp": "gelu_tanh", "model__hidden": 512},
    "bias": {"model__bias": "true"},
}
WITHOUT_BIAS: Mapping[str, object] = {"model__norm": "layer", "model__norm_bias": "false"}


def models() -> dict[str, dict[str, object]]:
    """Settings by name; a name is an end and what was taken from the other."""

    def merged(factors: Factors, **changed: Mapping[str, object]) -> dict[str, object]:
        return {key: value for part in {**factors, **changed}.values() for key, value in part.items()}

    found: dict[str, dict[str, object]] = {"llama": merged(LLAMA), "gpt2": merged(GPT2)}
    for end, factors, other in (("llama", LLAMA, GPT2), ("gpt2", GPT2, LLAMA)):
        for name in factors:
            found[f"{end}-{name}"] = merged(factors, **{name: other[name]})
        found[f"{end}-norm_without_bias"] = merged(factors, norm=WITHOUT_BIAS)
    return found


def grid() -> Grid:
    return {
        f"{name}-seed{seed}": settings(**{**COMMON, **changes, "seed": seed})
        for seed in range(SEEDS)
        for name, changes in models().items()
    }


if __name__ == "__main__":
    sys.exit(train(grid(), *sys.argv[1:]))
