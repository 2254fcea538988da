"""Charts as data: layers that share two axes, in the grammar of Vega-Lite. One definition gives PNG, SVG, PDF and the
picture in the page (render.py).

Altair is not used here: it writes the same dictionaries, through a validation that takes longer than the drawing, and
brings four packages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, NamedTuple

from .style import GREYS, Look
from .tables import cut_apart

Spec = dict[str, Any]
PAPER, TEXT, SOFT, GRID = (light for light, _ in GREYS)
BETWEEN = "\u2063"
"""Separates series and label in the description of a mark: an invisible character, which no name has."""
NUMBER, TOKENS, RATE = (
    "format(datum.value, '~g')", "replace(format(datum.value, '~s'), 'G', 'B')", "format(datum.value, '~e')",
)  # fmt: skip
MARKS: dict[str, Spec] = {
    "band": {"type": "area", "opacity": 0.14, "clip": True},
    "thin": {"type": "line", "strokeWidth": 0.9, "opacity": 0.55, "clip": True},
    "outline": {"type": "line", "strokeWidth": 0.9, "opacity": 0.55},
    "path": {"type": "line", "strokeWidth": 1.8, "clip": True},
    "dotted": {"type": "line", "strokeWidth": 1.4, "strokeDash": [1.5, 2.5], "clip": True},
    "line": {"type": "line", "strokeWidth": 1.8, "clip": True},
    "bar": {"type": "rule", "strokeWidth": 1.6, "opacity": 0.9},
    "mean": {"type": "tick", "thickness": 2, "height": 16},
    "dot": {"type": "point", "filled": True, "size": 12},
    "mark": {"type": "point", "filled": True, "opacity": 1, "size": 42, "stroke": PAPER, "strokeWidth": 0.8},
    "hollow": {"type": "point", "filled": False, "opacity": 1, "size": 34, "fill": PAPER, "strokeWidth": 1.5},
    "best": {"type": "point", "filled": True, "opacity": 1, "size": 52, "stroke": TEXT, "strokeWidth": 1.6},
    "sample": {"type": "point", "filled": False, "size": 150, "strokeWidth": 1.8, "shape": "M-1,0L1,0"},
    "fail": {"type": "point", "filled": False, "opacity": 1, "size": 90, "strokeWidth": 2,
             "shape": "M-.5,-.5L.5,.5M-.5,.5L.5,-.5"},
}  # fmt: skip
"""The look of each kind of layer; later kinds are drawn above earlier ones."""
LEVEL = {"type": "rule", "color": SOFT, "strokeDash": [4, 3], "strokeWidth": 1.2}
ZERO = {"type": "tick", "color": SOFT, "thickness": 1.2, "height": 32, "yOffset": 6}
"""Reference lines; that of a row leaves the text above free."""
LABEL: Spec = {"type": "text", "align": "left", "baseline": "middle", "fontSize": 12, "color": TEXT, "lineHeight": 14}
FIELDS: dict[str, tuple[str, Spec]] = {
    "part": ("detail", {"field": "part"}),
    "order": ("order", {"field": "order", "type": "quantitative"}),
    "o": ("opacity", {"field": "o", "type": "quantitative", "scale": None, "legend": None}),
    "x2": ("x2", {"field": "x2"}),
    "y2": ("y2", {"field": "y2"}),
}
"""The channel of each column that the rows of a layer may have beside x and y."""
CONFIG: Spec = {
    "font": "Arial, Helvetica, sans-serif",
    "padding": {"left": 5, "top": 5, "right": 20, "bottom": 5},  # on the right for wider fonts
    "background": PAPER,
    "view": {"stroke": None},
    "axis": {"gridColor": GRID, "domainColor": SOFT, "tickColor": SOFT, "labelColor": SOFT, "titleColor": SOFT,
             "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "ticks": False,
             "labelPadding": 5},
    "title": {"color": TEXT, "anchor": "start", "fontSize": 14, "subtitleColor": SOFT, "subtitleFontSize": 12,
              "offset": 10},
}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis over a range of values, its title with the unit, and how its numbers are written
    (an expression of Vega). `labels` are the values to write; without them, round ones."""

    low: float
    high: float
    log: bool = False
    form: str = NUMBER
    title: str = ""
    labels: Sequence[float] | None = None
    visible: bool = True

    def __post_init__(self) -> None:
        if not self.low < self.high:
            low, high = (self.low / 1.5, self.high * 1.5) if self.log else (self.low - 0.5, self.high + 0.5)
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)

    @classmethod
    def around(cls, values: Sequence[float], log: bool = False, margin: float = 0.05, **others: Any) -> Axis:
        """The axis that holds these values, with a margin at both ends. Values that differ by rounding are one."""
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(finite), max(finite)
        if math.isclose(low, high, rel_tol=1e-5):
            low = high
        if log:
            factor = (high / low) ** margin
            return cls(low / factor, high * factor, True, **others)
        pad = margin * (high - low)
        return cls(low - pad, high + pad, False, **others)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def share(self, value: float) -> float:
        """Where a value lies on the axis: 0 at the low end, 1 at the high one."""
        low, at, high = map(math.log, (self.low, value, self.high)) if self.log else (self.low, value, self.high)
        return (at - low) / (high - low)

    def decades(self) -> list[float] | None:
        """About five round values along a logarithmic axis of a decade or more; None for Vega's own."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ("1", "13", "125"):
            values = [value for e in exponents for d in digits if self.holds(value := float(f"{d}e{e}"))]
            if len(values) >= 3:
                return values[:: math.ceil(len(values) / 7)]
        return None

    def channel(self, name: str) -> Spec:
        """The encoding of this axis, for the column `name`."""
        scale = {"type": "log" if self.log else "linear", "domain": [self.low, self.high], "nice": False, "zero": False}
        axis = {"tickCount": 5, "labelExpr": self.form, "title": self.title or None, "labelOverlap": True}
        values = self.decades() if self.labels is None and self.log else self.labels
        if values is not None:
            axis["values"] = list(values)
        return {"field": name, "type": "quantitative", "scale": scale, "axis": axis if self.visible else None}


ROW = 48
"""Most letters of a row's name and text together, at the usual width of a chart."""
NAME = 14
"""Most letters in a line of the label beside a curve."""
LINE = 15
"""Pixels from one label to the next."""


class Point(NamedTuple):
    """A value of a curve, with its interval and the label of its marker."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


class Strip(NamedTuple):
    """A row of a chart of intervals: its series, a text, (value, label) of each dot, and the interval of their mean."""

    series: str
    text: str
    dots: Sequence[tuple[float, str]]
    mean: float | None
    low: float | None = None
    high: float | None = None


@dataclass
class Chart:
    """A titled frame with two axes that collects layers. With `y` None each series has a row of its own, with text."""

    title: str
    """What the chart says, as a sentence."""
    x: Axis
    y: Axis | None
    looks: Mapping[str, Look]
    note: str = ""
    """How to read it."""
    width: int = 330
    height: int = 210
    name: str = ""
    """The name of its panel, in files, anchors and options."""
    meaning: str = ""
    """What a reader may conclude from it."""
    view: str = ""
    """Its name among the views of the same data."""
    views: list[Chart] = field(default_factory=list)
    """The same data on other axes, or in a smaller part of them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """By series, the name to write where it is not its own."""
    rows: dict[str, list[Spec]] = field(default_factory=dict)
    """Data of each kind of layer."""
    strips: list[Strip] = field(default_factory=list)
    rules: list[Spec] = field(default_factory=list)

    def curve(self, series: str, points: Sequence[Point]) -> None:
        """A line through the points, a band where they have intervals, and a marker on each."""
        for p in points:
            if p.low is not None and p.high is not None:
                self._add("band", series, x=p.x, y=p.low, y2=p.high)
        self.line(series, [(p.x, p.y) for p in points])
        for p in points:
            self.mark(series, p.x, p.y, p.label)

    def _add(self, kind: str, series: str, label: str = "", **values: Any) -> None:
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}
        self.rows.setdefault(kind, []).append({"s": series, "d": f"{series}{BETWEEN}{label}", **short})

    def line(self, series: str, points: Iterable[tuple[float, float]], kind: str = "line") -> None:
        """A line through the points that are finite, in the order given; it breaks where one is not."""
        part = len(self.rows.get(kind, ()))
        for order, (x, y) in enumerate(points):
            if math.isfinite(x) and math.isfinite(y) and (y > 0 or self.y is None or not self.y.log):
                self._add(kind, series, x=x, y=y, part=f"{series} {part}", order=order)
            else:
                part += 1

    def mark(self, series: str, x: float, y: float, label: str, kind: str = "mark", **others: Any) -> None:
        """A marker that shows its label to whoever points at it; what lies outside the frame is left out."""
        if self.x.holds(x) and (self.y is None or self.y.holds(y)):
            self._add(kind, series, label, x=x, y=y, **others)

    def strip(self, row: Strip) -> None:
        """A row: its name and text, a mark per dot, mean and interval."""
        self.strips.append(row)
        if row.low is not None and row.high is not None:
            self._add("bar", row.series, x=row.low, x2=row.high)
        for x, label in row.dots:
            self._add("mark", row.series, label, x=x)
        if row.mean is not None:
            self._add("mean", row.series, x=row.mean)

    def rule(self, x: float | None = None, y: float | None = None) -> None:
        """A dashed reference line: upright at x, or level at y."""
        self.rules.append({"x": x} if y is None else {"y": y})

    def table(self) -> list[Spec]:
        """What is drawn, as rows of numbers."""
        return [
            {"series": row["s"], "kind": kind, "label": row["d"].partition(BETWEEN)[2],
             **{key: row[key] for key in ("x", "x2", "y", "y2") if key in row}}
            for kind, each in self.rows.items() for row in each
        ]  # fmt: skip

    def spec(self) -> Spec:
        """The chart in Vega-Lite, without title and theme. Without a y axis it has a row for each series."""
        names = [row.series for row in self.strips]
        rows = {"field": "s", "type": "nominal", "scale": {"domain": names}, "axis": None}
        place = {"x": self.x.channel("x"), "y": self.y.channel("y") if self.y else rows}
        layers: list[Spec] = []
        for rule in self.rules:
            axes = {name: channel for name, channel in place.items() if name in rule or not self.y}
            values = [rule] if self.y else [rule | {"s": row.series} for row in self.strips]
            layers.append({"data": {"values": values}, "mark": LEVEL if self.y else ZERO, "encoding": axes})
        layers += [
            self._layer(kind, drawn, look, place)
            for kind in MARKS
            for series, look in self.looks.items()
            if (drawn := [row for row in self.rows.get(kind, ()) if row["s"] == series])
        ]
        layers += self._line_labels() if self.y else self._row_labels(place)
        lengths = [len(self.labels.get(row.series, row.series) + row.text) for row in self.strips]
        # higher rows where the name and the text of one need a line each
        height = self.height if self.y else {"step": 62 if max(lengths) > self._letters else 46}
        return {"width": self.width, "height": height, "layer": layers}

    def _layer(self, kind: str, rows: list[Spec], look: Look, place: Spec) -> Spec:
        """The layer of one kind of mark of one series."""
        mark = {**MARKS["hollow" if kind == "mark" and look.hollow else kind], "color": look.light}
        if kind in ("line", "thin", "path"):
            mark["strokeDash"] = dash_lengths(look)
        if kind in ("mark", "hollow", "best"):
            mark["shape"] = look.marker
        encoding = place | {"description": {"field": "d"}}
        encoding |= {channel: how for name, (channel, how) in FIELDS.items() if name in rows[0]}
        return {"data": {"values": rows}, "mark": mark, "encoding": encoding}

    def _row_labels(self, place: Spec) -> list[Spec]:
        """Name and text above each row; names longer than it are cut among all, so that no two are the same."""
        layers = []
        names = cut_apart([self.labels.get(each, each) for each in self.looks], self._letters)
        for row in self.strips:
            name = LABEL | {"text": names[self.labels.get(row.series, row.series)], "x": 0, "fontWeight": "bold"}
            text = LABEL | {"text": row.text, "x": self.width, "align": "right", "dy": -17}
            above = name | {"dy": -33 if len(name["text"] + row.text) > self._letters else -17}
            layers += [label(row.series, mark, y=place["y"]) for mark in (above, text)]
        return layers

    @property
    def _letters(self) -> int:
        """Most letters in a line of a row."""
        return ROW * self.width // Chart.width

    def _line_labels(self) -> list[Spec]:
        """Marker and name of each series beside the end of its line, moved apart where lines end together."""
        if self.y is None or not self.y.visible or len(self.looks) < 2:
            return []
        ends: dict[str, float] = {}
        for kind in ("line", "path", "mark", "best", "dotted", "thin"):
            ends = {row["s"]: row["y"] for row in self.rows.get(kind, ())} | ends
        places = {series: self.height * (1 - min(1.0, max(0.0, self.y.share(y)))) for series, y in ends.items()}
        names = {series: self.labels.get(series, series) for series in ends}
        lines = {series: wrap(name.replace("(", " ("), NAME) or [""] for series, name in names.items()}
        if LINE * sum(map(len, lines.values())) > self.height:
            short = cut_apart(names.values(), NAME)
            lines = {series: [short[name]] for series, name in names.items()}
        marked = {row["s"]: kind for kind in ("hollow", "best", "mark") for row in self.rows.get(kind, ())}
        dotted = {row["s"] for row in self.rows.get("dotted", ())}
        layers = []
        for series, y in spread_apart({s: (places[s], len(lines[s])) for s in ends}, self.height).items():
            look, text = self.looks[series], lines[series]
            kind = "hollow" if look.hollow and series in marked else marked.get(series, "sample")
            dash = MARKS["dotted"]["strokeDash"] if series in dotted else dash_lengths(look)
            marker = MARKS[kind] | ({"strokeDash": dash} if kind == "sample" else {"shape": look.marker})
            layers += [label(series, marker | {"color": look.light, "x": self.width + 10, "y": y}),
                       label(series, LABEL | {"text": text, "x": self.width + 18, "y": y})]  # fmt: skip
        return layers


def dash_lengths(look: Look) -> list[float]:
    """Pixels on and off along a line."""
    return [float(part) for part in look.dash.split()] or [1.0, 0.0]


def label(series: str, mark: Spec, **channels: Spec) -> Spec:
    """A layer of one mark that belongs to a series."""
    data = {"values": [{"s": series, "d": series + BETWEEN}]}
    return {"data": data, "mark": mark, "encoding": {"description": {"field": "d"}, **channels}}


def spread_apart(places: Mapping[str, tuple[float, int]], room: float) -> dict[str, float]:
    """Places of labels along an axis of `room` pixels, moved so that no two overlap. places: by name, where its first
    line belongs, and its number of lines.

    >>> spread_apart({"a": (100.0, 1), "b": (98.0, 2)}, 100.0)
    {'b': 70.0, 'a': 100.0}
    """
    at: dict[str, float] = {}
    free, last = 0.0, room + LINE
    for name, (place, lines) in sorted(places.items(), key=lambda item: item[1]):
        at[name] = max(place, free)
        free = at[name] + LINE * lines
    for name in reversed(at):
        last -= LINE * places[name][1]
        at[name] = min(at[name], last)
    return at


def strip_chart(
    title: str, unit: str, rows: Sequence[Strip], looks: Mapping[str, Look], note: str = "",
    rule: float | None = None, axis: Axis | None = None, width: int = Chart.width, name: str = "", meaning: str = "",
) -> Chart:  # fmt: skip
    """Rows of intervals over one axis, with a reference line at `rule`. axis: in place of one that holds everything."""
    ends = [end for row in rows for end in (row.mean, row.low, row.high, rule) if end is not None]
    axis = axis or Axis.around([*ends, *(x for row in rows for x, _ in row.dots)], title=unit)
    chart = Chart(title, axis, None, looks, note, width, name=name, meaning=meaning)
    if rule is not None:
        chart.rule(x=rule)
    for row in rows:
        chart.strip(row)
    return chart


def figure(charts: Sequence[Chart], caption: str = "", columns: int = 2) -> Spec:
    """Charts side by side as one figure for print: the title of each says what it shows, the caption the setting."""
    parts = []
    for chart in charts:
        letters = max(36, chart.width // 7)  # so that lines end within the figure in wide fonts, too
        words = wrap(chart.note, letters) if len(charts) < 5 else []
        title = {"text": wrap(chart.title, letters * 7 // 9), "subtitle": words}
        parts.append(chart.spec() | ({"title": title} if chart.title else {}))
    whole: Spec = {"concat": parts, "columns": min(columns, len(parts)), "spacing": 28}
    if caption:
        whole["title"] = {"text": wrap(caption, 80 * min(columns, len(parts))), "fontSize": 12, "fontWeight": "normal"}
    return whole | {"config": CONFIG}
