"""How schemes look and numbers read, everywhere in a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

# (on light, on dark), after Okabe and Ito; the yellow is darkened to be legible on white.
COLOURS = {
    "ink": ("#2b2b2b", "#e6e6e6"),
    "vermilion": ("#d55e00", "#ff8a3c"),
    "blue": ("#0072b2", "#4aa8e0"),
    "green": ("#009e73", "#35cfa0"),
    "purple": ("#b9659a", "#e39cc6"),
    "orange": ("#e69f00", "#ffc247"),
    "sky": ("#56b4e9", "#9bd6ff"),
    "olive": ("#8a7a00", "#e5da4b"),
}
GREYS = (("#ffffff", "#16181b"), ("#1c1c1c", "#e8e8e6"), ("#5c5c5c", "#a5a8ab"), ("#ededed", "#282c30"))
"""Paper, text, soft text and grid lines, (on light, on dark)."""
USUAL = {
    "pre": "ink", "geonorm": "vermilion", "post": "blue", "peri": "green",
    "olmo2": "purple", "deepnorm": "orange", "ngpt": "sky", "lns": "olive",
}  # fmt: skip
DASHES = ("", "6 3", "2 3", "8 3 2 3")
MARKERS = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "cross",
    "M-1,0L-.5,-.87H.5L1,0L.5,.87H-.5Z",
    "M0,-1L.26,-.34L.96,-.3L.42,.14L.6,.8L0,.44L-.6,.8L-.42,.14L-.96,-.3L-.26,-.34Z",
)  # fmt: skip
"""Shapes as Vega names them; a hexagon and a star as paths."""


@dataclass(frozen=True)
class Look:
    """Colour, dash pattern and marker of one scheme; the marker alone tells schemes apart without colour."""

    light: str
    dark: str
    dash: str
    marker: str

    @property
    def dashes(self) -> list[float]:
        return [float(part) for part in self.dash.split()] or [1, 0]


def looks(schemes: Sequence[str]) -> dict[str, Look]:
    """One look per scheme: well-known names keep theirs, the rest take free colours, then dashes.

    >>> look = looks(["pre", "mine"])
    >>> look["pre"].light, look["mine"].light
    ('#2b2b2b', '#d55e00')
    """
    names = {scheme: (USUAL[scheme], 0) for scheme in schemes if scheme in USUAL}
    used = {name for name, _ in names.values()} | {"ink"}
    rounds = [(name, n) for n in range(len(DASHES)) for name in COLOURS if name != "ink" and (n or name not in used)]
    others = (scheme for scheme in schemes if scheme not in names)
    names |= dict(zip(others, cycle(rounds), strict=False))
    return {
        scheme: Look(*COLOURS[names[scheme][0]], DASHES[names[scheme][1]], MARKERS[index % len(MARKERS)])
        for index, scheme in enumerate(schemes)
    }


def ramp(names: Sequence[str]) -> dict[str, Look]:
    """Looks for names that have an order, from light to dark; the one legible on either theme."""
    steps = [place / max(1, len(names) - 1) for place in range(len(names))]
    colours = [f"#{round(235 - 170 * s):02x}{round(150 - 60 * s):02x}{round(60 + 110 * s):02x}" for s in steps]
    return {name: Look(colour, colour, "", "circle") for name, colour in zip(names, colours, strict=True)}


def si(value: float | None) -> str:
    """Three figures with a metric prefix: 1.05M."""
    if value is None or not math.isfinite(value):
        return "–"
    for factor, prefix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def memory(value: float | None) -> str:
    """Bytes as MiB or GiB."""
    if value is None:
        return "–"
    return f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB"


def figures(value: float | None) -> str:
    """Four significant figures, without an exponent where one can be avoided."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def rate(lr: float | None) -> str:
    """A learning rate as people write it: 3e-4."""
    if lr is None:
        return "–"
    mantissa, exponent = f"{lr:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign, with a true minus."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"
