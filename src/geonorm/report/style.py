"""How schemes look and numbers read, everywhere in a report: the one file of the identity.

Colour is the base scheme: `geonorm(decay=sqrt)` has the hue of `geonorm`. A further series of one hue has a dash and an
empty marker. Schemes without a hue of their own, and all after the first six series with one, are grey.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# after Okabe and Ito; yellow, orange and sky are darkened to 3:1 or more against white
COLOURS = {
    "ink": ("#2b2b2b", "#e6e6e6"),
    "vermilion": ("#d55e00", "#ff8a3c"),
    "blue": ("#0072b2", "#4aa8e0"),
    "green": ("#009e73", "#35cfa0"),
    "purple": ("#b9659a", "#e39cc6"),
    "orange": ("#c08000", "#ffc247"),
    "sky": ("#3d96cc", "#9bd6ff"),
    "olive": ("#8a7a00", "#e5da4b"),
    "grey": ("#757575", "#9c9fa2"),
}
GREYS = (("#ffffff", "#16181b"), ("#1c1c1c", "#e8e8e6"), ("#5c5c5c", "#a5a8ab"), ("#ededed", "#282c30"))
"""Paper, text, soft text and grid lines, (on light, on dark)."""
HUES = {
    "pre": "ink", "geonorm": "vermilion", "post": "blue", "peri": "green",
    "olmo2": "purple", "deepnorm": "orange", "ngpt": "sky", "lns": "olive",
}  # fmt: skip
COLOURED = 6
"""Series with a hue on one page: those after them are grey."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
MARKERS = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "cross",
    "M-1,0L-.5,-.87H.5L1,0L.5,.87H-.5Z",
    "M0,-1L.26,-.34L.96,-.3L.42,.14L.6,.8L0,.44L-.6,.8L-.42,.14L-.96,-.3L-.26,-.34Z",
)  # fmt: skip
"""Shapes as Vega names them; a hexagon and a star as paths."""


@dataclass(frozen=True)
class Look:
    """Colour, dash pattern and marker of one series; the marker alone tells series apart without colour."""

    light: str
    dark: str
    dash: str
    marker: str
    hollow: bool = False
    """True for each further series of its hue: its markers are empty."""


def looks(series: Sequence[str], schemes: Mapping[str, str] | None = None) -> dict[str, Look]:
    """One look for each series: the hue of its base scheme, and a dash for each further series of that hue.

    schemes: by series, its scheme, where that is not its name.

    >>> look = looks(["pre", "geonorm", "geonorm(decay=sqrt)", "mine"])
    >>> look["geonorm(decay=sqrt)"].light == look["geonorm"].light, look["geonorm(decay=sqrt)"].dash
    (True, '6 3')
    >>> look["mine"].light == COLOURS["grey"][0]
    True
    """
    ranks: Counter[str] = Counter()
    styles = {}
    for index, name in enumerate(series):
        hue = HUES.get((schemes or {}).get(name, name).partition("(")[0], "grey")
        hue = hue if sum(ranks.values()) - ranks["grey"] < COLOURED else "grey"
        dash, marker = DASHES[ranks[hue] % len(DASHES)], MARKERS[index % len(MARKERS)]
        styles[name] = Look(*COLOURS[hue], dash, marker, ranks[hue] > 0)
        ranks[hue] += 1
    return styles


def ramp(names: Sequence[str]) -> dict[str, Look]:
    """Looks for names that have an order, from orange to blue; each has 3:1 or more on either theme."""
    steps = [place / max(1, len(names) - 1) for place in range(len(names))]
    colours = [f"#{round(208 - 134 * s):02x}{round(122 - 22 * s):02x}{round(30 + 150 * s):02x}" for s in steps]
    return {name: Look(colour, colour, "", "circle") for name, colour in zip(names, colours, strict=True)}


def dark_rules() -> str:
    """Rules of CSS that draw a picture in the colours for dark paper: each colour of an attribute has its partner.

    >>> dark_rules()[:42]
    '[fill="#2b2b2b"]{fill:#e6e6e6}[stroke="#2b2'
    """
    return "".join(f'[{part}="{light}"]{{{part}:{dark}}}'
                   for light, dark in (*COLOURS.values(), *GREYS) for part in ("fill", "stroke"))  # fmt: skip


def si(value: float | None) -> str:
    """Three figures with a metric prefix: 1.05M."""
    if value is None or not math.isfinite(value):
        return "–"
    for factor, prefix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


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
