"""Four spheres for the README: the same tokens under four schemes after eight layers of attention.

    python docs/figures/spheres.py

Writes spheres-light.svg and spheres-dark.svg beside it. No training: Q, K and V are the identity, as in `geonorm
simulate`. A trail leads from where a token starts to its dot; the far side of a sphere is paler.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import geonorm

HERE = Path(__file__).parent
SCHEMES = {  # title, colour on light, colour on dark
    "post": ("Post-Norm", "#0072b2", "#4aa8e0"),
    "peri": ("Peri-LN", "#009e73", "#35cfa0"),
    "pre": ("Pre-Norm", "#2b2b2b", "#e6e6e6"),
    "geonorm": ("GeoNorm", "#d55e00", "#ff8a3c"),
}
INK = {"light": ("#1c1c1c", "#b8bcc0"), "dark": ("#e8e8e6", "#4a5058")}
"""Text and rims by theme; the background is the page's."""
WIDTH, HEIGHT, RADIUS, TEXT = 830, 250, 92, 24
TILT = math.radians(35)


def simulate(tokens: int = 48, layers: int = 8) -> dict[str, Any]:
    """Directions (time, token, 3) by scheme."""
    simulation = geonorm.simulate(
        schemes=list(SCHEMES), init="uniform", tokens=tokens, dim=3, beta=1.0, time=float(layers), seeds=1, points=26,
        keep=["tokens"],
    )  # fmt: skip
    return {scheme: path["tokens"][0].tolist() for scheme, path in simulation.trajectories.items()}


def project(point: list[float]) -> tuple[float, float, float]:
    """Right, down and towards the reader, the third axis tilted towards the reader."""
    x, y, z = point
    return x, -(z * math.cos(TILT) - y * math.sin(TILT)), z * math.sin(TILT) + y * math.cos(TILT)


def draw(paths: dict[str, Any], theme: str) -> str:
    text, rim = INK[theme]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="{TEXT}" font-weight="600" text-anchor="middle">',
        "<title>The same tokens under four residual schemes after eight layers</title>",
    ]
    for place, (scheme, (title, *colours)) in enumerate(SCHEMES.items()):
        colour = colours[theme == "dark"]
        across, down = WIDTH * (place + 0.5) / len(SCHEMES), RADIUS + 6
        parts.append(f'<g transform="translate({across:g} {down})">')
        parts.append(f'<circle r="{RADIUS}" fill="none" stroke="{rim}" stroke-width="1.5"/>')
        for path in zip(*paths[scheme], strict=True):
            points = [project(point) for point in path]
            trail = " ".join(f"{RADIUS * right:.1f},{RADIUS * low:.1f}" for right, low, _ in points)
            right, low, near = points[-1]
            opacity = 0.5 + 0.25 * (1 + near)
            parts.append(
                f'<polyline points="{trail}" fill="none" stroke="{colour}" stroke-width="1.4" opacity="0.3"/>'
                f'<circle cx="{RADIUS * right:.1f}" cy="{RADIUS * low:.1f}" r="4" fill="{colour}" '
                f'opacity="{opacity:.2f}"/>'
            )
        parts.append(f'<text y="{RADIUS + 38}" fill="{text}">{title}</text></g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    paths = simulate()
    for theme in INK:
        (HERE / f"spheres-{theme}.svg").write_text(draw(paths, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
