"""Gradient norms at initialisation against depth and width, and the laws of arXiv:2002.04745 fitted to them.

python experiments/005-geometry/gradients.py experiments/005-geometry      (a minute; nothing is trained)

Writes gradients.json: per scheme the norm of the gradient of the last MLP's W2 (and W1) for 6 to 96 layers at width 64,
and for widths 32 to 512 at 6 layers; three seeds. GELU, hidden 4 x width, LayerNorm, 4 heads, 4 x 64 random tokens,
vocabulary 1024, mean cross entropy. Fits: log-log slopes, R^2 of a/sqrt(L) over depth and of a d sqrt(ln d) over width.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import linear_regression, mean
from typing import Any

import torch

from geonorm.measure.observe import gradient_norms, sites_of
from geonorm.models import Decoder, preset
from geonorm.schemes import Site

SCHEMES = ("post", "pre", "pre(entry=embedding)", "peri", "deepnorm", "lns", "geonorm")
DEPTHS = (6, 12, 24, 48, 96)
WIDTHS = (32, 64, 128, 256, 512)
SEEDS = 3
WIDTH, DEPTH = 64, 6


def measured(scheme: str, layers: int, width: int, seed: int) -> dict[str, list[float]]:
    """Gradient norms of W1 and W2 by layer."""
    torch.manual_seed(seed)
    model = Decoder(
        preset(
            "nano", scheme=scheme, layers=layers, width=width, hidden=4 * width, context=64, norm="layer", mlp="gelu"
        )
    )
    ids = torch.randint(1024, (4, 65))
    model.loss(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).backward()
    norms = gradient_norms(sites_of(model))
    mlps = [norms["decoder", Site(layer, "mlp", layers)] for layer in range(layers)]
    return {name: [mlp[f"grad_{name}"] for mlp in mlps] for name in ("w1", "w2")}


def r2(values: Sequence[float], law: Sequence[float]) -> float:
    """Of the best multiple of a law, against the mean."""
    scale = sum(v * x for v, x in zip(values, law, strict=True)) / sum(x * x for x in law)
    off = sum((v - scale * x) ** 2 for v, x in zip(values, law, strict=True))
    return 1 - off / sum((v - mean(values)) ** 2 for v in values)


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of a line through the logarithms."""
    return linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys]).slope


def fits(xs: Sequence[int], rows: list[list[float]], law: Callable[[int], float]) -> dict[str, Any]:
    """rows: one list over xs a seed."""
    together = [mean(column) for column in zip(*rows, strict=True)]
    return {
        "x": list(xs),
        "seeds": rows,
        "mean": together,
        "slope": [slope(xs, row) for row in rows],
        "spread": max(together) / min(together),
        "r2": r2(together, [law(x) for x in xs]),
    }


def main(out: Path) -> None:
    found: dict[str, Any] = {}
    for scheme in SCHEMES:
        deep = [[measured(scheme, depth, WIDTH, seed) for depth in DEPTHS] for seed in range(SEEDS)]
        wide = [[measured(scheme, DEPTH, width, seed) for width in WIDTHS] for seed in range(SEEDS)]
        found[scheme] = {
            **{
                f"{name}_depth": fits(DEPTHS, [[run[name][-1] for run in row] for row in deep], lambda x: x**-0.5)
                for name in ("w1", "w2")
            },
            **{
                f"{name}_width": fits(
                    WIDTHS, [[run[name][-1] for run in row] for row in wide], lambda x: x * math.sqrt(math.log(x))
                )
                for name in ("w1", "w2")
            },
            "first_over_last": [mean(row[i]["w2"][0] / row[i]["w2"][-1] for row in deep) for i in range(len(DEPTHS))],
            "profile_24": [mean(row[2]["w2"][layer] for row in deep) for layer in range(24)],
        }
        depth, width = found[scheme]["w2_depth"], found[scheme]["w2_width"]
        print(
            f"{scheme:22} W2 of the last layer: L^{mean(depth['slope']):+.2f} (R2 of 1/sqrt L {depth['r2']:.2f}, "
            f"max/min {depth['spread']:.2f}), d^{mean(width['slope']):+.2f} (R2 of d sqrt ln d {width['r2']:.2f}); "
            f"first/last at 96 layers {found[scheme]['first_over_last'][-1]:.2g}",
            flush=True,
        )
    (out / "gradients.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
