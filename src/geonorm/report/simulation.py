"""Reports on simulations (`geonorm simulate`): tables and a page, from the files of their directories alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .atomic import Record, read_every_line, read_whole, refuse_damaged
from .columns import align, markdown_lines
from .page import Cells
from .source import SavedStudy

START = {
    "equiangular": "orthonormal start",
    "uniform": "uniform start",
    "gaussian": "normal start",
    "cone": "start in a cone",
}


@dataclass(frozen=True)
class SavedSimulation(SavedStudy):
    """A simulation directory: its summary, rows of the trace by scheme, closed equation and pictures where they are."""

    path: Path
    summary: Record
    rows: dict[str, list[Record]]
    theory: dict[str, dict[str, list[float | None]]]
    particles: Record

    @property
    def names(self) -> list[str]:
        return [row["scheme"] for row in self.summary["schemes"]]

    def only(self, names: Sequence[str], sort: str | None = None) -> SavedSimulation:
        rows = [self.row(name) for name in names if name in self.names] if names else self.summary["schemes"]
        return replace(self, summary={**self.summary, "schemes": rows})

    def row(self, scheme: str) -> Record:
        found: Record = next(row for row in self.summary["schemes"] if row["scheme"] == scheme)
        return found

    def mean(self, scheme: str, key: str) -> tuple[list[float], list[float]]:
        """(times, means over seeds) of a column, where every seed has a value."""
        by_time: dict[float, list[float | None]] = {}
        for row in self.rows.get(scheme, ()):
            by_time.setdefault(row["time"], []).append(row.get(key))
        points = [
            (time, sum(v for v in values if v is not None) / len(values))
            for time, values in by_time.items()
            if None not in values and len(values) == self.summary["seeds"]
        ]
        return [time for time, _ in points], [value for _, value in points]


def load(path: Path) -> SavedSimulation:
    """Read a simulation directory. GeonormError where a file is cut or is not what the others say, OSError where one is
    missing."""
    with refuse_damaged(path / "summary.json", "simulate") as file:
        summary = read_whole(file)
        text_lines(summary)
        ends = {row["scheme"]: row["time_final"] for row in summary["schemes"]}
    with refuse_damaged(path / "trace.jsonl", "simulate") as file:
        rows: dict[str, list[Record]] = {scheme: [] for scheme in ends}
        for row in read_every_line(file):
            rows[row["scheme"]].append(row)
        for scheme, seen in rows.items():
            if not seen or seen[-1]["time"] < ends[scheme]:
                raise ValueError(f"it ends before {scheme} does")
    with refuse_damaged(path / "theory.json", "simulate") as file:
        theory = read_whole(file)
        foreseen = {row["scheme"] for row in summary["schemes"] if row["initial_velocity_predicted"] is not None}
        if not foreseen <= theory.keys() <= rows.keys():
            raise ValueError("it is of other schemes than summary.json")
        for scheme, course in theory.items():
            if {len(course[key]) for key in ("gap", "speed", "radius")} != {len(course["times"])}:
                raise ValueError(f"the columns of {scheme} are not of one length")
    with refuse_damaged(path / "particles.json", "simulate") as file:
        return SavedSimulation(path, summary, rows, theory, read_whole(file))


def caption(summary: Record) -> str:
    """What was simulated, in a line."""
    weights = summary["weights"]
    matrices = "Q = K = V = I" if weights == "identity" else f"{weights} weights per {summary['per']}"
    seeds = summary["seeds"]
    parts = [
        f"n = {summary['tokens']} tokens", f"d = {summary['dim']}", f"β = {summary['beta']:.4g}",
        START[summary["init"]], matrices, *([f"MLP {summary['mlp']}"] if summary.get("mlp") else []),
        *(["causal"] if summary["causal"] else []), *(["rotary positions"] if summary.get("rope") else []),
        *([f"{summary['heads']} heads"] if summary["heads"] > 1 else []),
        f"{seeds} seed{'s' if seeds != 1 else ''}", f"T = {summary['time']:g}", f"L = {summary['depth']}",
        f"method {summary['method']}",
        *([f"interrupted, missing: {', '.join(summary['missing'])}"] if summary.get("missing") else []),
    ]  # fmt: skip
    return " · ".join(parts)


def format_law(kind: str | None, exponent: float | None) -> str:
    """A terminal law of 1 - cos as people write it."""
    if kind is None or kind == "early":
        return "–"
    if exponent is None:
        return "none"
    k = f"{-exponent:.3g}"
    return {"polynomial": f"t^{k}", "stretched": f"e^({k} √t)", "exponential": f"e^({k} t)"}[kind]


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
            else format_law(row["terminal_law"], row["terminal_exponent"]), between,
            format_law(row["terminal_law_predicted"], row["terminal_exponent_predicted"]),
            "not reached" if row["collapse_time"] is None else f"t = {row['collapse_time'] + 1:.4g}",
            _number(row["cos_pair_final"]),
        ])  # fmt: skip
    return titles, table


NOTE = (
    "theory: the closed equation of equiangular tokens, and the limit of large t; collapse: mean cosine 0.99; "
    "T: the end, or where tokens agree to rounding; not at its end: 1 - cos is not far below 0.01 yet, or its slope "
    "drifts"
)


def explain_unpredicted(summary: Record) -> list[str]:
    """Why the theory of the last law is silent about some schemes, and why others have none."""
    reasons: dict[tuple[bool, str], list[str]] = {}
    for row in summary["schemes"]:
        if why := row.get("terminal_law_unpredicted"):
            reasons.setdefault((row["terminal_law_predicted"] == "none", why), []).append(row["scheme"])
    return [
        f"theory foresees no last law of {', '.join(names)}: {why} (a law measured is one of the way there)" if none
        else f"no prediction of the last law of {', '.join(names)}: {why}"
        for (none, why), names in reasons.items()
    ]  # fmt: skip


def text_lines(summary: Record) -> list[str]:
    """Both tables as lines of text."""
    lines = [caption(summary)]
    for titles, cells in (speeds(summary), velocities(summary)):
        lines += ["", *align([titles, *cells], numbers=False)]
    return [*lines, "", NOTE, *explain_unpredicted(summary)]


def markdown(summary: Record) -> str:
    """Both tables for a README."""
    parts = ["\n".join(markdown_lines(*table)) for table in (speeds(summary), velocities(summary))]
    return "\n\n".join([f"*{caption(summary)}*", *parts]) + "\n"


def headline(row: Record) -> str:
    """What was found about this scheme, in one plain sentence."""
    scheme, reached = row["scheme"], row["collapse_time"]
    when = f"tokens come together (cosine 0.99) at depth-time {reached + 1:.4g}" if reached is not None else (
        f"tokens do not come together: the mean cosine ends at {_number(row['cos_pair_final'])}"
    )  # fmt: skip
    found, expected = (
        format_law(row[f"terminal_law{end}"], row[f"terminal_exponent{end}"]) for end in ("", "_predicted")
    )
    last = "" if found in ("–", "none") else f"; 1 - cos falls like {found}"
    if expected == "none":
        said = " (theory: not for ever)" if last else ""
    else:
        said = "" if expected == "–" else f" (theory: {expected})"
    return f"{scheme}: {when}{last}{said}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
