"""Reports on simulations (`geonorm simulate`): tables and a page, from the files of their directories alone."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from .columns import aligned
from .runs import Record, record, records, whole

Cells = list[list[str]]
START = {
    "equiangular": "orthonormal start",
    "uniform": "uniform start",
    "gaussian": "normal start",
    "cone": "start in a cone",
}


@dataclass(frozen=True)
class Trace:
    """A simulation directory: its summary, rows of the trace by scheme, closed equation and pictures where they are."""

    path: Path
    summary: Record
    rows: dict[str, list[Record]]
    theory: dict[str, dict[str, list[float | None]]]
    particles: Record

    @property
    def schemes(self) -> list[str]:
        return [row["scheme"] for row in self.summary["schemes"]]

    def row(self, scheme: str) -> Record:
        found: Record = next(row for row in self.summary["schemes"] if row["scheme"] == scheme)
        return found

    def mean(self, scheme: str, key: str, start: float = 0.0) -> tuple[list[float], list[float]]:
        """(times, means over seeds) of a column, where every seed has a value."""
        by_time: dict[float, list[float | None]] = {}
        for row in self.rows.get(scheme, ()):
            by_time.setdefault(row["time"], []).append(row.get(key))
        points = [
            (time, sum(v for v in values if v is not None) / len(values))
            for time, values in by_time.items()
            if time >= start and None not in values
        ]
        return [time for time, _ in points], [value for _, value in points]


def load(path: Path) -> Trace:
    """Read a simulation directory. GeonormError where a file is cut or is not what the others say, OSError where one is
    missing."""
    with whole(path / "summary.json", "simulate") as file:
        summary = record(file)
        terminal(summary)
        ends = {row["scheme"]: row["time_final"] for row in summary["schemes"]}
    with whole(path / "trace.jsonl", "simulate") as file:
        rows: dict[str, list[Record]] = {scheme: [] for scheme in ends}
        for row in records(file):
            rows[row["scheme"]].append(row)
        for scheme, seen in rows.items():
            if not seen or seen[-1]["time"] < ends[scheme]:
                raise ValueError(f"it ends before {scheme} does")
    with whole(path / "theory.json", "simulate") as file:
        theory = record(file)
        foreseen = {row["scheme"] for row in summary["schemes"] if row["initial_velocity_predicted"] is not None}
        if not foreseen <= theory.keys() <= rows.keys():
            raise ValueError("it is of other schemes than summary.json")
        for scheme, course in theory.items():
            if {len(course[key]) for key in ("gap", "speed", "radius")} != {len(course["times"])}:
                raise ValueError(f"the columns of {scheme} are not of one length")
    with whole(path / "particles.json", "simulate") as file:
        return Trace(path, summary, rows, theory, record(file))


def caption(summary: Record) -> str:
    """What was simulated, in a line."""
    weights = summary["weights"]
    matrices = "Q = K = V = I" if weights == "identity" else f"{weights} weights per {summary['per']}"
    seeds = summary["seeds"]
    parts = [
        f"n = {summary['tokens']} tokens", f"d = {summary['dim']}", f"β = {summary['beta']:.4g}",
        START[summary["init"]], matrices, *(["causal"] if summary["causal"] else []),
        *([f"{summary['heads']} heads"] if summary["heads"] > 1 else []),
        f"{seeds} seed{'s' if seeds != 1 else ''}", f"T = {summary['time']:g}", f"L = {summary['depth']}",
        f"method {summary['method']}",
        *([f"interrupted, missing: {', '.join(summary['missing'])}"] if summary.get("missing") else []),
    ]  # fmt: skip
    return " · ".join(parts)


def law(kind: str | None, exponent: float | None) -> str:
    """A terminal law of 1 - cos as people write it."""
    if kind is None or kind == "early":
        return "–"
    if exponent is None:
        return "none"
    k = f"{exponent:.3g}"
    return {"polynomial": f"t^-{k}", "stretched": f"e^(-{k} √t)", "exponential": f"e^(-{k} t)"}[kind]


def speeds(summary: Record) -> tuple[list[str], Cells]:
    """First table of the paper: speed factor and radius law, measured beside predicted."""
    titles = ["scheme", "speed factor, radius law", "s(0)", "theory", "s(T)", "theory", "r(T)", "theory", "r at last"]
    keys = ("speed_initial", "speed_final", "radius_final")
    return titles, [
        [row["scheme"], row["law"] or "–"]
        + [_number(row[f"{key}{which}"]) for key in keys for which in ("", "_predicted")]
        + ["–" if row["radius_exponent"] is None else f"t^{row['radius_exponent']:.2f}".replace("-0.00", "0.00")]
        for row in summary["schemes"]
    ]


def velocities(summary: Record) -> tuple[list[str], Cells]:
    """Second table of the paper: initial and terminal velocity, measured beside predicted."""
    titles = ["scheme", "γ'(0)", "theory", "1 - cos at last", "interval", "theory", "collapse", "cos(T)"]
    table = []
    for row in summary["schemes"]:
        interval, early = row["terminal_exponent_interval"], row["terminal_law"] == "early"
        between = "–" if not interval or None in interval else f"{interval[0]:.3g} to {interval[1]:.3g}"
        table.append([
            row["scheme"], _number(row["initial_velocity"]), _number(row["initial_velocity_predicted"]),
            f"not at its end (cos {_number(row['cos_pair_final'])})" if early
            else law(row["terminal_law"], row["terminal_exponent"]), between,
            law(row["terminal_law_predicted"], row["terminal_exponent_predicted"]),
            "not reached" if row["collapse_time"] is None else f"t = {row['collapse_time']:.4g}",
            _number(row["cos_pair_final"]),
        ])  # fmt: skip
    return titles, table


NOTE = (
    "theory: the closed equation of equiangular tokens, and the limit of large t; collapse: mean cosine 0.99; "
    "T: the end, or where tokens agree to rounding; not at its end: 1 - cos is not far below 0.01 yet, or its slope "
    "drifts"
)


def unpredicted(summary: Record) -> list[str]:
    """Why the theory of the last law is silent about some schemes."""
    reasons: dict[str, list[str]] = {}
    for row in summary["schemes"]:
        if row.get("terminal_law_unpredicted"):
            reasons.setdefault(row["terminal_law_unpredicted"], []).append(row["scheme"])
    return [f"no prediction of the last law of {', '.join(names)}: {why}" for why, names in reasons.items()]


def terminal(summary: Record) -> list[str]:
    """Both tables as lines of text."""
    lines = [caption(summary)]
    for titles, cells in (speeds(summary), velocities(summary)):
        lines += ["", *aligned([titles, *cells], numbers=False)]
    return [*lines, "", NOTE, *unpredicted(summary)]


def markdown(summary: Record) -> str:
    """Both tables for a README."""
    parts = []
    for titles, cells in (speeds(summary), velocities(summary)):
        lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
        parts.append("\n".join(lines))
    return f"*{caption(summary)}*\n\n" + "\n\n".join(parts) + "\n"


def page(traces: Sequence[Trace], drawings: Sequence[dict[str, bytes]]) -> str:
    """One self-contained page about one or more simulations; drawings: SVG by name, per simulation."""
    title = "Simulation: " + ", ".join(dict.fromkeys(trace.path.resolve().name for trace in traces))
    body = "".join(_section(trace, drawn) for trace, drawn in zip(traces, drawings, strict=True))
    return shell(title, body)


def shell(title: str, body: str) -> str:
    """A self-contained page around a body."""
    css = files("geonorm.report").joinpath("page.css").read_text(encoding="utf-8")
    extra = "figure img{width:100%;max-width:1000px;height:auto;background:#fff}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{css}{extra}</style></head><body>"
        f"<header><h1>{escape(title)}</h1></header><main>{body}</main></body></html>\n"
    )


TITLES = {
    "cosine": "Mean cosine between tokens in depth",
    "collapse": "1 - cos, with the predicted law dotted",
    "speed": "Speed factor and radius",
    "sphere": "Tokens on the sphere",
}


def _section(trace: Trace, drawn: dict[str, bytes]) -> str:
    tables = "".join(table(*content) for content in (speeds(trace.summary), velocities(trace.summary)))
    figures = "".join(figure(TITLES[name], svg) for name, svg in drawn.items())
    said = "; ".join([NOTE, *unpredicted(trace.summary)])
    settings = {key: value for key, value in trace.summary.items() if key not in ("kind", "schemes", "status", "out")}
    listed = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(str(v))}</dd></div>" for k, v in settings.items())
    return (
        f'<section><h2>{escape(trace.path.resolve().name)}</h2><p class="caption">{escape(caption(trace.summary))}</p>'
        f"{tables}<p>{escape(said)}</p>{figures}<details><summary>Settings</summary><dl>{listed}</dl></details>"
        "</section>"
    )


def figure(title: str, svg: bytes) -> str:
    return (
        f"<figure><figcaption><strong>{escape(title)}</strong></figcaption>"
        f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"></figure>'
    )


def table(titles: Iterable[str], cells: Cells) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in cells
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
