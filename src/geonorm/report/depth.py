"""Charts over depth: a column of the trace at each sub-layer, of runs and of probed models."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from .charts import Axis, Chart, Point
from .curves import Place, spans_decades, spread_evenly
from .style import Look, figures

GROWS = "A stream that grows makes each later update turn it less, so that late blocks do less."


class Measure(NamedTuple):
    """A column of the trace with the words for it."""

    title: str
    unit: str
    note: str = ""
    """How to read its chart."""
    meaning: str = ""
    """What a high or low value means for a reader."""


Profiles = Mapping[str, Sequence[Place]]
"""By series, its values over depth."""


def over_depth(
    name: str, measure: Measure, looks: Mapping[str, Look], profiles: Profiles, unit: str, second: Profiles, kind: str,
    labels: Mapping[str, str],
) -> list[Chart]:  # fmt: skip
    """The chart of a measure, on the scale that shows most, with the other as a view; none without a value. second:
    lines of another kind beside them. labels: the name to write of each series."""
    drawn = {series: places for series, places in profiles.items() if places}
    values = [value for place in chain(*drawn.values(), *second.values()) for value in place[2:] if value is not None]
    if not drawn:
        return []
    scales = [spans_decades(values)]
    if spans_decades(values, 3.0):
        scales.append(not scales[0])
    charts = []
    layers = sorted({math.floor(place.layer) for place in chain(*drawn.values())})
    for log in scales:
        x = Axis(layers[0] - 0.25, layers[-1] + 1, title=unit, labels=layers[:: math.ceil(len(layers) / 12)])
        y = Axis.around(values, log=log, margin=0.08, title=f"{measure.unit}, logarithmic" if log else measure.unit)
        title = describe_ends(measure.title, {labels[s]: (p[0].value, p[-1].value) for s, p in drawn.items()})
        view = "log scale" if log else "linear scale"
        chart = Chart(title, x, y, looks, measure.note, name=name, meaning=measure.meaning, view=view, labels=labels)
        for series, places in second.items():
            at = spread_evenly([place.layer for place in places])
            chart.line(series, zip(at, [place.value for place in places], strict=True), kind)
        for series, places in drawn.items():
            at, points = spread_evenly([place.layer for place in places]), []
            for t, place in zip(at, places, strict=True):
                ends = "" if place.low == place.high else f" ({figures(place.low)} to {figures(place.high)})"
                where = f"{unit.partition(' ')[0]} {place.layer:g} {place.kind}".strip()
                label = f"{series} · {where}: {figures(place.value)}{ends}"
                points.append(Point(t, place.value, place.low, place.high, label))
            chart.curve(series, points)
        charts.append(chart)
    charts[0].views = charts[1:]
    return charts[:1]


def describe_ends(what: str, ends: Mapping[str, tuple[float, float]]) -> str:
    """First and last value of the series that ends highest and of the one that ends lowest.

    >>> describe_ends("Radius", {"pre": (11.3, 67.21), "geonorm": (8.0, 8.0)})
    'Radius goes from 11.3 to 67.2 in pre, stays at 8 in geonorm'
    """
    order = sorted(ends, key=lambda series: ends[series][1], reverse=True)
    chosen = {series: [figures(float(f"{end:.3g}")) for end in ends[series]] for series in (*order[:1], *order[-1:])}
    parts = [f"{f'stays at {a}' if a == b else f'goes from {a} to {b}'} in {s}" for s, (a, b) in chosen.items()]
    return f"{what} {', '.join(parts)}"
