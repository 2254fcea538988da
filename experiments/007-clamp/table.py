"""The tables and figures of 007, from its results.jsonl and traces.csv.

    python experiments/007-clamp/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment. For each setting every ceiling at its
best rate, its difference to pi/4 paired by seed; what an octave away from the best rate costs each ceiling; and the
test of the derivation: the clamped share and the turning of `o` and `down` with their norms held and free.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Cells, Runs, read_clamped, write
from programme import read_runs
from rates import read_losses
from runs import CEILINGS, HELD, RATES, SETTINGS

from geonorm.lab.runs.records import Summary
from geonorm.report.charts import Axis, Chart
from geonorm.report.style import looks, rate, signed
from geonorm.report.tables import markdown_lines

BASE = "pi/4"
NAMES = {"-hold_norms": "pi/4, norms held", "-hold_norms-all": "pi/4, all norms held"}
"""Of runs with norms held, by the mark in their names."""
Shares = Mapping[str, Mapping[int, float]]


def label(run: Summary, place: str) -> str:
    """The ceiling of a run in that setting."""
    for mark in HELD:
        if f"{mark}-lr" in run.run:
            return NAMES[mark]
    fields = SETTINGS[place][1]
    return next(name for name, words in CEILINGS.items() if run.scheme == f"geonorm({fields}, {words})")


def read_settings(experiment: Path) -> dict[str, Runs]:
    """Runs by setting and depth, each named by its ceiling, those with pi/4 first."""
    found: dict[str, Runs] = {}
    runs = read_runs(experiment)
    for place in SETTINGS:
        for layers, mark in ((4, False), (12, True)):
            own = [run for run in runs if run.run.startswith(f"{place}-") and ("-layers-" in run.run) == mark]
            named = sorted((replace(run, scheme=label(run, place)) for run in own), key=lambda run: run.scheme != BASE)
            if named and named[0].scheme == BASE:
                found[f"{place.replace('-', ', ')}, {layers} layers"] = named
    return found


def tabulate_rates(settings: Cells) -> list[str]:
    """Losses of every ceiling by rate, and what an octave to either side of the best costs."""
    lines = []
    for setting, runs in settings.items():
        for ceiling in dict.fromkeys(run.scheme for run in runs):
            losses = read_losses([run for run in runs if run.scheme == ceiling and run.seed == 0])
            best = min(losses, key=losses.__getitem__)
            beside = [losses[other] for other in losses if other in (best / 2, best * 2)]
            cost = signed(fmean(beside) - losses[best]) if len(beside) == 2 else "–"
            cells = [f"{losses[lr]:.4f}" if lr in losses else "–" for lr in sorted(RATES)]
            lines.append([setting, ceiling, *cells, cost])
    return markdown_lines(("setting", "ceiling", *map(rate, sorted(RATES)), "an octave costs"), lines)


def tabulate_held(settings: Cells, clamped: Shares) -> list[str]:
    """With the norms of `o` and `down` held and free, by rate, of seed 0: clamped share early, half-way and at the end;
    how often as long `o` is at the end as at the first evaluation, and its angle per step half-way."""
    lines = []
    for setting, runs in settings.items():
        if not {run.scheme for run in runs} & set(NAMES.values()):
            continue
        own = [run for run in runs if run.scheme in (BASE, *NAMES.values()) and run.seed == 0 and run.run in clamped]
        for run in sorted(own, key=lambda run: (run.lr, run.scheme)):
            shares = list(clamped[run.run].values())
            picked = [shares[0], shares[(len(shares) - 1) // 2], shares[-1]]
            turns = run.more.get("turning") or []
            length = f"{turns[-1][2] / turns[0][2]:.2f}" if turns else "–"
            angle = f"{turns[(len(turns) - 1) // 2][1]:.2g}" if turns else "–"
            loss = "–" if run.val_loss is None else f"{run.val_loss:.4f}"
            cells = [f"{share:.0%}" for share in picked]
            lines.append([setting, rate(run.lr), run.scheme, *cells, length, angle, loss])
    titles = (
        "setting",
        "rate",
        "ceiling",
        "clamped, first",
        "half-way",
        "end",
        "length of o",
        "its angle a step",
        "loss",
    )
    return markdown_lines(titles, lines) if lines else []


def draw_courses(setting: str, runs: Runs, clamped: Shares) -> list[Chart]:
    """The clamped share over training, held and free: a chart for each rate."""
    kinds, shared = (BASE, *NAMES.values()), looks([BASE, *NAMES.values()])
    own = [run for run in runs if run.scheme in kinds and run.seed == 0 and run.run in clamped]
    charts = []
    for lr in sorted({run.lr for run in own}):
        lines = {run.scheme: clamped[run.run] for run in own if run.lr == lr}
        if len(lines) < 2:
            continue
        x = Axis.around([step for shares in lines.values() for step in shares], title="optimizer step")
        y = Axis(0, 1, title="share of clamped updates")
        chart = Chart(f"{setting}, {rate(lr)}", x, y, shared, "Seed 0.", height=160)
        for name in kinds:
            if name in lines:
                chart.line(name, list(lines[name].items()))
        charts.append(chart)
    return charts


def main(experiment: Path) -> None:
    settings, clamped = read_settings(experiment), read_clamped(experiment)
    parts = ["## By rate\n\nSeed 0.\n\n" + "\n".join(tabulate_rates(settings))]
    if held := tabulate_held(settings, clamped):
        parts.append("## Norms held\n\n" + "\n".join(held))
    courses = [chart for setting, runs in settings.items() for chart in draw_courses(setting, runs, clamped)]
    write(experiment, settings, parts, {"course": courses})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
