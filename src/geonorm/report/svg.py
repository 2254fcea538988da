"""Small charts as inline SVG: the browser scales them, CSS colours them, each mark carries its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from .style import figures

Format = Callable[[float], str]
SHAPES = {
    "circle": "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0z",
    "square": "M-3.2,-3.2h6.4v6.4h-6.4z",
    "triangle": "M0,-4.3L4.1,3.1H-4.1z",
    "diamond": "M0,-4.6L4.6,0L0,4.6L-4.6,0z",
    "down": "M0,4.3L4.1,-3.1H-4.1z",
    "cross": "M-1.3,-4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3z",
    "hexagon": "M-4.2,0L-2.1,-3.7H2.1L4.2,0L2.1,3.7H-2.1z",
    "star": "M0,-5L1.3,-1.7L4.8,-1.5L2.1,0.7L3,4L0,2.2L-3,4L-2.1,0.7L-4.8,-1.5L-1.3,-1.7z",
    "fail": "M-3.6,-3.6L3.6,3.6M-3.6,3.6L3.6,-3.6",
}


class Axis:
    """A linear or logarithmic axis over a range of values."""

    def __init__(self, low: float, high: float, log: bool = False, form: Format = figures, title: str = "") -> None:
        if not low < high:
            low, high = (low / 1.5, high * 1.5) if log else (low - 0.5, high + 0.5)
        self.low, self.high, self.log, self.form, self.title = low, high, log, form, title

    @classmethod
    def around(
        cls,
        values: Sequence[float],
        log: bool = False,
        margin: float = 0.05,
        form: Format = figures,
        title: str = "",
    ) -> Axis:
        """The axis that holds these values, with a margin at both ends."""
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(finite), max(finite)
        if log:
            factor = (high / low) ** margin
            return cls(low / factor, high * factor, True, form, title)
        pad = margin * (high - low)
        return cls(low - pad, high + pad, False, form, title)

    def place(self, value: float) -> float:
        """Where a value lies, 0 to 1 between the ends."""
        if self.log:
            value = max(value, 1e-300)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values along the axis."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            decades = range(first, last + 1)
            for steps in ((1,), (1, 3), (1, 2, 5)):
                found = [s * 10.0**d for d in decades for s in steps if self.low <= s * 10.0**d <= self.high]
                if len(found) >= 3:
                    return found[:: math.ceil(len(found) / (about + 2))]
        rough = (self.high - self.low) / about
        scale = 10.0 ** math.floor(math.log10(rough))
        step = min((s * scale for s in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / rough)))
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Chart:
    """A frame with axes that collects marks; `str` gives the SVG element."""

    def __init__(
        self, x: Axis, y: Axis | None, summary: str, height: int = 300, width: int = 480, right: int = 14
    ) -> None:
        self.x, self.y, self.summary, self.width, self.height = x, y, summary, width, height
        self.left = 54 if y else 10
        self.right, self.top, self.bottom = right, 16 if y else 8, 44
        self.clipped: list[str] = []  # lines and areas, cut at the frame
        self.above: list[str] = []  # marks and text, drawn over them
        self.x_labels: list[tuple[float, str]] | None = None

    def at_x(self, value: float) -> float:
        return self.left + self.x.place(value) * (self.width - self.left - self.right)

    def at_y(self, value: float) -> float:
        if self.y is None:
            return value
        return self.height - self.bottom - self.y.place(value) * (self.height - self.top - self.bottom)

    def line(self, scheme: int, xs: Sequence[float], ys: Sequence[float], css: str = "line") -> None:
        """A line through the points that are finite; it breaks where one is not."""
        path, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(x) and math.isfinite(y):
                path.append(f"{pen}{self.at_x(x):.1f},{self.at_y(y):.1f}")
                pen = "L"
            else:
                pen = "M"
        self.clipped.append(f'<path class="{css} s{scheme}" data-s="{scheme}" d="{"".join(path)}"/>')

    def band(self, scheme: int, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        """The area between two lines."""
        there = [f"{self.at_x(x):.1f},{self.at_y(y):.1f}" for x, y in zip(xs, low, strict=True)]
        back = [f"{self.at_x(x):.1f},{self.at_y(y):.1f}" for x, y in zip(xs, high, strict=True)]
        outline = "M" + "L".join(there + back[::-1]) + "z"
        self.clipped.append(f'<path class="band s{scheme}" data-s="{scheme}" d="{outline}"/>')

    def mark(self, scheme: int, x: float, y: float, label: str, shape: str, css: str = "mark") -> None:
        """A marker that shows its label to whoever points at it or steps to it with the arrow keys."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        at_x, at_y = self.at_x(x), self.at_y(y)
        if not (-2 <= at_x <= self.width + 2 and -2 <= at_y <= self.height - self.bottom + 2):
            return
        self.above.append(self._marker(scheme, at_x, at_y, label, shape, css))

    def dot(self, scheme: int, x: float, y: float, label: str, shape: str) -> None:
        """A marker of a strip chart, whose height is a place in the frame."""
        self.above.append(self._marker(scheme, self.at_x(x), y, label, shape, "mark dot"))

    def tick(self, scheme: int, x: float, y: float) -> None:
        """The short upright line of a mean."""
        self.above.append(f'<path class="mean s{scheme}" data-s="{scheme}" d="M{self.at_x(x):.1f},{y - 8:.1f}v16"/>')

    @staticmethod
    def _marker(scheme: int, at_x: float, at_y: float, label: str, shape: str, css: str) -> str:
        return (
            f'<path class="{css} s{scheme}" data-s="{scheme}" data-tip="{escape(label)}" d="{SHAPES[shape]}" '
            f'transform="translate({at_x:.1f},{at_y:.1f})"/>'
        )

    def segment(self, scheme: int, low: float, high: float, y: float, css: str = "bar") -> None:
        """A horizontal interval."""
        self.clipped.append(
            f'<path class="{css} s{scheme}" data-s="{scheme}" d="M{self.at_x(low):.1f},{y:.1f}H{self.at_x(high):.1f}"/>'
        )

    def text(self, x: float, y: float, text: str, css: str = "", scheme: int | None = None) -> None:
        """Text at a place in the frame, not on the axes."""
        group = "" if scheme is None else f' data-s="{scheme}"'
        self.above.append(f'<text class="{css}" x="{x:.1f}" y="{y:.1f}"{group}>{escape(text)}</text>')

    def rule(self, x: float) -> None:
        """A vertical reference line."""
        at = self.at_x(x)
        self.clipped.append(f'<path class="zero" d="M{at:.1f},{self.top}V{self.height - self.bottom}"/>')

    def level(self, y: float) -> None:
        """A horizontal reference line."""
        self.clipped.append(f'<path class="zero" d="M{self.left},{self.at_y(y):.1f}H{self.width - self.right}"/>')

    def __str__(self) -> str:
        floor = self.height - self.bottom
        left, top = self.left, self.top - 8
        wide, high = self.width - left - self.right + 6, floor - top
        role = f'role="img" tabindex="0" aria-label="{escape(self.summary)}"'
        parts = [
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" {role}>',
            *self._grid(floor),
            f'<svg x="{left}" y="{top}" width="{wide}" height="{high}" viewBox="{left} {top} {wide} {high}">',
            *self.clipped,
            "</svg>",
            *self.above,
            "</svg>",
        ]
        return "".join(parts)

    def _grid(self, floor: float) -> list[str]:
        parts = [f'<path class="axis" d="M{self.left},{floor}H{self.width - self.right}"/>']
        labels = self.x_labels or [(tick, self.x.form(tick)) for tick in self.x.ticks()]
        for tick, label in labels:
            at = self.at_x(tick)
            parts.append(f'<path class="grid" d="M{at:.1f},{self.top}V{floor}"/>')
            parts.append(f'<text class="tick middle" x="{at:.1f}" y="{floor + 16}">{escape(label)}</text>')
        middle = (self.left + self.width - self.right) / 2
        parts.append(f'<text class="name middle" x="{middle:.0f}" y="{self.height - 6}">{escape(self.x.title)}</text>')
        if self.y:
            for tick in self.y.ticks():
                at, label = self.at_y(tick), escape(self.y.form(tick))
                parts.append(f'<path class="grid" d="M{self.left},{at:.1f}H{self.width - self.right}"/>')
                parts.append(f'<text class="tick end" x="{self.left - 6}" y="{at + 4:.1f}">{label}</text>')
        return parts
