"""A simulation (`geonorm simulate`): how tokens come together on the sphere, measured beside theory."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from struct import iter_unpack
from typing import Any

from .charts import Axis, Chart, inline
from .curves import spans_decades
from .page import details, html_table, pairs
from .study import Record, Section, Study, read_object_strictly, read_rows_strictly, refuse_damaged
from .style import Look, figures
from .tables import Table, count, markdown_lines, number

START = {
    "equiangular": "orthonormal start",
    "uniform": "uniform start",
    "gaussian": "normal start",
    "cone": "start in a cone",
}
NOTE = (
    "theory: the closed equation of equiangular tokens, and the limit of large t; collapse: mean cosine 0.99; "
    "T: the end, or where tokens agree to rounding; not at its end: 1 - cos is not far below 0.01 yet, or its slope "
    "drifts"
)
MEASURED = "Simulation, mean over seeds."
SPARSE = 9
"""Markers along a measured curve; theory is the line."""
FLOORS = {"float64": 1e-20, "float32": 1e-12}
"""Lowest 1 - cos to draw: below it positions are rounding error."""
SHIFT = 0.4
"""Factor by which a predicted law is drawn below its curve."""
SIZE, REACH, SCALE = 200, 1.1, 32767
"""Pixels of a sphere, what it shows of an axis where the sphere has radius 1, and units of a coordinate in a frame."""
RING = {"ring": Look("#a5a8ab", "#a5a8ab", "", "circle")}
"""The look of the rim of a sphere."""
Points = list[tuple[float, float]]
RIM: Points = [(math.cos(math.pi * i / 30), math.sin(math.pi * i / 30)) for i in range(61)]
"""Of a sphere of radius 1."""


@dataclass(frozen=True)
class SavedSimulation(Study):
    """A simulation's folder: summary, rows of the trace by scheme, closed equation, and pictures."""

    summary: Record
    rows: dict[str, list[Record]]
    theory: dict[str, dict[str, list[float | None]]]
    particles: Record

    what = "Simulation"
    columns = 4

    @classmethod
    def load(cls, path: Path) -> SavedSimulation:
        """GeonormError where a file is cut or is not what the others say, OSError where one is missing."""
        with refuse_damaged(path, "simulate"):
            summary, theory, particles = (
                read_object_strictly(path / f"{name}.json") for name in ("summary", "theory", "particles")
            )
            rows: dict[str, list[Record]] = {row["scheme"]: [] for row in summary["schemes"]}
            for row in read_rows_strictly(path / "trace.jsonl"):
                rows[row["scheme"]].append(row)
            study = cls(path, summary, rows, theory, particles)
            study.text_lines()
        return study

    @property
    def series(self) -> list[str]:
        return [row["scheme"] for row in self.summary["schemes"]]

    def records(self) -> list[Record]:
        return [self.row(name) for name in self.names]

    def row(self, scheme: str) -> Record:
        """The scheme's row of the summary."""
        return next(row for row in self.summary["schemes"] if row["scheme"] == scheme)

    def mean(self, scheme: str, key: str) -> list[tuple[float, float]]:
        """(depth-time t, mean over seeds) of a column, where every seed has a value."""
        by_time: dict[float, list[float | None]] = {}
        for row in self.rows.get(scheme, ()):
            by_time.setdefault(row["time"], []).append(row.get(key))
        return [
            (time + 1, sum(v for v in values if v is not None) / len(values))
            for time, values in by_time.items()
            if None not in values and len(values) == self.summary["seeds"]
        ]

    def caption(self) -> str:
        return self.describe()

    def describe(self, **other: Any) -> str:
        """The simulated system in a line, with other settings if they are given."""
        s = self.summary | other
        parts = [
            f"n = {s['tokens']} tokens", f"d = {s['dim']}", f"β = {s['beta']:.4g}", START[s["init"]],
            "Q = K = V = I" if s["weights"] == "identity" else f"{s['weights']} weights per {s['per']}",
            *([f"MLP {s['mlp']}"] if s.get("mlp") else []), *(["causal"] if s["causal"] else []),
            *(["rotary positions"] if s.get("rope") else []), *([f"{s['heads']} heads"] if s["heads"] > 1 else []),
            count(s["seeds"], "seed"), f"T = {s['time']:g}", f"L = {s['depth']}", f"method {s['method']}",
            *([f"interrupted, missing: {', '.join(s['missing'])}"] if s.get("missing") else []),
        ]  # fmt: skip
        return " · ".join(parts)

    def findings(self) -> list[tuple[str, str]]:
        return [(row["scheme"], describe_ending(row)) for row in self.records()]

    def tables(self) -> dict[str, Table]:
        """The tables of arXiv:2510.22026: speed factor and radius law, initial and terminal velocity."""
        speeds = [
            [row["scheme"], row["law"] or "–"]
            + [number(row, f"{key}{end}", ".4g") for key in ("speed_initial", "speed_final", "radius_final")
               for end in ("", "_predicted")]
            + ["–" if row["radius_exponent"] is None else f"t^{row['radius_exponent']:.2f}".replace("-0.00", "0.00")]
            for row in self.records()
        ]  # fmt: skip
        velocities = []
        for row in self.records():
            ends, cosine = row["terminal_exponent_interval"], number(row, "cos_pair_final", ".4g")
            law, theory = terminal_laws(row)
            velocities.append([
                row["scheme"], number(row, "initial_velocity", ".4g"), number(row, "initial_velocity_predicted", ".4g"),
                f"not at its end (cos {cosine})" if row["terminal_law"] == "early" else law,
                "–" if not ends or None in ends else f"{ends[0]:.3g} to {ends[1]:.3g}", theory,
                "not reached" if row["collapse_time"] is None else f"t = {row['collapse_time'] + 1:.4g}", cosine,
            ])  # fmt: skip
        titles = ["scheme", "speed factor, radius law", "s(0)", "theory", "s(T)", "theory", "r(T)", "theory",
                  "r at last"]  # fmt: skip
        return {
            "Speed and radius": (titles, speeds),
            "Velocity": (["scheme", "γ'(0)", "theory", "1 - cos at last", "interval", "theory", "collapse", "cos(T)"],
                         velocities),
        }  # fmt: skip

    def notes(self) -> list[str]:
        """Meaning of the columns, and why theory says nothing about the terminal law of some schemes."""
        reasons: dict[tuple[bool, str], list[str]] = {}
        for row in self.records():
            if why := row.get("terminal_law_unpredicted"):
                reasons.setdefault((row["terminal_law_predicted"] == "none", why), []).append(row["scheme"])
        return [NOTE] + [
            f"theory predicts no terminal law for {', '.join(names)}: {why} (a measured law is one of the transient)"
            if never else f"no prediction of the terminal law of {', '.join(names)}: {why}"
            for (never, why), names in reasons.items()
        ]  # fmt: skip

    def charts(self) -> dict[str, list[Chart]]:
        return {
            "cosine": _in_depth(self, "Mean cosine between tokens in depth", "cos_pair", "gap", "cosine"),
            "collapse": collapse(self),
            "speed": _in_depth(self, "Speed factor s: small is fast", "speed", "speed", "s", log=True)
            + _in_depth(self, "Radius of the stream", "radius", "radius", "|x|", log=True),
            "sphere": spheres_over_time(self),
        }

    def figure_caption(self, name: str) -> str:
        return describe_pictures(self) if name == "sphere" else self.caption()

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        settings = [item for item in self.summary.items() if item[0] not in ("kind", "schemes", "status", "out")]
        charts = self.charts()
        tables = [html_table(*table, place) for table in self.tables().values()]
        return [
            Section("Tables", [*tables, f"<p>{escape('; '.join(self.notes()))}</p>"]),
            Section("In depth", [[*charts["cosine"], *charts["collapse"], *charts["speed"]]]),
            Section("On the sphere", [turning_spheres(self, place)]),
            Section("Settings", [details("All settings", pairs(settings))]),
        ]

    def markdown(self) -> str:
        """Both tables for a README."""
        tables = ["\n".join(markdown_lines(*table)) for table in self.tables().values()]
        return "\n\n".join([f"*{self.caption()}*", *tables]) + "\n"


def terminal_laws(row: Record) -> list[str]:
    """The terminal law of 1 - cos, measured and predicted, as people write it."""
    laws = []
    for end in ("", "_predicted"):
        kind, exponent = row[f"terminal_law{end}"], row[f"terminal_exponent{end}"]
        if kind is None or kind == "early" or exponent is None:
            laws.append("–" if kind in (None, "early") else "none")
        else:
            form = {"polynomial": "t^{}", "stretched": "e^({} √t)", "exponential": "e^({} t)"}[kind]
            laws.append(form.format(f"{-exponent:.3g}"))
    return laws


def describe_ending(row: Record) -> str:
    """The result of a scheme in one sentence."""
    if row["collapse_time"] is None:
        when = f"tokens do not come together: the mean cosine ends at {number(row, 'cos_pair_final', '.4g')}"
    else:
        when = f"tokens come together (cosine 0.99) at depth-time {row['collapse_time'] + 1:.4g}"
    law, predicted = terminal_laws(row)
    measured = "" if law in ("–", "none") else f"; 1 - cos falls like {law}"
    if predicted == "none":
        theory = " (theory: not for ever)" if measured else ""
    else:
        theory = "" if predicted == "–" else f" (theory: {predicted})"
    return f"{row['scheme']}: {when}{measured}{theory}"


def _in_depth(study: SavedSimulation, title: str, key: str, column: str, unit: str, log: bool = False) -> list[Chart]:
    """Theory as a line and measurement as markers; without theory the measurement is both. column: of the closed
    equation, where a gap is 1 - cos."""
    measured = {scheme: points for scheme in study.names if (points := study.mean(scheme, key))}
    lines: dict[str, Points] = {}
    for scheme, path in study.theory.items():
        course = zip(path["times"], path[column], strict=True)
        predicted = [(t + 1, 1 - v if column == "gap" else v) for t, v in course if t is not None and v is not None]
        if scheme in measured and predicted:
            lines[scheme] = predicted
    points = [point for curves in (measured, lines) for curve in curves.values() for point in curve]
    if not points:
        return []
    values = [value for _, value in points if math.isfinite(value)]
    y = Axis.around(values, log=log and spans_decades(values, 1.0), margin=0.06, title=unit)
    log_time, times = bool(study.summary["log_time"]), [t for t, _ in points]
    x = Axis(min(times), max(times), log=log_time, title="depth-time t" + ", logarithmic" * log_time)
    without = [scheme for scheme in measured if scheme not in lines]
    rest = f"; of {', '.join(without)} the lines are the simulation" if without else ""
    chart = Chart(title, x, y, study.looks, f"Markers: simulation, lines: theory{rest}." if lines else MEASURED)
    for scheme, curve in measured.items():
        chart.line(scheme, lines.get(scheme, curve))
        _mark(chart, scheme, curve)
    return [chart]


def _mark(chart: Chart, scheme: str, points: Points) -> None:
    for t, value in points[:: max(1, len(points) // SPARSE)]:
        chart.mark(scheme, t, value, f"{scheme} · t = {t:.3g}: {figures(value)}")


def collapse(study: SavedSimulation) -> list[Chart]:
    """1 - cos on log-log axes, where powers are straight, and on log-linear axes, where exponentials are."""
    floor = FLOORS[study.summary["dtype"]]
    curves = {
        scheme: points
        for scheme in study.names
        if (points := [(t, gap) for t, gap in study.mean(scheme, "gap") if gap > floor])
    }
    if not curves:
        return []
    ends = [next((t for t, gap in points if gap < 1e-8), points[-1][0]) for points in curves.values()]
    y = Axis(min(points[-1][1] for points in curves.values()) / 3, 3, log=True, title="1 - mean cosine, logarithmic")
    times = [t for points in curves.values() for t, _ in points]
    guides = {scheme: _guide(study.row(scheme), points) for scheme, points in curves.items()}
    note = f"Dotted: predicted law × {SHIFT}." if any(guides.values()) else MEASURED
    charts = []
    wide = Axis(min(times), max(times), log=True, title="depth-time t, logarithmic")
    short = Axis(0, 2.5 * min(ends), title="depth-time t")
    for what, x in (("power laws", wide), ("exponentials", short)):
        chart = Chart(f"Collapse: {what} are straight", x, y, study.looks, note)
        for scheme, points in curves.items():
            chart.line(scheme, points)
            chart.line(scheme, guides[scheme], "dotted")
            _mark(chart, scheme, [point for point in points if x.holds(point[0])])
        charts.append(chart)
    return charts


def _guide(row: dict[str, Any], points: Points) -> Points:
    """The predicted law over the last stretch of a curve, moved down by SHIFT so that both are visible."""
    kind, exponent = row["terminal_law_predicted"], row["terminal_exponent_predicted"]
    late = [(t, gap) for t, gap in points if gap < 1e-2 * points[0][1]]
    if exponent is None or len(late) < 3:
        return []
    decay = {"polynomial": math.log, "stretched": math.sqrt, "exponential": float}[kind]
    end, last = late[-1]
    return [(t, SHIFT * last * math.exp(min(700.0, exponent * (decay(end) - decay(t))))) for t, _ in late]


def unpack(text: str) -> list[tuple[float, float, float]]:
    """Points of a frame: base64 of little-endian int16, three of a point."""
    return [(a / SCALE, b / SCALE, c / SCALE) for a, b, c in iter_unpack("<3h", b64decode(text))]


def sphere(study: SavedSimulation, scheme: str, frame: dict[str, Any], note: str = "") -> Chart:
    """The tokens of a frame on their sphere, the far side paler."""
    axis = Axis(-REACH, REACH, visible=False)
    title = f"{scheme}, t = {frame['time'] + 1:.3g}"
    chart = Chart(title, axis, axis, RING | study.looks, note, width=SIZE, height=SIZE)
    chart.outline("ring", RIM, "ring")
    for token, point in enumerate(unpack(frame["points"])):
        right, up, near = seen_from(point)
        darkness = round(0.25 + 0.65 * (1 + near) / 2, 3)  # the far side is pale
        chart.mark(scheme, right, up, f"{scheme} · token {token}", "dot", o=darkness)
    return chart


def frames_of(study: SavedSimulation) -> dict[str, list[dict[str, Any]]]:
    """By scheme, its pictures through depth."""
    frames = study.particles.get("frames", {})
    return {scheme: frames[scheme] for scheme in study.names if frames.get(scheme)}


def spheres_over_time(study: SavedSimulation) -> list[Chart]:
    """The spheres of each scheme at four times, the first and the last among them."""
    charts = []
    for scheme, frames in frames_of(study).items():
        times = dict.fromkeys(round(share * (len(frames) - 1) / 3) for share in range(4))
        charts += [sphere(study, scheme, frames[at]) for at in times]
    return charts


def describe_pictures(study: SavedSimulation) -> str:
    """The run of the pictures, which need not be that of the curves."""
    run = study.particles.get("run", {}) | {"time": study.summary["time"]}
    return f"{study.describe(**run)}. The axes are the same for all schemes; the far side is paler."


def seen_from(point: tuple[float, float, float]) -> tuple[float, float, float]:
    """(right, up, towards the reader) of a point whose first coordinate is what tokens have in common: that axis is
    tilted half-way up."""
    common, right, up = point
    tilt = math.radians(35)
    return right, up * math.cos(tilt) + common * math.sin(tilt), common * math.cos(tilt) - up * math.sin(tilt)


def turning_spheres(study: SavedSimulation, place: Mapping[str, int]) -> str:
    """The section as HTML. The page's script turns the spheres and moves them through their frames; without it they
    stand at the middle of depth."""
    pictures = frames_of(study)
    times = [frame["time"] + 1 for frame in max(pictures.values(), key=len, default=[])]
    middle = (len(times) - 1) // 2
    globes = []
    for scheme, frames in pictures.items():
        data = escape(json.dumps([[frame["cos"], frame["points"]] for frame in frames]))
        picture = inline(sphere(study, scheme, frames[min(middle, len(frames) - 1)]), place)
        caption = f"<figcaption><strong>{escape(scheme)}</strong><span></span></figcaption>"
        globes.append(f'<figure data-s="{place[scheme]}" data-frames="{data}">{caption}{picture}</figure>')
    return (
        f'<div class="spheres" data-times="{escape(json.dumps(times))}" data-size="{SIZE}" data-reach="{REACH}">'
        f'<p class="caption">{escape(describe_pictures(study))} Drag a sphere to turn all.</p>'
        '<label class="depth">depth-time <output></output>'
        f'<input type="range" min="0" max="{len(times) - 1}" step="any" value="{middle}" aria-label="depth"></label>'
        f'<div class="globes">{"".join(globes)}</div></div>'
    )
