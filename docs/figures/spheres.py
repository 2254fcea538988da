"""Four spheres for the README: the same tokens under four schemes after eight layers of attention.

    python docs/figures/spheres.py

Writes spheres-light.svg and spheres-dark.svg beside it. No training: Q, K and V are the identity, as in `geonorm
simulate`. A trail leads from where a token starts to its dot; the far side of a sphere is paler.
"""

from __future__ import annotations

import math
from pathlib import Path

import geonorm
from geonorm.report.style import COLOURS, HUES

SCHEMES = {"post": "Post-Norm", "peri": "Peri-LN", "pre": "Pre-Norm", "geonorm": "GeoNorm"}
INK = {"light": ("#1c1c1c", "#b8bcc0"), "dark": ("#e8e8e6", "#4a5058")}
"""Text and rims by theme; the background is the page's."""
RADIUS, TILT = 92, math.radians(35)


def project(point: list[float]) -> tuple[float, float, float]:
    """Right, down and towards the reader, the third axis tilted towards the reader."""
    x, y, z = point
    down, near = y * math.sin(TILT) - z * math.cos(TILT), z * math.sin(TILT) + y * math.cos(TILT)
    return RADIUS * x, RADIUS * down, near


simulation = geonorm.simulate(
    schemes=list(SCHEMES), init="uniform", tokens=48, dim=3, beta=1.0, time=8.0, seeds=1, points=26, keep=["tokens"]
)
for theme, (text, rim) in INK.items():
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 250" role="img" '
        'font-family="system-ui, sans-serif" font-size="24" font-weight="600" text-anchor="middle">',
        "<title>The same tokens under four residual schemes after eight layers</title>",
    ]
    for place, (scheme, title) in enumerate(SCHEMES.items()):
        colour = COLOURS[HUES[scheme]][theme == "dark"]
        parts.append(f'<g transform="translate({830 * (place + 0.5) / 4:g} {RADIUS + 6})">')
        parts.append(f'<circle r="{RADIUS}" fill="none" stroke="{rim}" stroke-width="1.5"/>')
        for path in zip(*simulation.trajectories[scheme]["tokens"][0].tolist(), strict=True):
            points = [project(point) for point in path]
            trail = " ".join(f"{right:.1f},{low:.1f}" for right, low, _ in points)
            right, low, near = points[-1]
            parts.append(
                f'<polyline points="{trail}" fill="none" stroke="{colour}" stroke-width="1.4" opacity="0.3"/>'
                f'<circle cx="{right:.1f}" cy="{low:.1f}" r="4" fill="{colour}" opacity="{0.75 + 0.25 * near:.2f}"/>'
            )
        parts.append(f'<text y="{RADIUS + 38}" fill="{text}">{title}</text></g>')
    path = Path(__file__).with_name(f"spheres-{theme}.svg")
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
