"""A ladder (`geonorm ladder`): effective speed-ups, loss against compute and slopes, from results.json."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from ..lab.load import Ladder
from ..lab.runs.ladder_records import LadderPoint, SpeedupRow, TrendRow
from ..lab.statistics.comparison import significant
from .charts import RATE, Axis, Chart, Point, Strip, strip_chart
from .checks import (
    SEEDS_FOR_A_CLAIM,
    TOKENS_PER_PARAMETER,
    describe_scatter,
    list_other_sizes,
    list_rewound_runs,
)
from .depth import describe_ends
from .page import details, html_table, pairs
from .study import Record, Section, Study, read_object_strictly
from .style import figures, rate, si, signed
from .tables import (
    Table,
    chances,
    count,
    count_seeds,
    learning_rate,
    paired_difference,
    pool_table,
    ratio_text,
    spread,
    with_interval,
)
from .terms import linked

SCATTERS = (("speedups", "speedup", "speed-ups"), ("trends", "slope", "slopes"))
ROUGHLY = "replace(format(datum.value, '.3~s'), 'G', 'B')"
"""How an axis writes tokens and parameters, which are seldom round."""


@dataclass(frozen=True)
class SavedLadder(Study):
    """The report of a ladder's folder."""

    ladder: Ladder

    what = "Ladder"
    maker = "ladder"

    @classmethod
    def read(cls, path: Path) -> SavedLadder:
        return cls(path, Ladder(path, read_object_strictly(path / "results.json")))

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(row.scheme for row in self.ladder.points))

    @property
    def baseline(self) -> str:
        return self.ladder.baseline

    @property
    def sizes(self) -> dict[str, LadderPoint]:
        """The longest point of each size, the smallest size first."""
        points = sorted(self.ladder.points, key=lambda row: (row.parameters, row.tokens))
        return {row.size: row for row in points}

    def rows(self, table: str) -> list[Any]:
        """Rows of a table (points, speedups, trends) of the schemes to show, in their order."""
        names, order = self.names, {size: place for place, size in enumerate(self.sizes)}
        rows = [row for row in getattr(self.ladder, table) if row.scheme in names]
        return sorted(rows, key=lambda row: (order.get(row.size, -1), names.index(row.scheme)))

    def caption(self) -> str:
        tokens = sorted(row.tokens for row in self.ladder.points)
        parts = [
            f"{', '.join(dict.fromkeys(si(row.parameters) for row in self.sizes.values()))} parameters",
            f"{' to '.join(dict.fromkeys((si(tokens[0]), si(tokens[-1]))))} tokens",
            count_seeds(self.ladder.points),
            f"data {Path(str(self.ladder.results.get('data'))).name}",
        ]
        return " · ".join(parts)

    def findings(self) -> list[tuple[str, str]]:
        """A sentence on the largest size, with the speed-ups at the others."""
        sentences = []
        for scheme in self.names:
            if rows := [row for row in self.rows("speedups") if row.scheme == scheme]:
                others = ", ".join(f"{speedup_text(row)} at {si(row.parameters)}" for row in rows[:-1])
                sentences.append((scheme, describe_speedup(rows[-1]) + (f"; {others}" if others else "")))
        return sentences

    def headline(self) -> str:
        rows = self.rows("speedups")
        return f"Effective speed-up over {self.baseline} {name_speedups(rows, rows[-1].size)}" if rows else self.title

    def limits(self) -> list[str]:
        judged = {self.baseline, *self.names}
        points = [row for row in self.ladder.points if row.scheme in judged]
        where = [(row, f"{row.scheme} at {si(row.parameters)} parameters, {si(row.tokens)} tokens") for row in points]
        sizes = [(row.scheme, row.own_parameters, row.parameters) for row in points
                 if row.own_parameters and row.parameters]  # fmt: skip
        scattered = [(row, samples, describe_scatter(times, "over seeds as the others"))
                     for table, name, samples in SCATTERS for row in self.rows(table)
                     if (times := getattr(row, f"{name}_scatter"))]  # fmt: skip
        least = min((row.n for row in points if row.n), default=SEEDS_FOR_A_CLAIM)
        fewest = min((row.tokens / row.parameters for row in self.sizes.values()), default=TOKENS_PER_PARAMETER)
        sentences = {
            f"{count(least, 'seed').capitalize()} at the least: a claim needs {SEEDS_FOR_A_CLAIM}.":
                least < SEEDS_FOR_A_CLAIM,
            **{f"{text}: {count(row.failed, 'run')} did not finish.": row.failed for row, text in where},
            **{f"{text}: its best rate, {rate(row.lr)}, is an edge of those tried.": row.lr_interior is False
               for row, text in where},
            **dict.fromkeys(list_other_sizes(sizes, "the baseline, by whose compute it is judged"), True),
            **{f"{row.scheme} at {self._size(row)}: its {samples} {scatter}": True
               for row, samples, scatter in scattered},
            **dict.fromkeys(list_rewound_runs([r.summary for r in self.ladder.runs if r.scheme in judged]), True),
            "One learning rate at each size, by the rule: a scheme that wants another pays for that.":
                all(row.lr_interior is None for row in points),
            f"{fewest:.2g} tokens per parameter: below {TOKENS_PER_PARAMETER} this is a ladder of early training.":
                fewest < TOKENS_PER_PARAMETER,
            "Depth, width, tokens, batch and rate grow together: sizes differ in all of them.": len(self.sizes) > 1,
        }  # fmt: skip
        return [sentence for sentence, holds in sentences.items() if holds]

    def _size(self, row: TrendRow | SpeedupRow) -> str:
        return si(self.sizes[row.size].parameters) if row.size in self.sizes else "all"

    def tables(self) -> dict[str, Table]:
        speed = [
            [row.scheme, si(row.parameters), si(row.tokens), row.along, str(row.n), speedup_text(row),
             chances(row.speedup_p, row.speedup_p_holm)]
            for row in self.rows("speedups")
        ]  # fmt: skip
        slopes = [
            [row.scheme, row.along, self._size(row), str(row.n),
             with_interval(row.slope, row.slope_low, row.slope_high, 4), chances(row.slope_p, row.slope_p_holm)]
            for row in self.rows("trends")
        ]  # fmt: skip
        points = [
            [row.scheme, si(row.parameters), si(row.tokens),
             f"{row.tokens / row.parameters:.3g}, {row.tokens / (row.parameters - row.embedding):.3g}",
             f"{row.compute:.2e}", str(row.n), spread(row), paired_difference(row), chances(row.p, row.p_holm),
             learning_rate(row)]
            for row in self.rows("points")
        ]  # fmt: skip
        known = [row for row in sorted(self.rows("points"), key=lambda row: row.tokens) if row.difference_std]
        tables: dict[str, Table] = {
            "Speed-up": (["scheme", "parameters", "tokens", "along", "n", "speed-up (95 %)", "p, Holm"],
                         speed),
            "Over sizes": pool_table(self.names, list({(row.scheme, row.size): row for row in known}.values()), "size"),
            "Slope of the difference": (["scheme", "along", "size", "n", "nats per decade (95 %)", "p, Holm"], slopes),
            "Points": (["scheme", "parameters", "tokens", "per parameter", "FLOP", "n", "val loss",
                        "difference (95 %)", "p, Holm", "lr"], points),
        }  # fmt: skip
        return {title: table for title, table in tables.items() if table[1]}

    def text_tables(self, width: int) -> list[Table]:
        return [table for title, table in self.tables().items() if title == "Speed-up"]

    def charts(self) -> dict[str, list[Chart]]:
        note = "Means over seeds at the best rate; lines join the budgets of a size."
        paired = f"Validation loss − that of {self.baseline}, paired by seed; band: 95 % interval at each point."
        return {
            "speedup": speedup_charts(self),
            "loss": budget_charts(self, "val_loss_mean", "Loss", note,
                                  lambda row: figures(row.val_loss_mean)),
            "difference": budget_charts(self, "difference", f"Difference to {self.baseline}", paired,
                                        lambda row: f"{signed(row.difference, 4)} nats"),
        }  # fmt: skip

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        tables = {title: f"<h3>{linked(title)}</h3>{html_table(*table, place)}"
                  for title, table in self.tables().items()}  # fmt: skip
        speedups, charts = tables.pop("Speed-up", ""), self.charts()
        again = shlex.join(["geonorm", "ladder", "--config", str(self.path / "config.yaml"), "--out", "NEW"])
        runs = pairs((run.path.name, f"{run.summary.status}, {run.summary.val_loss}") for run in self.ladder.runs)
        return [
            Section("Effective speed-up", [charts["speedup"], speedups], "wide"),
            Section("Loss", [[*charts["loss"], *charts["difference"]]]),
            Section("In numbers", [*tables.values()]),
            Section(
                "Repeat it",
                [f"<p>The last command of this ladder:</p><pre>{escape(again)}</pre>", details("All runs", runs)],
            ),
        ]

    def records(self) -> list[Record]:
        """Every point, with the speed-up where its budget is the longest; `speedup_n` are the seeds of that, `n` those
        of the point."""
        ends = {(row.scheme, row.size, row.tokens): row.row() for row in self.rows("speedups")}
        points = [(row, ends.get((row.scheme, row.size, row.tokens), {})) for row in self.rows("points")]
        return [{**end, "speedup_n": end.get("n"), **row.row()} for row, end in points]


def describe_speedup(row: SpeedupRow) -> str:
    """The speed-up of a scheme at a size in one sentence."""
    versus = f"{row.scheme} against {row.baseline} at {si(row.parameters)} parameters and {si(row.tokens)} tokens"
    if row.bound:
        more = "more" if row.bound == ">" else "less"
        return f"{versus}: a speed-up of {more} than {row.limit:.3g}, as far as the curves reach"
    if row.speedup is None:
        return f"{versus} is not resolved: {row.problem}"
    unit = "tokens" if row.along == "tokens" else "compute along the sizes"
    value, holm = f"speed-up {speedup_text(row)} in {unit}", row.speedup_p_holm
    if row.speedup_low is None or row.speedup_high is None:
        return f"{versus}: {value}; not resolved, one seed gives no interval"
    if row.speedup_low <= 1 <= row.speedup_high:
        return f"{versus} is not resolved at {count(row.n, 'seed')}: {value}"
    among = "" if significant(holm) else f", but not among all speed-ups here (Holm: p = {holm:.2g})"
    return f"{versus}: {value}, {count(row.n, 'seed')}{among}"


def name_speedups(rows: Sequence[SpeedupRow], size: str) -> str:
    """The speed-ups at a size, in a line."""
    here = [row for row in rows if row.size == size]
    ends = ", ".join(
        f"{row.scheme} {speedup_text(row).partition(' (')[0]}"
        + (
            " (not resolved)"
            if row.speedup is not None and (row.speedup_low or 0) <= 1 <= (row.speedup_high or math.inf)
            else ""
        )
        for row in here
    )
    return f"at {si(here[0].parameters)} parameters, {si(here[0].tokens)} tokens: {ends}"


def speedup_charts(ladder: SavedLadder) -> list[Chart]:
    """The effective speed-up of every scheme at each size, and over the sizes."""
    rows = [row for row in ladder.rows("speedups") if row.speedup is not None or row.bound]
    strips: dict[str, list[Strip]] = {}
    for row in rows:
        text, scheme = speedup_text(row), row.scheme
        dots = [(math.exp(ln), f"{scheme}: {math.exp(ln):.3g}") for ln in row.ln] or [(row.limit, f"{scheme}: {text}")]
        strip = Strip(scheme, text, dots, row.speedup, row.speedup_low, row.speedup_high)
        strips.setdefault(row.size, []).append(strip)
    ends = [end for each in strips.values() for s in each for end in (s.mean, s.low, s.high, *(x for x, _ in s.dots))]
    unit = f"speed-up over {ladder.baseline}"
    axis = Axis.around([0.95, 1.05, *filter(None, ends)], log=True, margin=0.08, title=f"{unit} (right of 1 is better)")
    charts = [
        strip_chart(
            f"Speed-up {name_speedups(rows, size)}",
            "",
            each,
            ladder.looks,
            "Each mark is one seed, the bar the 95 % interval of their mean. > and <: outside the curves.",
            1.0,
            axis,
            name=f"speedup-{size}",
            meaning="A speed-up of 2 is the loss of the baseline with half the tokens.",
        )
        for size, each in strips.items()
    ]
    return charts + ([over_sizes(ladder, rows, replace(axis, title=unit))] if len(charts) > 1 else [])


def speedup_text(row: SpeedupRow) -> str:
    """A speed-up with its interval, its bound, or why there is none."""
    if row.bound:
        return f"{row.bound} {row.limit:.3g}"
    if row.speedup is None:
        return str(row.problem)
    return ratio_text(row.speedup, row.speedup_low, row.speedup_high)


def over_sizes(ladder: SavedLadder, rows: Sequence[SpeedupRow], y: Axis) -> Chart:
    """The speed-up of every scheme over the number of parameters."""
    x = Axis.around([row.parameters or 1 for row in rows], log=True, margin=0.08, title="parameters", form=ROUGHLY,
                    labels=[row.parameters for row in ladder.sizes.values()])  # fmt: skip
    known = [(name, [row for row in rows if row.scheme == name and row.speedup is not None]) for name in ladder.names]
    chart = Chart(
        "Speed-up", x, y, ladder.looks, "The band is the 95 % interval at each size.", name="sizes",
        meaning="A speed-up that shrinks with size is one of small models.",
    )  # fmt: skip
    chart.rule(y=1.0)
    return draw_lines(chart, known, "parameters", "speedup", lambda row: f"{row.speedup:.3g}")


def draw_lines(
    chart: Chart, lines: Iterable[tuple[str, Sequence[Any]]], key: str, column: str, text: Callable[[Any], str]
) -> Chart:
    """A curve of a column, with its interval where it has one, through the rows of each line; the title gets the ends
    of the lines."""
    ends: dict[str, tuple[float, float]] = {}
    for scheme, rows in lines:
        points = []
        for row in rows:
            low, high = (getattr(row, f"{column}_{end}", None) for end in ("low", "high"))
            label = f"{row.scheme} · {si(row.parameters)} parameters · {si(row.tokens)} tokens: {text(row)}"
            points.append(Point(getattr(row, key), getattr(row, column), low, high, label))
        chart.curve(scheme, points)
        ends |= {scheme: (points[0].y, points[-1].y)} if points else {}
    chart.title = describe_ends(chart.title, ends)
    return chart


def budget_charts(ladder: SavedLadder, column: str, title: str, note: str, text: Callable[[Any], str]) -> list[Chart]:
    """A column at every budget and size, over tokens if there is one size, else over compute."""
    zero = [0.0] if column == "difference" else []
    rows = [row for row in ladder.rows("points")
            if getattr(row, column) is not None and not (zero and row.scheme == ladder.baseline)]  # fmt: skip
    if not rows:
        return []
    key = "tokens" if len(ladder.sizes) == 1 else "compute"
    budgets = sorted(getattr(row, key) for row in rows if row.scheme == rows[0].scheme)
    few = budgets if key == "tokens" and len(budgets) <= 5 else None
    x = Axis.around([getattr(row, key) for row in rows], log=True, margin=0.06, labels=few,
                    form=ROUGHLY if key == "tokens" else RATE,
                    title="tokens" if key == "tokens" else "compute (FLOP)")  # fmt: skip
    ends = [getattr(row, f"{column}{end}", None) for row in rows for end in ("", "_low", "_high")]
    y = Axis.around([*zero, *(end for end in ends if end is not None)], margin=0.08, title="nats per token")
    chart = Chart(
        title, x, y, ladder.looks, note, name=f"{column.replace('_', '-')}-budgets",
        meaning="Lines that run together say that the difference fades with size or tokens.",
    )  # fmt: skip
    for level in zero:
        chart.rule(y=level)
    return [draw_lines(chart, join_points(rows), key, column, text)]


def join_points(rows: Sequence[LadderPoint]) -> Iterator[tuple[str, list[Any]]]:
    """What one line joins: the budgets of a scheme at a size, or its sizes where each has one budget."""
    several = len({(row.size, row.tokens) for row in rows}) > len({row.size for row in rows})
    joined: dict[tuple[str, str], list[LadderPoint]] = {}
    for row in rows:
        joined.setdefault((row.scheme, row.size if several else ""), []).append(row)
    for (scheme, _), line in joined.items():
        yield scheme, sorted(line, key=lambda row: row.compute)
