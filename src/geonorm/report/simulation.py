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

from .charts import Axis, Chart
from .curves import spans_decades
from .depth import describe_ends
from .page import details, html_table, pairs, picture
from .study import Record, Section, Study, read_object_strictly, read_rows_strictly
from .style import COLOURS, Look, figures
from .tables import Table, count, formatted
from .terms import linked

START = {
    "equiangular": "orthonormal start",
    "uniform": "uniform start",
    "gaussian": "normal start",
    "cone": "start in a cone",
}
COLUMNS = {
    "cos_pair": "Mean cosine between tokens",
    "angle": "The turn of a token",
    "speed": "Speed factor s",
    "radius": "Length of the stream",
}
MEANINGS = {
    "cos_pair": "At 1 all tokens are one point: attention has nothing left to tell apart.",
    "gap": "A power of t leaves tokens apart for long; an exponential makes them one within a few layers.",
    "angle": "Schemes that divide an update by its length begin fast; those whose steps fall with depth end slowly.",
    "speed": "How slowly tokens move: a scheme whose s grows puts collapse off.",
    "radius": "On a longer stream the same update turns a token less.",
}
SLOWEST_TURN = 1e-4
"""Radians in a unit of depth below which a turn is not drawn: exponentials would leave no room for the beginning."""
SPARSE = 9
"""Number of markers along a measured curve, at which the line of theory stays visible."""
FLOORS = {"float64": 1e-20, "float32": 1e-12}
"""Lowest 1 - cos to draw: below it positions are rounding error."""
SIZE, REACH, SCALE = 300, 1.1, 32767
"""Pixels of a picture, the largest coordinate that it shows of a sphere of radius 1, and the integer that stands for 1
in the coordinates of a frame."""
TILT = math.radians(35)
"""Tilt of the axis of the tokens' first coordinate, which they have in common: half-way up."""
Points = list[tuple[float, float]]
RIM: Points = [(math.cos(math.pi * i / 30), math.sin(math.pi * i / 30)) for i in range(61)]
"""The outline of a sphere of radius 1."""


@dataclass(frozen=True)
class SavedSimulation(Study):
    """A simulation's folder: summary, rows of the trace by scheme, closed equation, and pictures."""

    summary: Record
    rows: dict[str, list[Record]]
    theory: dict[str, dict[str, list[float | None]]]
    particles: Record

    what = "Simulation"
    maker = "simulate"
    columns = 4

    @classmethod
    def read(cls, path: Path) -> SavedSimulation:
        summary, theory, particles = (
            read_object_strictly(path / f"{name}.json") for name in ("summary", "theory", "particles")
        )
        rows: dict[str, list[Record]] = {row["scheme"]: [] for row in summary["schemes"]}
        for row in read_rows_strictly(path / "trace.jsonl"):
            rows[row["scheme"]].append(row)
        return cls(path, summary, rows, theory, particles)

    @property
    def series(self) -> list[str]:
        return [row["scheme"] for row in self.summary["schemes"]]

    def records(self) -> list[Record]:
        """The row of each scheme in the summary."""
        rows = {row["scheme"]: row for row in self.summary["schemes"]}
        return [rows[name] for name in self.names]

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

    def caption(self, **other: Any) -> str:
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

    def headline(self) -> str:
        """Which scheme's tokens come together first, and which last or never."""
        times = {row["scheme"]: row["collapse_time"] for row in self.records()}
        order = sorted((time, scheme) for scheme, time in times.items() if time is not None)
        chosen = zip(("first", "last"), dict.fromkeys([*order[:1], *order[-1:]]), strict=False)
        ends = [f"{place} in {scheme} at t = {time + 1:.3g}" for place, (time, scheme) in chosen]
        ends += [f"not within T in {scheme}" for scheme, time in times.items() if time is None]
        return f"Tokens come together {', '.join(ends)}"

    def tables(self) -> dict[str, Table]:
        """The tables of arXiv:2510.22026: speed factor and radius law, initial and terminal velocity."""
        speeds = [
            [row["scheme"], row["law"] or "–"]
            + [formatted(row.get(f"{key}{end}"), ".4g") for key in ("speed_initial", "speed_final", "radius_final")
               for end in ("", "_predicted")]
            + ["–" if row["radius_exponent"] is None else f"t^{row['radius_exponent']:.2f}".replace("-0.00", "0.00")]
            for row in self.records()
        ]  # fmt: skip
        uniform = self.summary["init"] == "uniform"  # theory knows how fast these turn, and others come together
        start, symbol = ("initial_turn", "|θ'|(0)") if uniform else ("initial_velocity", "γ'(0)")
        velocities = []
        for row in self.records():
            ends, cosine = row["terminal_exponent_interval"], formatted(row.get("cos_pair_final"), ".4g")
            law, theory = terminal_laws(row)
            velocities.append([
                row["scheme"],
                *(formatted(row.get(f"{start}{end}"), ".4g") for end in ("", "_predicted")),
                f"not at its end (cos {cosine})" if row["terminal_law"] == "early" else law,
                "–" if not ends or None in ends else f"{ends[0]:.3g} to {ends[1]:.3g}", theory,
                "not reached" if row["collapse_time"] is None else f"t = {row['collapse_time'] + 1:.4g}", cosine,
            ])  # fmt: skip
        titles = ["scheme", "speed factor, radius law", "s(0)", "theory", "s(T)", "theory", "r(T)", "theory",
                  "r at last"]  # fmt: skip
        return {
            "Speed and radius": (titles, speeds),
            "Velocity": (["scheme", symbol, "theory", "1 - cos at last", "interval", "theory", "collapse", "cos(T)"],
                         velocities),
        }  # fmt: skip

    def notes(self) -> list[str]:
        """Why theory says nothing about the terminal law of some schemes."""
        reasons: dict[tuple[bool, str], list[str]] = {}
        for row in self.records():
            if why := row.get("terminal_law_unpredicted"):
                reasons.setdefault((row["terminal_law_predicted"] == "none", why), []).append(row["scheme"])
        return [
            f"theory predicts no terminal law for {', '.join(names)}: {why} (a measured law is one of the transient)"
            if never else f"no prediction of the terminal law of {', '.join(names)}: {why}"
            for (never, why), names in reasons.items()
        ]  # fmt: skip

    def charts(self) -> dict[str, list[Chart]]:
        straight = "power laws are straight", "exponentials are straight"
        return {
            "cosine": in_depth(self, "cos_pair", "cosine", False),
            "collapse": in_depth(self, "gap", "1 - mean cosine, logarithmic", True, *straight),
            "turn": in_depth(self, "angle", "|θ'| in radians", True),
            "speed": in_depth(self, "speed", "s", True) + in_depth(self, "radius", "|x|", True),
            "sphere": spheres_over_time(self),
        }

    def figure_caption(self, name: str) -> str:
        return describe_pictures(self) if name == "sphere" else self.caption()

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        settings = [item for item in self.summary.items() if item[0] not in ("kind", "schemes", "status", "out")]
        charts = self.charts()
        tables = [html_table(*table, place) for table in self.tables().values()]
        return [
            Section("On the sphere", [turning_spheres(self, place)]),
            Section("In depth", [[*charts["cosine"], *charts["collapse"], *charts["turn"], *charts["speed"]]]),
            Section("In numbers", [*tables, *(f"<p>{linked(note)}.</p>" for note in self.notes())]),
            Section("Settings", [details("All settings", pairs(settings))]),
        ]


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
        when = f"tokens do not come together: the mean cosine ends at {formatted(row.get('cos_pair_final'), '.4g')}"
    else:
        when = f"tokens come together (cosine 0.99) at depth-time {row['collapse_time'] + 1:.4g}"
    law, predicted = terminal_laws(row)
    measured = "" if law in ("–", "none") else f"; 1 - cos falls like {law}"
    if predicted == "none":
        theory = " (theory: not for ever)" if measured else ""
    else:
        theory = "" if predicted == "–" else f" (theory: {predicted})"
    return f"{row['scheme']}: {when}{measured}{theory}"


def in_depth(study: SavedSimulation, key: str, unit: str, log: bool, *views: str) -> list[Chart]:
    """A column over depth-time: theory, of the closed equation, as a line and measurement as markers; without theory
    the measurement is both. views: names of a logarithmic and a linear axis of time; without, that of the run."""
    floor = {"gap": FLOORS[study.summary["dtype"]], "angle": SLOWEST_TURN}.get(key, -math.inf)
    curves = {scheme: study.mean(scheme, key) for scheme in study.names}
    measured = {s: points for s, curve in curves.items() if (points := [p for p in curve if p[1] > floor])}
    lines: dict[str, Points] = {}
    for scheme, path in study.theory.items():
        course = zip(path["times"], path.get("gap" if key == "cos_pair" else key, []), strict=False)
        known = [(t + 1, 1 - v if key == "cos_pair" else v) for t, v in course if t is not None and v is not None]
        if scheme in measured and any(value > floor for _, value in known):
            lines[scheme] = [point for point in known if point[1] > floor]
    points = [point for curves in (measured, lines) for curve in curves.values() for point in curve]
    if not points:
        return []
    times, values = [t for t, _ in points], [value for _, value in points if math.isfinite(value)]
    y = Axis.around(values, log=log and spans_decades(values, 1.0), margin=0.06, title=unit)
    without = [scheme for scheme in measured if scheme not in lines]
    rest = f"; of {', '.join(without)} the lines are the simulation" if without else ""
    ends = {scheme: (curve[0][1], curve[-1][1]) for scheme, curve in curves.items() if curve}
    title = describe_ends(COLUMNS[key], ends) if key in COLUMNS else describe_laws(study)
    note = f"Markers: simulation, lines: theory{rest}." if lines else "Simulation, mean over seeds."
    charts = []
    for place, view in enumerate(views or ("",)):
        log_time = not place if views else bool(study.summary["log_time"])
        last = 2.5 * min(curve[-1][0] for curve in measured.values()) if place else max(times)
        x = Axis(min(times), last, log=log_time, title=f"depth-time t{', logarithmic' if log_time else ''}")
        name = key.replace("_", "-") + ("-linear" if place else "")
        chart = Chart(title, x, y, study.looks, note, name=name, meaning=MEANINGS[key], view=view)
        for scheme, curve in measured.items():
            chart.line(scheme, lines.get(scheme, curve))
            inside = [point for point in curve if x.holds(point[0])]
            for t, value in inside[:: max(1, len(inside) // SPARSE)]:
                chart.mark(scheme, t, value, f"{scheme} · t = {t:.3g}: {figures(value)}")
        charts.append(chart)
    charts[0].views = charts[1:]
    return charts[:1]


def describe_laws(study: SavedSimulation) -> str:
    """The terminal law of each scheme, as a title."""
    laws = []
    for row in study.records():
        measured, theory = terminal_laws(row)
        law = measured if measured not in ("–", "none") else f"{theory} by theory"
        laws += [f"{law} in {row['scheme']}"] * (not law.startswith(("–", "none")))
    return f"1 - cos falls like {', '.join(laws)}" if laws else "1 - cos follows no law within T"


def unpack(text: str) -> list[tuple[float, float, float]]:
    """Points of a frame: base64 of little-endian int16, three of a point."""
    return [(a / SCALE, b / SCALE, c / SCALE) for a, b, c in iter_unpack("<3h", b64decode(text))]


def sphere(study: SavedSimulation, scheme: str, frame: dict[str, Any]) -> Chart:
    """The tokens of a frame on their sphere, the far side paler."""
    axis = Axis(-REACH, REACH, visible=False)
    time = f"{frame['time'] + 1:.3g}"
    chart = Chart(
        f"{scheme}, t = {time}", axis, axis, {"ring": Look(*COLOURS["grey"], "", "circle")} | study.looks, width=SIZE,
        height=SIZE, name=f"sphere-{scheme}-{time}",
    )  # fmt: skip
    chart.line("ring", RIM, "outline")
    for token, point in enumerate(unpack(frame["points"])):
        common, right, back = point
        up, near = (back * math.cos(TILT) + common * math.sin(TILT), common * math.cos(TILT) - back * math.sin(TILT))
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
    """The caption of the pictures: their run need not be that of the curves."""
    run = study.particles.get("run", {}) | {"time": study.summary["time"]}
    return f"{study.caption(**run)}. A dot is a token; the axes are the same for all schemes, the far side is paler."


def turning_spheres(study: SavedSimulation, place: Mapping[str, int]) -> str:
    """The section as HTML. The page's script turns the spheres and moves them through their frames; without it they
    stand at the middle of depth."""
    pictures = frames_of(study)
    times = [frame["time"] + 1 for frame in max(pictures.values(), key=len, default=[])]
    middle = (len(times) - 1) // 2
    globes = []
    for scheme, frames in pictures.items():
        # a slash of base64 begins no path, which the page would cut
        data = escape(json.dumps([[frame["cos"], frame["points"]] for frame in frames])).replace("/", "&#47;")
        globe = picture(sphere(study, scheme, frames[min(middle, len(frames) - 1)]), place)
        caption = f"<figcaption><strong>{escape(scheme)}</strong><span></span></figcaption>"
        globes.append(f'<figure data-s="{place[scheme]}" data-frames="{data}">{caption}{globe}</figure>')
    return (
        f'<div class="spheres" data-times="{escape(json.dumps(times))}" data-size="{SIZE}" data-reach="{REACH}">'
        f'<p class="caption">{escape(describe_pictures(study))} Drag a sphere to turn all. '
        "Where all tokens meet, attention has nothing left to tell apart.</p>"
        '<label class="depth">depth-time <output></output>'
        f'<input type="range" min="0" max="{len(times) - 1}" step="any" value="{middle}" aria-label="depth"></label>'
        f'<div class="globes">{"".join(globes)}</div></div>'
    )
