"""Charts of a simulation: cosine, collapse, speed and radius in depth, and the tokens on their sphere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .series import spans_decades
from .simulation import SavedSimulation, caption
from .style import Look, figures
from .vega import Axis, Chart

MEASURED = "Simulation, mean over seeds."
SPARSE = 9
"""Markers along a measured curve; theory is the line."""
FLOORS = {"float64": 1e-20, "float32": 1e-12}
"""Lowest 1 - cos shown: below it positions are rounding error."""
SHIFT = 0.4
"""Factor by which a predicted law is drawn below its curve."""
RING = {"ring": Look("#a5a8ab", "#a5a8ab", "", "circle")}
"""The look of the rim of a sphere."""
Points = list[tuple[float, float]]
Theory = Callable[[Any], Sequence[float | None]]


def cosine(trace: SavedSimulation) -> list[Chart]:
    """Mean cosine against depth."""
    title = "Mean cosine between tokens in depth"
    return _in_depth(trace, title, "cos_pair", lambda p: [None if g is None else 1 - g for g in p["gap"]], "cosine")


def speed_and_radius(trace: SavedSimulation) -> list[Chart]:
    """Speed factor s and radius r against depth."""
    return [
        *_in_depth(trace, "Speed factor s: small is fast", "speed", lambda path: path["speed"], "s", True),
        *_in_depth(trace, "Radius of the stream", "radius", lambda path: path["radius"], "|x|", True),
    ]


def _in_depth(
    trace: SavedSimulation, title: str, key: str, theory: Theory, unit: str, log: bool = False
) -> list[Chart]:
    """Theory as a line and measurement as markers; without theory the measurement is both."""
    measured: dict[str, Points] = {}
    lines: dict[str, Points] = {}
    for scheme in trace.names:
        times, values = trace.mean(scheme, key)
        if not times:
            continue
        measured[scheme] = lines[scheme] = [(t + 1, v) for t, v in zip(times, values, strict=True)]
        if path := trace.theory.get(scheme):
            predicted = zip(path["times"], theory(path), strict=True)
            if known := [(t + 1, v) for t, v in predicted if t is not None and v is not None]:
                lines[scheme] = known
    points = [point for found in (*measured.values(), *lines.values()) for point in found]
    if not points:
        return []
    values = [value for _, value in points if math.isfinite(value)]
    y = Axis.around(values, log=log and spans_decades(values, 1.0), margin=0.06, title=unit)
    log_time, times = bool(trace.summary["log_time"]), [t for t, _ in points]
    x = Axis(min(times), max(times), log=log_time, title="depth-time t" + ", logarithmic" * log_time)
    without = [scheme for scheme in measured if lines[scheme] is measured[scheme]]
    chart = Chart(title, x, y, trace.looks, _key(without, len(measured)))
    for scheme, found in measured.items():
        chart.line(scheme, lines[scheme])
        _mark(chart, scheme, found)
    return [chart]


def _mark(chart: Chart, scheme: str, points: Points) -> None:
    for t, value in points[:: max(1, len(points) // SPARSE)]:
        chart.mark(scheme, t, value, f"{scheme} · t = {t:.3g}: {figures(value)}")


def _key(without: Sequence[str], schemes: int) -> str:
    """What is what, where so many schemes are drawn, and those `without` theory."""
    if len(without) == schemes:
        return MEASURED
    rest = f"; of {', '.join(without)} the lines are the simulation" if without else ""
    return f"Markers: simulation, lines: theory{rest}."


def collapse(trace: SavedSimulation) -> list[Chart]:
    """1 - cos on log-log axes, where powers are straight, and on log-linear axes, where exponentials are."""
    floor = FLOORS[trace.summary["dtype"]]
    gaps = {scheme: zip(*trace.mean(scheme, "gap"), strict=True) for scheme in trace.names}
    curves = {scheme: [(t + 1, gap) for t, gap in found if gap > floor] for scheme, found in gaps.items()}
    curves = {scheme: points for scheme, points in curves.items() if points}
    if not curves:
        return []
    ends = [next((t for t, gap in points if gap < 1e-8), points[-1][0]) for points in curves.values()]
    y = Axis(min(points[-1][1] for points in curves.values()) / 3, 3, log=True, title="1 - mean cosine, logarithmic")
    times = [t for points in curves.values() for t, _ in points]
    guides = {scheme: _guide(trace.row(scheme), points) for scheme, points in curves.items()}
    note = f"Dotted: predicted law × {SHIFT}." if any(guides.values()) else MEASURED
    charts = []
    wide = Axis(min(times), max(times), log=True, title="depth-time t, logarithmic")
    short = Axis(0, 2.5 * min(ends), title="depth-time t")
    for what, x in (("power laws", wide), ("exponentials", short)):
        chart = Chart(f"Collapse: {what} are straight", x, y, trace.looks, note)
        for scheme, points in curves.items():
            chart.line(scheme, points)
            chart.line(scheme, guides[scheme], "dotted")
            _mark(chart, scheme, [point for point in points if x.holds(point[0])])
        charts.append(chart)
    return charts


def _guide(row: dict[str, Any], points: Points) -> Points:
    """The predicted law over the last stretch of a curve, moved down by SHIFT so that both are seen."""
    kind, exponent = row["terminal_law_predicted"], row["terminal_exponent_predicted"]
    late = [(t, gap) for t, gap in points if gap < 1e-2 * points[0][1]]
    if exponent is None or len(late) < 3:
        return []
    decay = {"polynomial": math.log, "stretched": math.sqrt, "exponential": float}[kind]
    end, last = late[-1]
    return [(t, SHIFT * last * math.exp(min(700.0, exponent * (decay(end) - decay(t))))) for t, _ in late]


def sphere(trace: SavedSimulation) -> list[Chart]:
    """One row of spheres per scheme, one column per time, the far side of each paler."""
    pictures = trace.particles.get("schemes", {})
    shown = [scheme for scheme in trace.names if pictures.get(scheme)]
    if not shown:
        return []
    columns = max(len(pictures[scheme]) for scheme in shown)
    step, title = 2.25, 0.5  # between the middles of spheres of radius 1; room for the name above a row
    x = Axis(-1.1, step * (columns - 1) + 1.1, shown=False)
    y = Axis(-(step + title) * (len(shown) - 1) - 1.1, 1.9, shown=False)
    scale = 420 / (x.high - x.low) if columns > 2 else 110
    chart = Chart("Tokens on the sphere", x, y, RING | trace.looks, _picture_caption(trace),
                  width=round(scale * (x.high - x.low)), height=round(scale * (y.high - y.low)))  # fmt: skip
    for row, scheme in enumerate(shown):
        for column, picture in enumerate(pictures[scheme]):
            right, up = step * column, -(step + title) * row
            chart.outline("ring", [(right + x, up + y) for x, y in circle()], f"{row} {column}")
            for point in picture["points"]:
                dx, dy, near = seen_from((*point, 0.0, 0.0)[:3])
                label = f"{scheme} · t = {picture['time'] + 1:.3g}"
                chart.mark(scheme, right + dx, up + dy, label, "dot", o=opacity(near))
            if not row:
                chart.text("", right, up + 1.72, f"t = {picture['time'] + 1:.3g}")
        chart.text(scheme, -1.1, -(step + title) * row + 1.3, scheme, "left")
    return [chart]


def opacity(near: float) -> float:
    """How dark a token is drawn, by its place from -1, the far side, to 1."""
    return round(0.25 + 0.65 * (1 + near) / 2, 3)


def circle() -> Points:
    """The rim of a sphere of radius 1."""
    return [(math.cos(math.pi * i / 30), math.sin(math.pi * i / 30)) for i in range(61)]


def _picture_caption(trace: SavedSimulation) -> str:
    """The run that the pictures are of, which need not be that of the curves, and their axes: one sphere in d = 3, and
    in more dimensions the three in which the tokens of one scheme vary most."""
    run = trace.particles.get("run", {})
    said = f"{caption({**trace.summary, **run})}. "
    if run.get("dim", 3) > 3:
        said += f"Projected for all on the three dimensions in which {trace.particles['axes_of']} varies most. "
    return said + "t is depth-time; the axes are the same for all schemes; the far side is paler."


def seen_from(point: tuple[float, float, float]) -> tuple[float, float, float]:
    """(right, up, towards the reader) of a point whose first coordinate is what tokens have in common: that axis is
    tilted half-way up."""
    common, right, up = point
    tilt = math.radians(35)
    return right, up * math.cos(tilt) + common * math.sin(tilt), common * math.cos(tilt) - up * math.sin(tilt)
