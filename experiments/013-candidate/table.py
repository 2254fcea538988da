"""The table and figures of 013, from its results.jsonl and the rows that it takes from 016.

    python experiments/013-candidate/table.py [FOLDER]

Writes table.md and figures/ into the folder, by default that of the experiment: every row at its best rate, its
difference to `pre` paired by seed, with p adjusted by Holm; the variants in the order of their losses, by the seeds
that all of them have, of which the first is the candidate; and, once it has been tried, how far above it each rival
ends, at equal tokens and at equal time, p adjusted within each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cells import Cells, Runs, at_best, judge, read_clamped, write
from curves import draw_losses
from programme import read_runs
from runs import AGAINST, FRESH, KNOWN, SEEDS, VARIANTS, with_fields

from geonorm.lab.runs.records import ComparisonRow
from geonorm.report.tables import markdown_lines
from geonorm.schemes import parse

STREAMS = Path(__file__).parents[1] / "016-streams"
SELECTION = "selection"
LABELS = {parse(KNOWN[3]): "pi/4 / t"} | {parse(with_fields(fields)): name for name, fields in VARIANTS.items()}
"""Unit tangents by scheme: their angle in block t or sub-layer n."""
UNIT = "nats per token"
CHANCE = 0.01


def label(scheme: str) -> str:
    """A unit tangent by its angle, anything else by its name."""
    return LABELS.get(parse(scheme), scheme)


def read_selection(experiment: Path, other: Path) -> Runs:
    """Own runs, and those of KNOWN in the regime `plain` of the other experiment, the baseline first."""
    known = [run for run in read_runs(other) if run.run.startswith("plain-") and run.scheme in KNOWN]
    own = [run for run in read_runs(experiment) if run.run.startswith("select-")]
    runs = [replace(run, scheme=label(run.scheme)) for run in (*known, *own)]
    return sorted(runs, key=lambda run: run.scheme != KNOWN[0])


def rank(runs: Runs) -> list[str]:
    """Of the variants: mean loss at the best rate over the seeds that all of them have."""
    wanted = {*LABELS.values(), *KNOWN[4:]}
    found = []
    for row in judge({SELECTION: runs})[SELECTION]:
        ends = at_best(runs, row)
        if row.scheme in wanted and set(range(SEEDS)) <= ends.keys():
            losses = [ends[seed].val_loss for seed in range(SEEDS)]
            found.append((fmean(losses), row.scheme, ", ".join(f"{loss:.4f}" for loss in losses)))
    return markdown_lines(
        ("variant", f"mean of {SEEDS} seeds", "seed by seed"),
        [[scheme, f"{mean:.4f}", each] for mean, scheme, each in sorted(found)],
    )


def read_trial(experiment: Path) -> dict[str, Runs]:
    """The runs of fresh seeds, those of the candidate first: with as many tokens as its rivals, and with their time."""
    runs = [replace(run, scheme=label(run.scheme)) for run in read_runs(experiment) if run.seed in FRESH]
    equal = [run for run in runs if run.run.startswith("equal-")]
    rivals = [run for run in runs if run.run.startswith("confirm-")]
    if not equal:
        return {}
    rivals.sort(key=lambda run: run.scheme != equal[0].scheme)
    rest = [run for run in rivals if run.scheme != equal[0].scheme]
    return {"equal tokens": rivals, "equal time": [*equal, *rest]}


def why_not(row: ComparisonRow | None, lost: int) -> str | None:
    """What keeps a rival from being above the candidate by the rule that was registered; None where it is. A run of a
    rival that diverged counts as above, one of the candidate, of which there are `lost`, as below."""
    if row is None or not row.n:
        return "no run yet"
    if lost:
        return f"{lost} of the candidate's runs diverged"
    if (known := row.pairs + row.statuses.get("diverged", 0)) < len(FRESH):
        return f"{known} of {len(FRESH)} pairs yet"
    above = row.p_holm is not None and row.difference > 0 and row.p_holm < CHANCE
    return None if above else f"not above it with p < {CHANCE}"


def conclude(judged: Mapping[str, Sequence[ComparisonRow]]) -> str:
    """Whether every rival ends above the candidate."""
    lines = []
    for cell, rows in judged.items():
        found = {row.scheme: row for row in rows}
        lost = rows[0].statuses.get("diverged", 0)
        left = {rival: why for rival in AGAINST if (why := why_not(found.get(rival), lost))}
        told = "; ".join(f"{rival}: {why}" for rival, why in left.items())
        lines.append(f"At {cell}: " + (f"not found ({told})." if left else "found."))
    return "\n".join(lines)


def main(experiment: Path, other: Path = STREAMS) -> None:
    selection = read_selection(experiment, other)
    trial: Cells = read_trial(experiment)
    tried = {cell: judge({cell: runs})[cell] for cell, runs in trial.items()}
    parts = ["## Candidates\n\n" + "\n".join(rank(selection)), *([f"## Verdict\n\n{conclude(tried)}"] if tried else [])]
    charts = [draw_losses(SELECTION, UNIT, selection)]
    if tried:
        own = [
            replace(run, scheme=label(run.scheme)) for run in read_runs(experiment) if run.run.startswith("confirm-")
        ]
        charts.append(draw_losses("confirmation", UNIT, own))
    write(
        experiment, {SELECTION: selection, **trial}, parts, {"rates": charts},
        clamped=read_clamped(other) | read_clamped(experiment),
        judged={**judge({SELECTION: selection}), **tried},
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
