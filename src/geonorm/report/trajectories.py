"""Figures of a simulation: cosine, collapse, speed and radius in depth, and the tokens on their sphere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .figures import MARKERS, dash, label, legend
from .simulation import Trace, caption
from .style import Look, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPARSE = 9
"""Markers along a measured curve; theory is the line."""
FLOORS = {"float64": 1e-20, "float32": 1e-12}
"""Lowest 1 - cos shown: below it positions are rounding error."""
SHIFT = 0.4
"""Factor by which a predicted law is drawn below its curve."""


def cosine(trace: Trace, figure: Figure) -> bool:
    """Mean cosine against depth."""
    axes = figure.subplots()
    for scheme, look in looks(trace.schemes).items():
        curve(
            axes, trace, scheme, look, "cos_pair", lambda path: [1 - g if g is not None else None for g in path["gap"]]
        )
    depth_axis(axes, trace)
    axes.set_ylabel("mean cosine between tokens")
    axes.set_title(key_to_lines(trace))
    legend(axes)
    return True


def collapse(trace: Trace, figure: Figure) -> bool:
    """1 - cos on log-log axes, where powers are straight, and on log-linear axes, where exponentials are."""
    power, exponential = figure.subplots(1, 2, sharey=True)
    ends, lowest, guided = [], 1.0, False
    floor = FLOORS[trace.summary["dtype"]]
    for scheme, look in looks(trace.schemes).items():
        times, gaps = trace.mean(scheme, "gap")
        shown = [(t, g) for t, g in zip(times, gaps, strict=True) if g > floor]
        if not shown:
            continue
        lowest = min(lowest, shown[-1][1])
        ends.append(next((t for t, g in shown if g < 1e-8), shown[-1][0]))
        for axes in (power, exponential):
            axes.plot(
                [t + 1 for t, _ in shown], [g for _, g in shown], color=look.light, linestyle=dash(look),
                marker=MARKERS[look.marker], markevery=max(1, len(shown) // SPARSE), label=label(scheme),
            )  # fmt: skip
            guided |= guide(axes, trace.row(scheme), look, shown)
    power.set_xscale("log")
    for axes in (power, exponential):
        axes.set_yscale("log")
        axes.set_xlabel("depth-time t")
    power.set_ylim(lowest / 3, 3)
    exponential.set_xlim(0, 2.5 * min(ends, default=1.0))
    power.set_ylabel("1 - mean cosine" + (f"\n(dotted: predicted law × {SHIFT})" if guided else ""))
    power.set_title("Power laws are straight")
    exponential.set_title("Exponentials are straight")
    legend(exponential)
    return bool(ends)


def guide(axes: Axes, row: dict[str, Any], look: Look, shown: Sequence[tuple[float, float]]) -> bool:
    """The predicted law over the last stretch of a curve, moved down by SHIFT so that both are seen."""
    kind, exponent = row["terminal_law_predicted"], row["terminal_exponent_predicted"]
    late = [(t + 1, g) for t, g in shown if g < 1e-2 * shown[0][1]]
    if exponent is None or len(late) < 3:
        return False
    decay = {"polynomial": math.log, "stretched": math.sqrt, "exponential": float}[kind]
    end, last = late[-1]
    line = [SHIFT * last * math.exp(min(700.0, exponent * (decay(end) - decay(t)))) for t, _ in late]
    axes.plot([t for t, _ in late], line, color=look.light, linestyle=(0, (1, 1.5)), linewidth=1.0)
    return True


def speed(trace: Trace, figure: Figure) -> bool:
    """Speed factor s and radius r against depth."""
    left, right = figure.subplots(1, 2)
    drawn = False
    for scheme, look in looks(trace.schemes).items():
        drawn |= curve(left, trace, scheme, look, "speed", lambda path: path["speed"])
        drawn |= curve(right, trace, scheme, look, "radius", lambda path: path["radius"])
    for axes, name in ((left, "speed factor s: small is fast"), (right, "radius |x|")):
        depth_axis(axes, trace)
        axes.set_yscale("log")
        plain_ticks(axes)
        axes.set_title(name)
    left.set_ylabel(key_to_lines(trace), fontsize=8)
    legend(right)
    return drawn


def sphere(trace: Trace, figure: Figure) -> bool:
    """Small multiples: one row per scheme, one column per time, the far side paler."""
    pictures = trace.particles.get("schemes", {})
    shown = [scheme for scheme in trace.schemes if pictures.get(scheme)]
    if not shown:
        return False
    columns = max(len(pictures[scheme]) for scheme in shown)
    figure.set_size_inches(1.45 * columns + 1.0, 1.45 * len(shown) + 0.9)
    grid = figure.subplots(len(shown), columns, squeeze=False)
    common = figure.supxlabel("")  # the caption of the other figures is not of this run: hidden, its own stands on top
    common.set_visible(False)
    common.set_in_layout(False)
    figure.suptitle(picture_caption(trace), x=0.01, ha="left", fontsize=8, color="#5c5c5c", wrap=True)
    styles = looks(trace.schemes)
    ring = [2 * math.pi * i / 200 for i in range(201)]
    for scheme, row in zip(shown, grid, strict=True):
        row[0].text(-1.2, 0, label(scheme), rotation=90, va="center", ha="right", fontsize=8.5)
        for axes in row:
            axes.set_axis_off()
        for picture, axes in zip(pictures[scheme], row, strict=False):
            points = [seen((*point, 0.0, 0.0)[:3]) for point in picture["points"]]
            axes.plot([math.cos(a) for a in ring], [math.sin(a) for a in ring], color="#c9c9c9", linewidth=0.8)
            near = [0.25 + 0.65 * (1 + depth) / 2 for _, _, depth in points]
            axes.scatter(
                [x for x, _, _ in points], [y for _, y, _ in points], s=11, color=styles[scheme].light, alpha=near,
                linewidths=0,
            )  # fmt: skip
            axes.set_aspect("equal")
            axes.set_xlim(-1.06, 1.06)
            axes.set_ylim(-1.06, 1.06)
            if scheme == shown[0]:
                axes.set_title(f"t = {picture['time'] + 1:.3g}", fontsize=9, loc="center")
    return True


def picture_caption(trace: Trace) -> str:
    """The run that the pictures are of, which need not be that of the curves, and their axes: one sphere in d = 3, and
    in more dimensions the three in which the tokens of one scheme vary most."""
    run = trace.particles.get("run", {})
    said = caption({**trace.summary, **run})
    if run.get("dim", 3) > 3:
        said += f"\nprojected for all on the three dimensions in which {trace.particles['axes_of']} varies most"
    return f"{said}\ndepth-time t; same axes for all schemes"


def seen(point: tuple[float, float, float]) -> tuple[float, float, float]:
    """(right, up, towards the reader) of a point whose first coordinate is what tokens have in common: that axis is
    tilted half-way up."""
    common, right, up = point
    tilt = math.radians(35)
    return right, up * math.cos(tilt) + common * math.sin(tilt), common * math.cos(tilt) - up * math.sin(tilt)


FIGURES: dict[str, Callable[[Trace, Figure], bool]] = {
    "cosine": cosine,
    "collapse": collapse,
    "speed": speed,
    "sphere": sphere,
}


def curve(axes: Axes, trace: Trace, scheme: str, look: Look, key: str, theory: Callable[[Any], Any]) -> bool:
    """Theory as a line and measurement as markers; without theory the measurement is both."""
    times, values = trace.mean(scheme, key)
    if not times:
        return False
    path = trace.theory.get(scheme)
    line = dash(look)
    if path:
        points = [(t, v) for t, v in zip(path["times"], theory(path), strict=True) if t is not None and v is not None]
        axes.plot([t + 1 for t, _ in points], [v for _, v in points], color=look.light, linestyle=line)
        line = "none"
    axes.plot(
        [t + 1 for t in times], values, color=look.light, linestyle=line, marker=MARKERS[look.marker],
        markevery=max(1, len(times) // SPARSE), label=label(scheme),
    )  # fmt: skip
    return True


def depth_axis(axes: Axes, trace: Trace) -> None:
    axes.set_xlabel("depth-time t")
    if trace.summary["log_time"]:
        axes.set_xscale("log")


def plain_ticks(axes: Axes) -> None:
    """Numbers rather than powers of ten on a log axis that spans less than a decade."""
    low, high = axes.get_ylim()
    if high / low < 20:
        from matplotlib.ticker import ScalarFormatter

        for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            formatter(ScalarFormatter())


def key_to_lines(trace: Trace) -> str:
    return "markers: simulation, lines: theory" if trace.theory else "simulation, mean over seeds"
