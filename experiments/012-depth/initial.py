"""Prediction 1 of experiment 012: first over last gradient of the MLPs' output matrix, in networks as drawn.

    python experiments/012-depth/initial.py        (a minute; nothing is trained)

Writes initial.md. Networks are those of experiment 005 (d): GELU, hidden 4 x width, LayerNorm, random tokens.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
SEEDS, DEPTHS = 6, (12, 36)
PREDICTED = {
    "geonorm": (11.3, 33.8), "geonorm(decay=0.75)": (6.1, 14.0), "geonorm(decay=sqrt)": (3.3, 5.9),
    "geonorm(decay=constant), equal angles": (1.0, 1.0), "pre": (2.8, 4.8),
}  # fmt: skip
"""By depth; registered in notes/log.md on 2026-11-22."""


def main(out: Path = HERE, seeds: int = SEEDS) -> None:
    measured = runpy.run_path(str(HERE.parent / "005-geometry" / "gradients.py"))["measured"]
    names = runpy.run_path(str(HERE / "runs.py"))["NAMES"]
    lines = ["| scheme | blocks | predicted | measured, lowest to highest seed | off |", "|---|---|---|---|---|"]
    for name, expected in PREDICTED.items():
        for layers, value in zip(DEPTHS, expected, strict=True):
            scheme = names[name](layers) if name in names else name
            norms = [measured(scheme, layers, 64, seed)["w2"] for seed in range(seeds)]
            found = [first / last for first, *_, last in norms]
            spread = f"{mean(found):.2f}, {min(found):.1f} to {max(found):.1f}"
            lines.append(f"| {name} | {layers} | {value:g} | {spread} | {mean(found) / value - 1:+.0%} |")
    (out / "initial.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(out / "initial.md")


if __name__ == "__main__":
    main()
