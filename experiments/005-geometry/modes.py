"""What drawn decoders do to small differences, forward and backward, beside the formula of docs/theory.md 4.4 and 5.

python experiments/005-geometry/modes.py experiments/005-geometry      (ten minutes on a core; nothing is trained)

Writes modes.json and modes.md. Tokens start in a cone of 1e-3 about a direction of their own batch element: logarithms
of the factor by which a squared difference of directions grows between a quarter of the blocks and the last, in the
mean over batch and seeds. relative: between the tokens of a sequence (1 - cos). collective: one that all of them share.
Backward: gradients across the token times its radius, of a random linear loss of the last directions; its coefficients
sum to 0 over the tokens (relative) or are one for all (collective). Also from gradients.json: the gradient of the first
W2 over that of the last, beside the formula.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from geonorm import names, parse
from geonorm.dynamics import drawn
from geonorm.errors import ConfigError
from geonorm.models import Decoder, preset
from geonorm.models.attention import rope

MODELS: dict[str, tuple[dict[str, Any], drawn.DrawnMlp]] = {
    "GELU, no positions": ({"mlp": "gelu", "positions": "none"}, drawn.DrawnMlp()),
    "SwiGLU, RoPE": ({"mlp": "swiglu"}, drawn.DrawnMlp("silu", gated=True)),
}
VARIANTS = (
    "pre(entry=embedding)", "geonorm(decay=sqrt)", "geonorm(decay=0.75)", "geonorm(decay=constant)",
    "geonorm(update=unit)", "ngpt(alpha=0.5)",
)  # fmt: skip
LEFT_OUT = {
    "angpt": "fixed factors inside its branches that the formula does not have",
    "rezero": "its steps are 0 at the start",
    "layerscale": "its steps are 0.1 to 1e-6 at the start",
    "gpas": "at the start it is pre, its gate 0",
    "first": "needs two schemes", "per_kind": "needs two schemes",
}  # fmt: skip
DEPTHS = (6, 24)
DEEP, DEEPEST = ("post", "pre", "peri", "geonorm", "geonorm(decay=sqrt)"), 96
WIDTH, TOKENS, BATCH, SEEDS, CONE = 128, 4, 32, 4, 1e-3
GRADIENTS_WIDTH = 64
"""Of the models in gradients.json."""
MODES = ("relative", "collective", "relative_backward", "collective_backward")


def across(x: Tensor, y: Tensor) -> Tensor:
    """The part of y at right angles to x."""
    return y - (x * y).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x


def direct(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def log_mean(squares: Tensor) -> float:
    return squares.log().mean().item()


def walk(model: Decoder, x: Tensor) -> list[Tensor]:
    """The stream at the entry and behind each block."""
    c = model.config
    turns = rope(torch.arange(x.shape[1]), c.rotary_dim, c.rope_theta) if c.positions == "rope" else None
    stream = [model.entry(x)]
    for block in model.blocks:
        stream.append(block(stream[-1], positions=turns))
    return stream


def measure_modes(scheme: str, layers: int, model: dict[str, Any], seed: int) -> dict[str, list[float]]:
    """Mean log square of each mode at the entry and behind each block."""
    torch.manual_seed(seed)
    settings = {"scheme": scheme, "layers": layers, "width": WIDTH, "hidden": 4 * WIDTH, "eps": 0.0, **model}
    decoder = Decoder(preset("nano", **settings)).double().requires_grad_(False)
    base, shared, apart = (
        torch.randn(BATCH, tokens, WIDTH, dtype=torch.float64) * WIDTH**-0.5 for tokens in (1, 1, TOKENS)
    )
    x = (base + CONE * apart).requires_grad_()
    stream = walk(decoder, x)
    moved = walk(decoder, x.detach() + CONE * shared)
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for here, there in zip(stream, moved, strict=True):
        theta = direct(here.detach())
        found["relative"].append(log_mean((theta - theta.mean(1, keepdim=True)).square().sum((1, 2))))
        found["collective"].append(log_mean((direct(there) - theta).square().sum((1, 2))))
    coefficients = torch.randn(2, BATCH, TOKENS, WIDTH, dtype=torch.float64)
    coefficients[0] -= coefficients[0].mean(1, keepdim=True)
    coefficients[1] = coefficients[1][:, :1]
    for mode, each in zip(MODES[2:], coefficients, strict=True):
        loss = (each * direct(stream[-1])).sum()
        gradients = torch.autograd.grad(loss, stream, retain_graph=True)
        for here, gradient in zip(stream, gradients, strict=True):
            g = across(here.detach(), gradient) * here.detach().norm(dim=-1, keepdim=True)
            g = g if mode == "relative_backward" else g.sum(1, keepdim=True)
            found[mode].append(log_mean(g.square().sum((1, 2))))
    return found


def predict_modes(scheme: str, layers: int, mlp: drawn.DrawnMlp) -> dict[str, list[float]]:
    """The same from the formula, behind each block, up to a constant per mode."""
    turns = drawn.DrawnFlow(scheme, layers, (drawn.DrawnAttention(), mlp)).turn_through(WIDTH**-0.5)
    shared = torch.ones(TOKENS, TOKENS, dtype=torch.float64)
    centred = torch.eye(TOKENS - 1, dtype=torch.float64) - 1 / TOKENS
    back = drawn.carry_back(turns, centred, relative=True)
    return {
        "relative": [math.log(gap) for gap in drawn.shrink_gap(turns, TOKENS)[::2]],
        "collective": [math.log(d.trace().item()) for d in drawn.carry_forward(turns, shared)[::2]],
        "relative_backward": [math.log((d.trace() + d.sum()).item()) for d in back[::2]],
        "collective_backward": [math.log(d.sum().item()) for d in drawn.carry_back(turns, shared)[::2]],
    }


def late(course: list[float], mode: str) -> float:
    """The growth over the last three quarters of the blocks; of gradients, from behind the last to there."""
    first = course[(len(course) - 1) // 4]
    return first - course[-1] if mode.endswith("backward") else course[-1] - first


def compare(scheme: str, layers: int, model: str) -> dict[str, Any]:
    settings, mlp = MODELS[model]
    said = predict_modes(scheme, layers, mlp)
    seen = [measure_modes(scheme, layers, settings, seed) for seed in range(SEEDS)]
    row: dict[str, Any] = {"scheme": scheme, "layers": layers, "model": model}
    for mode in MODES:
        each = [late(one[mode], mode) for one in seen]
        error = stdev(each) / SEEDS**0.5
        row[mode] = {"predicted": late(said[mode], mode), "measured": mean(each), "error": error, "seeds": each}
    return row


def first_over_last(scheme: str, layers: int) -> float:
    """|dL/dW2| of the first block over that of the last, for a loss that sees what all tokens share: sin phi each, and
    the growth of the collective mode between them."""
    turns = drawn.DrawnFlow(scheme, layers).turn_through(GRADIENTS_WIDTH**-0.5)
    between = math.prod(turn.collective for turn in turns[2:])
    return math.sin(turns[1].angle) / math.sin(turns[-1].angle) * between**0.5


def schemes() -> list[str]:
    planar = [name for name in names() if parse(name).planar and name not in LEFT_OUT]
    found = []
    for name in (*planar, *VARIANTS):
        try:
            drawn.DrawnFlow(name, 12)
        except ConfigError as error:
            LEFT_OUT[name] = str(error)
        else:
            found.append(name)
    return found


def cell(row: dict[str, Any], mode: str) -> str:
    return f"{row[mode]['predicted']:.3f} | {row[mode]['measured']:.3f} ± {row[mode]['error']:.3f}"


def table(rows: list[dict[str, Any]], ratios: list[dict[str, Any]]) -> str:
    out = [
        "Logarithms of the factor on squares, from a quarter of the blocks to the last: formula, measured (mean of "
        f"{SEEDS} seeds, standard error). {TOKENS} tokens, width {WIDTH}.\n"
    ]
    for model in MODELS:
        for layers in (*DEPTHS, DEEPEST):
            out += [f"## {model}, {layers} blocks\n", "| scheme | " + " | ".join(
                f"{mode.replace('_', ', ')} | measured" for mode in MODES) + " |", "|---" * 9 + "|"]  # fmt: skip
            chosen = (row for row in rows if row["model"] == model and row["layers"] == layers)
            out += [f"| `{row['scheme']}` | " + " | ".join(cell(row, mode) for mode in MODES) + " |" for row in chosen]
            out.append("")
    out += ["## Gradient of the first W2 over that of the last (gradients.json; random tokens)\n"]
    out += ["| scheme | blocks | formula | measured |", "|---|---|---|---|"]
    out += [f"| `{r['scheme']}` | {r['layers']} | {r['predicted']:.2f} | {r['measured']:.2f} |" for r in ratios]
    out += ["", "Left out: " + "; ".join(f"`{name}`: {why}" for name, why in LEFT_OUT.items()) + "."]
    return "\n".join(out) + "\n"


def main(out: Path) -> None:
    rows = []
    for scheme in schemes():
        for model in MODELS:
            for layers in (*DEPTHS, *((DEEPEST,) if scheme in DEEP else ())):
                rows.append(compare(scheme, layers, model))
                print(scheme, layers, model, *(cell(rows[-1], mode) for mode in MODES), sep="  ", flush=True)
    measured = json.loads((out / "gradients.json").read_text())
    ratios = [
        {"scheme": scheme, "layers": layers, "predicted": first_over_last(scheme, layers), "measured": ratio}
        for scheme, found in measured.items()
        for layers, ratio in zip(found["w2_depth"]["x"], found["first_over_last"], strict=True)
    ]
    (out / "modes.json").write_text(json.dumps({"modes": rows, "first_over_last": ratios}, indent=1) + "\n")
    (out / "modes.md").write_text(table(rows, ratios), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
