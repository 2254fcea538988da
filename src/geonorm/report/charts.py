"""Charts as data: layers that share two axes, in the grammar of Vega-Lite. One definition gives PNG, SVG, PDF and the
picture in the page; vl-convert renders it, with no network and no browser.

Altair is not used here: it writes the same dictionaries, through a validation that takes longer than the drawing, and
brings four packages.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape, unescape
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from ..errors import GeonormError, unknown
from .style import COLOURS, GREYS, Look, looks
from .tables import cut_apart

Spec = dict[str, Any]
PAPER, TEXT, SOFT, GRID = (light for light, _ in GREYS)
BETWEEN = "\u2063"
"""Stands between series and label in the description of a mark: an invisible separator, which no name has."""
NUMBER, TOKENS, RATE = "format(datum.value, '~g')", "replace(format(datum.value, '~s'), 'G', 'B')", "~e"
MARKS: dict[str, Spec] = {
    "band": {"type": "area", "opacity": 0.14, "clip": True},
    "thin": {"type": "line", "strokeWidth": 0.9, "opacity": 0.55, "clip": True},
    "outline": {"type": "line", "strokeWidth": 0.9, "opacity": 0.55},
    "path": {"type": "line", "strokeWidth": 1.8, "clip": True},
    "dotted": {"type": "line", "strokeWidth": 1.4, "strokeDash": [1.5, 2.5], "clip": True},
    "line": {"type": "line", "strokeWidth": 1.8, "clip": True},
    "bar": {"type": "rule", "strokeWidth": 9, "opacity": 0.25},
    "mean": {"type": "tick", "thickness": 2, "height": 16},
    "dot": {"type": "point", "filled": True, "size": 12},
    "mark": {"type": "point", "filled": True, "opacity": 1, "size": 42, "stroke": PAPER, "strokeWidth": 0.8},
    "hollow": {"type": "point", "filled": False, "opacity": 1, "size": 34, "fill": PAPER, "strokeWidth": 1.5},
    "best": {"type": "point", "filled": True, "opacity": 1, "size": 52, "stroke": TEXT, "strokeWidth": 1.6},
    "fail": {"type": "point", "filled": False, "opacity": 1, "size": 90, "strokeWidth": 2,
             "shape": "M-.5,-.5L.5,.5M-.5,.5L.5,-.5"},
}  # fmt: skip
"""How each kind of layer looks, in the order in which layers lie above one another."""
CONFIG: Spec = {
    "font": "sans-serif",
    "background": PAPER,
    "view": {"stroke": None},
    "axis": {"gridColor": GRID, "domainColor": SOFT, "tickColor": SOFT, "labelColor": SOFT, "titleColor": SOFT,
             "labelFontSize": 11, "titleFontSize": 11.5, "titleFontWeight": "normal", "ticks": False,
             "labelPadding": 5},
    "legend": {"labelColor": TEXT, "labelFontSize": 11, "labelLimit": 0, "symbolSize": 60, "symbolStrokeWidth": 1.8},
    "title": {"color": TEXT, "anchor": "start", "fontSize": 13, "subtitleColor": SOFT, "subtitleFontSize": 10.5,
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
        form = f"format(datum.value, '{self.form}')" if self.form == RATE else self.form
        scale = {"type": "log" if self.log else "linear", "domain": [self.low, self.high], "nice": False, "zero": False}
        axis = {"tickCount": 5, "labelExpr": form, "title": self.title or None, "labelOverlap": True}
        values = self.decades() if self.labels is None and self.log else self.labels
        if values is not None:
            axis["values"] = list(values)
        return {"field": name, "type": "quantitative", "scale": scale, "axis": axis if self.visible else None}


ROW = 62
"""Letters of a row's name and text together, at the usual width of a chart."""


class Point(NamedTuple):
    """A value of a curve, with its interval and the label of its marker."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    kind: str = "mark"


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
    x: Axis
    y: Axis | None
    looks: Mapping[str, Look]
    note: str = ""
    width: int = 420
    height: int = 230
    legend: bool = False
    """True if its series are not those of the page, so that it always has a legend of its own."""
    rows: dict[str, list[Spec]] = field(default_factory=dict)
    """Data of each kind of layer."""
    texts: list[Spec] = field(default_factory=list)
    rules: list[Spec] = field(default_factory=list)

    def curve(self, series: str, points: Sequence[Point]) -> None:
        """A line through the points, a band where they have intervals, and a marker on each."""
        self.band(series, [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None])
        self.line(series, [(p.x, p.y) for p in points])
        for p in points:
            self.mark(series, p.x, p.y, p.label, p.kind)

    def _add(self, kind: str, series: str, label: str = "", **values: Any) -> None:
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}
        self.rows.setdefault(kind, []).append({"s": series, "d": f"{series}{BETWEEN}{label}", **short})

    def line(self, series: str, points: Iterable[tuple[float, float]], kind: str = "line") -> None:
        """A line through the points that are finite; it breaks where one is not."""
        part = len(self.rows.get(kind, ()))
        for x, y in points:
            if math.isfinite(x) and math.isfinite(y) and (y > 0 or self.y is None or not self.y.log):
                self._add(kind, series, x=x, y=y, part=f"{series} {part}")
            else:
                part += 1

    def outline(self, series: str, points: Iterable[tuple[float, float]], part: str, kind: str = "outline") -> None:
        """A line through points in the order given, whichever way they go."""
        for order, (x, y) in enumerate(points):
            self._add(kind, series, x=x, y=y, part=part, order=order)

    def band(self, series: str, ends: Iterable[tuple[float, float, float]]) -> None:
        """The area between two lines: x, low, high."""
        for x, low, high in ends:
            self._add("band", series, x=x, y=low, y2=high)

    def mark(self, series: str, x: float, y: float, label: str, kind: str = "mark", **others: Any) -> None:
        """A marker that shows its label to whoever points at it; what lies outside the frame is left out."""
        if self.x.holds(x) and (self.y is None or self.y.holds(y)):
            self._add(kind, series, label, x=x, y=y, **others)

    def strip(self, row: Strip) -> None:
        """Name and text of a row, a mark per dot, mean and interval."""
        room = max(30, ROW * self.width // Chart.width - len(row.text))
        name = cut_apart(self.looks, room)[row.series]  # cut among all names, so that no two are the same
        for place, text, align in ((0, name, "left"), ("w", row.text, "right")):
            self.texts.append({"s": row.series, "d": row.series + BETWEEN, "text": text, "align": align, "at": place})
        if row.low is not None and row.high is not None:
            self._add("bar", row.series, x=row.low, x2=row.high)
        for x, label in row.dots:
            self._add("mark", row.series, label, x=x)
        if row.mean is not None:
            self._add("mean", row.series, x=row.mean)

    def rule(self, x: float | None = None, y: float | None = None) -> None:
        """A dashed reference line: upright at x, or level at y."""
        self.rules.append({"x": x} if y is None else {"y": y})

    @property
    def drawn(self) -> list[str]:
        """The series with data; an outline alone is none."""
        present = {row["s"] for kind, rows in self.rows.items() if kind != "outline" for row in rows}
        return [series for series in self.looks if series in present]

    def spec(self, legend: bool = True, beside: Collection[str] = ()) -> Spec:
        """The chart in Vega-Lite, without title and theme. beside: series of other charts that share its legend."""
        listed = [series for series in self.looks if series in beside or series in self.drawn]
        dashed = {"type": "rule", "color": SOFT, "strokeDash": [4, 3], "strokeWidth": 1.2}
        layers: list[Spec] = []
        for rule in self.rules:
            places = {name: channel for name, channel in self._place().items() if name in rule}
            layers.append({"data": {"values": [rule]}, "mark": dashed, "encoding": places})
        listed = listed if legend or self.legend else []
        layers += [self._layer(kind, self.rows[kind], listed) for kind in MARKS if kind in self.rows]
        layers += [self._text(row) for row in self.texts]
        height: Any = {"step": 46} if self.y is None else self.height
        return {"width": self.width, "height": height, "layer": layers}

    def _layer(self, kind: str, rows: list[Spec], listed: Sequence[str]) -> Spec:
        names = list(self.looks)
        key: Any = {"title": None, "values": listed, "symbolOpacity": 1} if listed and self.y else None

        def scale(values: Sequence[Any]) -> Spec:
            return {"field": "s", "type": "nominal", "scale": {"domain": names, "range": list(values)}, "legend": key}

        looks = list(self.looks.values())
        encoding = self._place() | {"color": scale([look.light for look in looks]), "description": {"field": "d"}}
        if kind in ("line", "thin") and any(look.dash for look in looks):
            encoding["strokeDash"] = scale([look.dashes for look in looks])
        if kind in ("mark", "hollow", "best"):
            encoding["shape"] = scale([look.marker for look in looks])
        if "part" in rows[0]:
            encoding["detail"] = {"field": "part"}
        if "order" in rows[0]:
            encoding["order"] = {"field": "order", "type": "quantitative"}
        if "o" in rows[0]:
            encoding["opacity"] = {"field": "o", "type": "quantitative", "scale": None, "legend": None}
        encoding |= {end: {"field": end} for end in ("x2", "y2") if end in rows[0]}
        return {"data": {"values": rows}, "mark": MARKS[kind], "encoding": encoding}

    def _place(self) -> Spec:
        """The encodings of the axes; without a y axis, a row for each series."""
        names = [name for name in self.looks if any(text["s"] == name for text in self.texts)]
        rows = {"field": "s", "type": "nominal", "scale": {"domain": names}, "axis": None}
        return {"x": self.x.channel("x"), "y": self.y.channel("y") if self.y else rows}

    def _text(self, row: Spec) -> Spec:
        bold = row["align"] == "left"
        mark = {"type": "text", "align": row["align"], "baseline": "middle", "fontSize": 12, "dy": -17,
                "color": self.looks[row["s"]].light if bold else TEXT, "fontWeight": "bold" if bold else "normal",
                }  # fmt: skip
        place = self._place() | {"x": {"value": "width" if row["at"] == "w" else 0}}
        encoding = place | {"text": {"field": "text"}, "description": {"field": "d"}}
        return {"data": {"values": [row]}, "mark": mark, "encoding": encoding}


def strip_chart(
    title: str, unit: str, rows: Sequence[Strip], looks: Mapping[str, Look], note: str = "",
    rule: float | None = None, axis: Axis | None = None, width: int = Chart.width,
) -> Chart:  # fmt: skip
    """Rows of intervals over one axis, with a reference line at `rule`. axis: in place of one that holds everything."""
    ends = [end for row in rows for end in (row.mean, row.low, row.high, rule) if end is not None]
    axis = axis or Axis.around([*ends, *(x for row in rows for x, _ in row.dots)], title=unit)
    chart = Chart(title, axis, None, looks, note, width)
    if rule is not None:
        chart.rule(x=rule)
    for row in rows:
        chart.strip(row)
    return chart


def figure(charts: Sequence[Chart], caption: str = "", columns: int = 2) -> Spec:
    """Charts side by side as one figure for print: titles, one legend, the caption and what one sees below it."""
    parts, beside = [], {series for chart in charts if chart.y for series in chart.drawn}
    shared = share_looks([chart.looks for chart in charts])
    for chart in charts:
        chart = replace(chart, looks=shared)
        words = wrap(chart.note, 78 if len(charts) > 1 else 96) if len(charts) < 5 else []
        parts.append(chart.spec(beside=beside) | {"title": {"text": chart.title, "subtitle": words}})
    whole: Spec = {"concat": parts, "columns": min(columns, len(parts)), "spacing": 28} if len(parts) > 1 else parts[0]
    if caption and len(parts) > 1:
        whole["title"] = {"text": caption, "fontSize": 11}
    elif caption:
        whole["title"]["subtitle"] = [*wrap(caption, 96), *whole["title"]["subtitle"]]
    return whole | {"config": CONFIG}


def share_looks(each: Sequence[Mapping[str, Look]]) -> Mapping[str, Look]:
    """One look for each series of all charts: theirs, or new ones if two series would look alike. The charts of a
    figure have one scale of colours, which would else be that of the first chart."""
    joined = {series: look for one in reversed(each) for series, look in one.items()}
    joined = {series: joined[series] for one in each for series in one}
    distinct = len({(look.light, look.dash) for look in joined.values()}) == len(joined)
    return joined if distinct or all(one == joined for one in each) else looks(list(joined))


@dataclass(frozen=True, repr=False)
class Figure:
    """A figure that notebooks show. `spec` is its definition in Vega-Lite."""

    spec: Spec

    def __repr__(self) -> str:
        return "Figure(save('name.png'), .svg or .pdf; notebooks show it)"

    def _repr_svg_(self) -> str:
        return svg(self.spec)

    def save(self, path: str | Path) -> Path:
        """Writes it as the ending of the path says: .png, .svg or .pdf."""
        target = Path(path)
        kind = target.suffix.removeprefix(".")
        if kind not in RENDER:
            raise GeonormError(unknown("ending", kind or target.name, RENDER))
        target.write_bytes(RENDER[kind](svg(self.spec)))
        return target


RENDER: dict[str, Callable[[str], bytes]] = {
    "png": lambda drawn: bytes(import_module("vl_convert").svg_to_png(drawn, scale=2)),
    "svg": str.encode,
    "pdf": lambda drawn: bytes(import_module("vl_convert").svg_to_pdf(drawn)),
}
"""Files of a figure from its SVG, by their ending."""


def save_figures(figures: Mapping[str, Spec], folder: Path) -> list[Path]:
    """Lay each figure out once, and write it as PNG, SVG and PDF; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, spec in figures.items():
        drawn = svg(spec)
        for kind, render in RENDER.items():
            written.append(folder / f"{name}.{kind}")
            written[-1].write_bytes(render(drawn))
    return written


def svg(spec: Spec) -> str:
    """The figure as SVG, the same text every time, and with ids that no other figure of a page has."""
    import vl_convert

    text = str(vl_convert.vegalite_to_svg(spec))
    clips = {old: f"clip{new}" for new, old in enumerate(dict.fromkeys(re.findall(r'id="(clip\d+)"', text)))}
    # Vega counts on from the last figure
    text = re.sub(r"\bclip\d+\b", lambda match: clips.get(match[0], match[0]), text)
    return re.sub(r"\bclip(\d+)\b", rf"clip{zlib.crc32(text.encode()):x}-\1", text) if clips else text


def inline(chart: Chart, place: Mapping[str, int]) -> str:
    """The chart as an element of the page: colours follow the page's theme, each mark says its label when pointed at
    (`data-tip`) and to which entry of the page's legend its series belongs (`data-s`, from `place`), which hides it."""
    text = svg(chart.spec(legend=False) | {"config": CONFIG | {"background": "transparent"}})

    def mark(match: re.Match[str]) -> str:
        name, between, label = unescape(match[1]).partition(BETWEEN)
        if not between:
            return ""
        index = f' data-s="{place[name]}"' if name in place and not chart.legend else ""
        return index + (f' data-tip="{escape(label)}"' if label else "")

    text = re.sub(r' aria-label="([^"]*)"', mark, text)
    text = re.sub(r' (?:aria-\w+|role|class)="[^"]*"', "", text)
    for light in (*(pair[0] for pair in COLOURS.values()), *(light for light, _ in GREYS)):
        text = text.replace(f'"{light}"', f'"var(--{light[1:]})"')
    size = re.search(r'viewBox="[^"]*"', text)
    role = f'role="img" tabindex="0" aria-label="{escape(chart.title)}"'
    return re.sub(r"^<svg[^>]*>", f'<svg class="chart" {size[0] if size else ""} {role}>', text)
