"""Figures of theory and of the explanations, computed from the definitions when the site is built."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import atan2, cos, pi, sin
from pathlib import Path

from geonorm.cli.pictures import follow_write
from geonorm.dynamics.closed import solve_equiangular
from geonorm.dynamics.drawn import DrawnAttention, DrawnFlow, DrawnMlp, DrawnSublayer
from geonorm.report.charts import Axis, Chart, Spec, Strip, figure, strip_chart
from geonorm.report.style import looks, ramp

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "experiments"))
from clamp import draw_ratio, read_traces  # noqa: E402
from programme import read_kept  # noqa: E402

STEPS = (
    ("1. Across the token", "orthogonal", 1),
    ("2. Along the sphere", "geonorm(decay=constant, max_angle=pi)", 1),
    ("3. By at most π/4", "geonorm(decay=constant)", 1),
    ("4. Divided by the block, here 2", "geonorm", 2),
)
EQUAL = "geonorm(update=unit, retraction=projection, decay=sqrt, decay_on=update, index=sublayer)"
SCHEDULES = {
    "geonorm(update=unit)": "1/t by block",
    "geonorm(update=unit, decay=sqrt)": "1/√t by block",
    "geonorm(update=unit, decay=sqrt, index=sublayer)": "1/√n",
    EQUAL: "equal shares",
}
DRAWN = {name: name for name in ("post", "pre", "peri", "sqrt", "geonorm")} | {"geonorm(decay=sqrt)": "geonorm, 1/√t"}
NETWORKS: dict[str, Sequence[DrawnSublayer]] = {
    "Attention alone": [DrawnAttention()],
    "Attention and SwiGLU": [DrawnAttention(), DrawnMlp("silu", gated=True)],
}


def chart(title: str, x: Axis, y: Axis, names: dict[str, str]) -> Chart:
    return Chart(title, x, y, looks([*names]), width=230, labels=names)


def step() -> Spec:
    """The same three updates under four rules, each of which adds a part of GeoNorm."""
    charts = []
    for title, scheme, block in STEPS:
        paths = {f"|u| = {path.length:g} |x|": path for path in follow_write(scheme, block, (0.5, 1.0, 1.5))}
        axes = [Axis(-0.1, 1.5, title=f"{way} x") for way in ("along", "across")]
        panel = Chart(title, *axes, ramp([*paths]) | looks(["sphere"]), width=200, height=200)
        panel.line("sphere", [(cos(pi * i / 64), sin(pi * i / 64)) for i in range(33)], "thin")
        for name, path in paths.items():
            panel.line(name, path.points, "path")
            panel.mark(name, *path.points[-1], name, "hollow" if path.clamped else "mark")
        charts.append(panel)
    return figure(charts)


def clamp() -> Spec:
    """Angle of a step against the length of the update, with and without the clamp."""
    names = {"geonorm": "clamp at π/4", "geonorm(max_angle=pi)": "none"}
    charts = []
    for block in (1, 3):
        panel = chart(f"Block {block}", Axis(0, 2, title="|v| / |x|"), Axis(0, 2, title="angle of the step"), names)
        for scheme in names:
            paths = follow_write(scheme, block, [0.05 * i for i in range(1, 47)])
            panel.line(scheme, [(path.length * sin(pi / 3), atan2(*reversed(path.points[-1]))) for path in paths])
        charts.append(panel)
    return figure(charts)


def ratio() -> Spec:
    """Median ratio of every sub-layer over training, without embedding norm, at the paper's rate and at half of it."""
    paper = ROOT / "experiments" / "017-paper-recipe"
    runs, traces = read_kept(paper), read_traces(paper)
    names = [f"books-geonorm-entry-embedding-721140-lr{rate}-seed0" for rate in (0.0036, 0.0072)]
    values = [float(row["proposal_p50"]) for name in names for row in traces[name]]
    y = Axis.around(values, log=True, title="|v| / |x|")
    return figure([draw_ratio(traces[name], runs[name], y) for name in names])


def shares(depth: int = 12) -> Spec:
    """Angle and share of each sub-layer of a clamped token."""
    x = Axis(1, 2 * depth, title="sub-layer")
    angles = chart("Angle of each sub-layer", x, Axis(0, 0.8), SCHEDULES)
    parts = chart("Its share of the final state", x, Axis(0, 0.3), SCHEDULES)
    for scheme in SCHEDULES:
        turns = [turn.angle for turn in DrawnFlow(scheme, depth).turn_through()]
        angles.line(scheme, enumerate(turns, 1))
        left, course = 1.0, []
        for number, angle in reversed([*enumerate(turns, 1)]):
            course.append((number, left * sin(angle) ** 2))
            left *= cos(angle) ** 2
        parts.line(scheme, reversed(course))
    return figure([angles, parts])


def random_weights(depth: int = 64) -> Spec:
    """What remains of a squared difference between tokens behind each block of a network as initialised."""
    charts = []
    for title, subs in NETWORKS.items():
        axes = Axis(1, depth, True, title="block"), Axis(3e-3, 4, True, title="squared difference that remains")
        panel = chart(title, *axes, DRAWN)
        for scheme in DRAWN:
            rest, course = 1.0, []
            for turn in DrawnFlow(scheme, depth, subs).turn_through():
                rest *= turn.relative()
                course.append(rest)
            panel.line(scheme, [point for point in enumerate(course[len(subs) - 1 :: len(subs)], 1) if point[1] > 3e-3])
        charts.append(panel)
    return figure(charts)


def collapse() -> Spec:
    """1 - cos of orthonormal tokens by the closed equation."""
    axes = Axis(1, 100, True, title="depth-time t"), Axis(1e-4, 2, True, title="1 - cos")
    panel = chart("How 16 tokens come together, β = 1", *axes, {**DRAWN, "deepnorm": "deepnorm"})
    for scheme in panel.looks:
        course = solve_equiangular(scheme, 16, 1.0, [10 ** (i / 10) - 1 for i in range(21)], depth=12)
        panel.line(scheme, [(t + 1, gap) for t, gap in zip(course.times, course.gap, strict=True) if gap > 1e-4])
    return figure([panel])


def answer() -> Spec:
    """GeoNorm - Pre-Norm pooled over settings, by who has an embedding norm; and with the embedding's rate tuned."""
    results = json.loads((ROOT / "evidence" / "results.json").read_text("utf-8"))
    names = {"without": "in neither", "with": "in both", "default": "in GeoNorm alone"}
    rows = []
    for pool, text in names.items():
        total = results["pools"][pool]
        dots = [(results["claims"][claim]["mean"], claim) for claim in total["claims"]]
        rows.append(Strip(text, total["verdict"], dots, total["mean"], total["low"], total["high"]))
    one, names["tuned"] = results["claims"]["022-without"], "in neither, tuned apart"
    dots = [(gap, f"seed {seed}") for seed, gap in one["pairs"].items()]
    rows.append(Strip(names["tuned"], one["verdict"], dots, one["mean"], one["low"], one["high"]))
    title = "GeoNorm − Pre-Norm in our recipe, by who has an embedding norm"
    note = "Mark: a setting, in the last row a seed. Tick: mean; bar: its 95 %. Tuned apart: the embedding's rate."
    look = dict.fromkeys(names.values(), looks(["geonorm"])["geonorm"])
    return figure([strip_chart(title, "nats per token; below 0 GeoNorm is better", rows, look, note, 0.0, width=420)])


ALL = (step, clamp, ratio, shares, random_weights, collapse, answer)
FIGURES = {draw.__name__.replace("_", "-"): draw for draw in ALL}
"""By name of the file."""
