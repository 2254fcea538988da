"""How the steps of Pre-Norm and NAG over depth change while they train, from the traces that experiments have kept.

    python experiments/005-geometry/angles.py [FOLDER]

Writes angles.md and figures/angles.* into the folder, by default that of the experiment. At every evaluation of a run
the angle by which the sub-layers of block t turn a token is fitted by a power of t, attention and MLP by themselves,
from the second block on: harmonic decay is -1, sqrt -1/2, one angle for all blocks 0, angles that grow above 0.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import geonorm
from geonorm.lab.load import Comparison
from geonorm.measure.schedule import fit
from geonorm.report.charts import Axis, Chart, Figure, figure
from geonorm.report.style import looks, signed
from geonorm.report.tables import markdown_lines

HERE = Path(__file__).parent
SOURCES = {
    "012-depth": {"": "GELU"},
    "016-streams": {"modern": "modern, Muon", "": "SwiGLU"},
    "017-paper-recipe": {"": "the paper's recipe"},
    "014-beyond-decoders": {"vision": "images", "long": "masked text"},
}
"""Experiments with traces: by the start of a run's name, what it is. Decoders with AdamW where nothing else is said."""
NAG = "nag"
SCHEMES = ("pre", "pre(entry=embedding)", NAG)
KINDS = {"attn": "attention", "mlp": "MLP"}


class Course(NamedTuple):
    """Of a run: scheme, shape and recipe, and by tokens per parameter the power of t, attention and MLP."""

    scheme: str
    shape: str
    powers: list[tuple[float, dict[str, float]]]


def read_angles(file: Path, runs: Iterable[str]) -> dict[str, dict[int, dict[str, list[float]]]]:
    """By run, step and kind, block after block."""
    found: dict[str, dict[int, dict[str, list[float]]]] = {run: {} for run in runs}
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["run"] in found and row["angle"] and not row.get("stack"):
                kinds = found[row["run"]].setdefault(int(row["step"]), {})
                kinds.setdefault(row["kind"], []).append(float(row["angle"]))
    return found


def power_of(angles: Sequence[float]) -> float | None:
    """p of angle ~ t^p from the second block on."""
    found = fit(list(enumerate(angles, start=1))[1:], len(angles))
    return -found["power"]["exponent"] if found else None


def read_courses(experiment: Path, recipes: Mapping[str, str]) -> list[Course]:
    """Of runs whose names begin as one of the recipes says, the first that fits."""
    saved = geonorm.load(experiment)
    assert isinstance(saved, Comparison)
    rows = {run.path.name: run.summary for run in saved.runs}
    wanted = {
        run: next((recipe for start, recipe in recipes.items() if run.startswith(start)), "")
        for run, row in rows.items() if row.scheme in SCHEMES and row.status == "finished"
    }  # fmt: skip
    courses = []
    for run, steps in read_angles(experiment / "traces.csv", filter(wanted.get, wanted)).items():
        row, powers = rows[run], []
        for step, kinds in sorted(steps.items()):
            each = {kind: power for kind in KINDS if (power := power_of(kinds[kind])) is not None}
            if len(each) == len(KINDS):
                powers.append((step / row.steps * row.tokens / row.parameters, each))
        if powers:
            layers = len(next(iter(steps.values()))["attn"])
            courses.append(Course(row.scheme, f"{layers} blocks, {wanted[run]}", powers))
    return courses


def tell(values: Sequence[float]) -> str:
    ends = f" ({signed(min(values), 2)} to {signed(max(values), 2)})" if len(values) > 1 else ""
    return signed(fmean(values), 2) + ends


def tabulate(courses: Sequence[Course]) -> list[str]:
    """Of each group the first and the last evaluation: mean over runs, and their range."""
    lines = []
    for group in dict.fromkeys(course[:2] for course in courses):
        own = [course for course in courses if course[:2] == group]
        for place in (0, -1):
            tokens = sorted({f"{course.powers[place][0]:.2g}" for course in own}, key=float)
            ends = {kind: [course.powers[place][1][kind] for course in own] for kind in KINDS}
            lines.append([*group, str(len(own)), ", ".join(tokens), *(tell(ends[kind]) for kind in KINDS)])
    return markdown_lines(("scheme", "blocks", "runs", "tokens per parameter", *KINDS.values()), lines)


def draw(courses: Sequence[Course]) -> list[Chart]:
    """Of Pre-Norm with both entries."""
    courses = [course for course in courses if course.scheme != NAG]
    shared = looks(list(dict.fromkeys(course.shape for course in courses)))
    x = Axis.around([at for course in courses for at, _ in course.powers], log=True, title="tokens per parameter")
    charts = []
    for kind, name in KINDS.items():
        own = [power[kind] for course in courses for _, power in course.powers]
        y = Axis(max(-2.0, min(own) - 0.2), min(3.0, max(own) + 0.2), title="p of angle ~ t^p")
        chart = Chart(
            f"Steps over depth: {name}",
            x,
            y,
            shared,
            "One line a run, at the edge where it leaves the frame. −1 harmonic, −1/2 sqrt, 0 constant.",
        )
        for level in (-1.0, -0.5, 0.0):
            chart.rule(y=level)
        for course in courses:
            chart.line(course.shape, [(at, min(max(power[kind], y.low), y.high)) for at, power in course.powers])
        charts.append(chart)
    return charts


def main(folder: Path = HERE, sources: Mapping[Path, Mapping[str, str]] | None = None) -> None:
    sources = sources or {HERE.parent / name: recipes for name, recipes in SOURCES.items()}
    courses = [course for experiment, recipes in sources.items() for course in read_courses(experiment, recipes)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "angles.md").write_text("\n".join(tabulate(courses)) + "\n", encoding="utf-8")
    print(folder / "angles.md")
    (folder / "figures").mkdir(exist_ok=True)
    print(Figure(figure(draw(courses), "005: traces of 012, 014, 016, 017")).save(folder / "figures" / "angles.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
