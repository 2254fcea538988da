"""The table and the figure of 015, from its results.jsonl.

    python experiments/015-conversion/table.py

Writes table.md and figures/course.svg into the folder of the experiment. The conversions themselves run at the tag
`laboratory-3`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import read_kept

from geonorm.lab.runs.records import Summary

HERE = Path(__file__).parent
SOURCES = {"raw": "pre(entry=embedding)", "sphere": "pre"}
TARGETS = {"raw": "geonorm(entry=embedding)", "sphere": "geonorm"}
CONVERTED = ("abrupt", "match", "global", "layers")
BESIDE = ("baseline", "scratch")
"""baseline: Pre-Norm trained on for as many tokens, what any way is compared with."""
BATCH = 2 * 128

Cells = dict[tuple[str, str], dict[str, Summary]]


def sort_results(rows: Mapping[str, Summary]) -> Cells:
    """By source and way, then by seed, what came to its end."""
    cells: Cells = {}
    for name, row in sorted(rows.items()):
        start, way, seed = name.split("-")
        if row.status == "finished":
            cells.setdefault((start, way), {})[seed] = row
    return cells


def course_of(row: Summary) -> list[tuple[float, float]]:
    """Million tokens and the loss behind them; a conversion's begins before its first step."""
    begin = row.more.get("conversion", {}).get("loss_at_start")
    return [
        *([(0.0, begin)] if begin is not None else []),
        *((s * BATCH / 1e6, loss) for s, loss in row.more["course"]),
    ]


def draw_course(start: str, cells: Cells) -> Any:
    """A line for each result of a source. The first moments of what begins far away lie above the frame."""
    from geonorm.report.charts import Axis, Chart
    from geonorm.report.style import looks

    lines = [(way, course_of(row)) for way in (*CONVERTED, *BESIDE) for row in cells.get((start, way), {}).values()]
    near = [loss for way, line in lines for _, loss in line[1 if way != "scratch" else -1 :]]
    chart = Chart(
        f"From {SOURCES[start]} to {TARGETS[start]}",
        Axis.around([tokens for _, line in lines for tokens, _ in line], title="million tokens"),
        Axis.around(near, title="validation loss (nats per token)"), looks([*CONVERTED, *BESIDE]),
        "A line a seed, on a part of the validation text. Where a way begins above the frame is in table.md.",
    )  # fmt: skip
    for way, line in lines:
        chart.line(way, line)
    return chart


def figure() -> None:
    """Validation loss against tokens, source beside source."""
    from geonorm.report.charts import Figure, figure as side_by_side

    cells = sort_results(read_kept(HERE))
    charts = [draw_course(start, cells) for start in SOURCES if any(place[0] == start for place in cells)]
    (HERE / "figures").mkdir(exist_ok=True)
    print(Figure(side_by_side(charts, HERE.name)).save(HERE / "figures" / "course.svg"))


def differ(cells: Cells, start: str, way: str, other: str) -> Any:
    """Loss of a way less that of the other on the whole validation text, paired by seed, with its interval."""
    from geonorm.lab.statistics.comparison import paired_interval

    own, theirs = cells.get((start, way), {}), cells.get((start, other), {})
    return paired_interval([own[seed].val_loss - theirs[seed].val_loss for seed in own if seed in theirs])


def reach(line: Sequence[tuple[float, float]], loss: float) -> float | None:
    """Million tokens from which on a course is at a loss or below it, straight between its points; None where it ends
    above. A gradual way begins at the loss of its source and leaves it: what it comes back to counts."""
    above = [place for place, (_, found) in enumerate(line) if found > loss]
    if not above:
        return line[0][0]
    if above[-1] == len(line) - 1:
        return None
    (before, high), (after, low) = line[above[-1]], line[above[-1] + 1]
    return before + (after - before) * (high - loss) / (high - low)


def show_reached(cells: Cells, start: str, way: str) -> str:
    """Tokens until a way is where the baseline of its seed ends, on the part of the text that courses are about."""
    ends = {seed: row.more["course"][-1][1] for seed, row in cells.get((start, "baseline"), {}).items()}
    found = [reach(course_of(row), ends[seed]) for seed, row in cells[start, way].items() if seed in ends]
    there = [tokens for tokens in found if tokens is not None]
    if not there:
        return "never" if found else "–"
    return f"{mean(there):.2f}M" + (f" ({len(there)} of {len(found)})" if len(there) < len(found) else "")


def show_interval(found: Any) -> str:
    if found.n < 2:
        return f"{found.mean:+.4f}" if found.n else "–"
    return f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def tabulate(rows: Mapping[str, Summary]) -> str:
    """table.md: what each way costs and reaches, and the family that was registered."""
    from geonorm.lab.statistics.moderated import holm

    cells = sort_results(rows)
    lines = [
        "Losses in nats per token, means over seeds: at the start and after on a part of the validation text, after on "
        "all of it. Differences are of these, paired by seed, with 95 % intervals.",
        "",
        "| source | way | n | at the start | after, part | after | less baseline | tokens to the baseline's end |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for start in SOURCES:
        for way in (*CONVERTED, *BESIDE):
            if (own := cells.get((start, way))) is None:
                continue
            starts = [row.more["conversion"]["loss_at_start"] for row in own.values() if "conversion" in row.more]
            beside = ["–", "–"]
            if way != "baseline":
                beside = [show_interval(differ(cells, start, way, "baseline")), show_reached(cells, start, way)]
            after = mean(row.val_loss for row in own.values())
            part = mean(row.more["course"][-1][1] for row in own.values())
            begun = f"{mean(starts):.4f}" if starts else "–"
            known = [start, way, str(len(own)), begun, f"{part:.4f}", f"{after:.4f}", *beside]
            lines.append(f"| {' | '.join(known)} |")
    family = []
    for start in SOURCES:
        family += [(start, way, "abrupt", differ(cells, start, way, "abrupt")) for way in CONVERTED[1:]]
        ended = {
            way: mean(r.val_loss for r in cells[start, way].values()) for way in CONVERTED if (start, way) in cells
        }
        if ended:
            best = min(ended, key=lambda way: ended[way])
            family.append((start, best, "baseline", differ(cells, start, best, "baseline")))
    adjusted = holm([found.p for *_, found in family])
    lines += [
        "",
        "The registered family:",
        "",
        "| source | way | less | difference | p (Holm) |",
        "|---|---|---|---|---|",
    ]
    for (start, way, other, found), p in zip(family, adjusted, strict=True):
        if found.n:
            shown = "–" if p is None else f"{p:.2g}"
            lines.append(f"| {start} | {way} | {other} | {show_interval(found)} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "table.md").write_text(tabulate(read_kept(HERE)), encoding="utf-8")
    print(HERE / "table.md")
    figure()
