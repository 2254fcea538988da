"""The picture of a scheme: how it moves a token, in the plane of the token and the update."""

from collections.abc import Mapping, Sequence
from math import cos, pi, sin

import numpy as np

from .charts import Axis, Chart, Spec, figure
from .style import COLOURS, Look, ramp

Points = Sequence[tuple[float, float]]
START, CIRCLE, UPDATE = "x", "|x'| = |x|", "towards x + u"
BAR, DOTS = "M-1.6,-.35H1.6V.35H-1.6Z", "M-1.6,-.35h.7v.7h-.7ZM-.35,-.35h.7v.7h-.7ZM.9,-.35h.7v.7h-.7Z"
"""A line and a dotted one, as shapes of a legend."""
FIXED = {START: "circle", CIRCLE: BAR, UPDATE: DOTS}
"""Series that every chart has beside its paths, with their shapes in the legend."""
MARGIN = 0.15


def draw_paths(
    name: str, equation: str, blocks: Mapping[int, Sequence[tuple[float, Points, bool]]], angle: float
) -> Spec:
    """A chart for each block t: its paths, each of an update (|u| / |x|, points from x to x' in lengths of x, whether
    the token was clamped), beside the line x + u at `angle` to x and the sphere of x. Blocks that are alike to three
    decimals are one chart."""
    rounded = [[(clamped, np.round([points[0], points[-1]], 3).tolist()) for _, points, clamped in paths]
               for paths in blocks.values()]  # fmt: skip
    same = all(paths == rounded[0] for paths in rounded)
    drawn = dict(list(blocks.items())[:1]) if same else blocks
    ends = [place for paths in drawn.values() for _, points, _ in paths for place in (points[0], points[-1])]
    low = min(0.0, *(value for place in ends for value in place)) - MARGIN
    span = max(1.0, *(value for place in ends for value in place)) + MARGIN - low
    charts = []
    for t, paths in drawn.items():
        names = [f"|u| = {length:g} |x|" for length, _, _ in paths]
        greys = {name: Look(*COLOURS["grey"], "", shape) for name, shape in FIXED.items()}
        x, y = (Axis(low, low + span, title=f"{way}, in lengths of x") for way in ("along x", "across x"))
        title = f"{name}: every block" if same else f"{name}: block {t} of 12"
        looks = {**ramp(names), **greys}
        chart = Chart(title, x, y, looks, width=300, height=300)
        hollow = "; hollow: clamped" * any(clamped for _, _, clamped in paths)
        chart.note = f"{equation}. Lines: from x to x' as the step grows from 0 to 1{hollow}."
        start = paths[0][1][0]
        arc = [pi / 2 * i / 32 for i in range(33)]
        chart.line(CIRCLE, [(start[0] * cos(a), start[0] * sin(a)) for a in arc], "thin")
        chart.line(UPDATE, [start, (start[0] + span * cos(angle), span * sin(angle))], "dotted")
        for series, (_, points, clamped) in zip(names, paths, strict=True):
            chart.line(series, points, "path")
            at = f"{series}: x' = ({points[-1][0]:.3f}, {points[-1][1]:.3f})"
            chart.mark(series, *points[-1], at, kind="hollow" if clamped else "mark")
        chart.mark(START, *start, "x", kind="best")
        charts.append(chart)
    return figure(charts)
