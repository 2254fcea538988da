"""A comparison: the runs of several schemes under one protocol, in words, tables, charts and how to repeat it."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from ..lab.load import is_run, list_runs, listed, read_run
from ..lab.runs.folder import flatten, read_object
from ..lab.runs.records import ComparisonRow, Summary
from ..lab.statistics.comparison import SEED_CAP, aggregate, significant
from . import checks, comparison_charts as draw
from .charts import Chart
from .page import details, html_table, pairs, plain_text
from .runs import ComparedRuns
from .study import Section
from .style import si, signed
from .tables import (
    COLUMNS,
    SECONDARY,
    WIDTH,
    Table,
    count,
    count_seeds,
    decimals,
    interval,
    pool_table,
    spread,
    unfinished,
)

STATUS = ("scheme", "seed", "lr", "phase", "status", "val_loss")
NO_METRICS = "No metrics were recorded in these runs."


class SavedComparison(ComparedRuns):
    """The report of the runs of several schemes."""

    what = "Comparison"
    without_limits = "No departure from the comparison protocol was found in these runs."

    @property
    def source(self) -> str:
        return self.folders

    @property
    def title(self) -> str:
        return f"{self.folders}: {count(len(self.names), 'residual scheme')}"

    def headline(self) -> str:
        return draw.describe_verdicts(self)

    def caption(self) -> str:
        data, rows = self.runs[0].config.get("data"), self.rows
        sizes = [row.parameters for row in rows if row.parameters]
        tokens = [row.tokens for row in rows if row.tokens and row.n]
        masked = any(row.val_accuracy_mean is not None for row in rows)
        parts = [
            f"{si(max(sizes))} parameters" if sizes else "size unknown",
            count(self.depth, "layer") if self.depth else "depth unknown",
            f"{si(max(tokens))} tokens per run" if tokens else "tokens unknown",
            count_seeds(rows),
            "data not named" if data is None else f"data {Path(str(data)).name or data}",
            *(["losses of masked tokens"] if masked else []),
        ]
        return " · ".join(parts)

    def findings(self) -> list[tuple[str, str]]:
        return [(row.scheme, headline(row)) for row in self.rows]

    def limits(self) -> list[str]:
        return [sentence for check in checks.CHECKS for sentence in check(self)]

    @cached_property
    def settings(self) -> dict[str, list[ComparisonRow]]:
        """The rows of each setting, by what tells it from the others; its runs differ in scheme, rate and seed."""
        configs = [flatten(run.config) for run in self.runs]
        keys = sorted({key for config in configs for key in config} - set(checks.WITHOUT_EFFECT))
        apart = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
        groups: dict[str, list[Summary]] = {}
        for run, config in zip(self.runs, configs, strict=True):
            name = ", ".join(f"{key} {plain_text(config.get(key))}" for key in apart)
            groups.setdefault(name, []).append(run.summary)
        return {name: aggregate(runs, self.baseline, absent=True) for name, runs in groups.items()}

    def tables(self) -> dict[str, Table]:
        pooled = pool_table(self.names, [row for rows in self.settings.values() for row in rows], "setting")
        return {"Table": tabulate(self.rows)} | ({"Over settings": pooled} if pooled[1] else {})

    def text_tables(self, width: int) -> list[Table]:
        """A narrow terminal leaves out a column that the page has."""
        left = {*SECONDARY, "verdict", *(["p, Holm"] if width < WIDTH else [])}
        return [tabulate(self.rows, left)]

    def charts(self) -> dict[str, list[Chart]]:
        return {name: [chart for draw_charts in each for chart in draw_charts(self)]
                for name, each in draw.FIGURES.items()}  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        return [row.row() for row in self.rows]

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        charts = self.charts()
        training = [*charts["loss_curves"], *charts["learning_rates"]]
        tables = {title: html_table(*table, place, SECONDARY) for title, table in self.tables().items()}
        pooled = [
            Section(title, [draw.by_setting(self, self.settings), table], "wide")
            for title, table in tables.items()
            if title != "Table"
        ]
        return [
            Section(
                "Noise and differences",
                [charts["final_loss"] or "<p>No run finished: there is nothing to compare yet.</p>"],
                "wide",
            ),
            *pooled,
            Section("Table", [tables["Table"]]),
            Section("Training", [training or f"<p>{NO_METRICS}</p>"]),
            Section("Geometry of the stream", [charts["geometry"] or "<p>No trace was recorded in these runs.</p>"]),
            Section("Stability", [draw.gradient_curves(self) or f"<p>{NO_METRICS}</p>"]),
            Section("Repeat it", [self._repeat()]),
        ]

    def _repeat(self) -> str:
        """Commands for the directory that the runs were started in: the data that they name is relative to it."""
        parts = ["<p>In the directory in which these runs were started:</p>"]
        if self.command:
            parts.append(f"<p>The last command of this comparison:</p><pre>{escape(self.command)}</pre>")
        one = self.drawn(self.names[0])[0]
        config = Path(str(one.config.get("out") or one.path)) / "config.yaml"
        again = shlex.join(["geonorm", "train", "--config", str(config), "--out", "NEW"])
        parts.append(f"<p>One run, from what is stored in its directory:</p><pre>{escape(again)}</pre>")
        parts.append(details(f"Configuration of {one.path.name}", f"<pre>{escape(one.config_text)}</pre>"))
        machines: dict[str, dict[str, None]] = {}
        for key, value in [item for run in self.runs for part in run.environment for item in flatten(part).items()]:
            machines.setdefault(key, {})[plain_text(value)] = None
        machines.pop("identity", None)  # of the run, not of its machine
        parts.append(
            details("Environment", pairs((key, checks.name_some([*values])) for key, values in machines.items()))
        )
        rows = [[run.path.name, *(plain_text(run.summary.get(key)) for key in STATUS)] for run in self.runs]
        title = f"All {count(len(rows), 'run')} and how they ended"
        for scheme in self.names:
            first = self.runs_of(scheme)[0].summary
            if recipe := ", ".join(f"{key} {plain_text(value)}" for key, value in (first.paper_recipe or {}).items()):
                used = "applied here" if first.own_recipe else "not applied here"
                parts.append(f"<p>{escape(scheme)}: its paper asks for {escape(recipe)} ({used}).</p>")
        return "".join([*parts, details(title, html_table(("run", *STATUS), rows))])


def tabulate(rows: Sequence[ComparisonRow], left_out: Collection[str] = ()) -> Table:
    """The columns in which some row has a value."""
    columns = [column for column in COLUMNS if column.title not in left_out
               and any(column.cell(row) != "–" for row in rows)]  # fmt: skip
    return [column.title for column in columns], [[column.cell(row) for column in columns] for row in rows]


def headline(row: ComparisonRow) -> str:
    """The result of a scheme in one sentence."""
    scheme, baseline, difference = row.scheme, row.baseline, row.difference
    if not row.n:
        return f"{scheme}: {unfinished(row)}"
    if scheme == baseline:
        return f"{scheme} is the baseline: validation loss {spread(row)} nats at {count(row.n, 'seed')}"
    if difference is None:
        return f"{scheme} shares no finished seed with {baseline}: validation loss {spread(row)}, nothing paired"
    digits, seeds = decimals(row), count(row.pairs, "seed")
    size, side = f"{abs(difference):.{digits}f}", "below" if difference < 0 else "above"
    if row.difference_low is None or row.difference_high is None:
        return f"{scheme} is {size} nats {side} {baseline} in one seed: not resolved, one seed gives no interval"
    if row.resolved:
        near, far = sorted((abs(row.difference_low), abs(row.difference_high)))
        among = f", but not among all {row.family_size} (Holm: p = {row.p_holm:.2g})"
        return (
            f"{scheme} is {size} ({near:.{digits}f} to {far:.{digits}f}) nats {side} "
            f"{baseline} at {seeds}{'' if significant(row.p_holm) else among}"
        )
    outlook, needed = "", row.seeds_needed
    if row.equal:
        outlook = f"; equal within {row.margin:g} (p = {row.equal_p:.2g})"
    elif needed is not None and needed > row.pairs:
        amount = f"more than {SEED_CAP}" if needed > SEED_CAP else f"about {needed}"
        outlook = f"; {amount} seeds would resolve a difference of this size"
    ends = interval(row.difference_low, row.difference_high, digits)
    return (
        f"{scheme} against {baseline} is not resolved at {seeds}: the interval of {signed(difference, digits)} "
        f"({ends}) nats holds 0{outlook}"
    )


def load_comparison(roots: Sequence[Path]) -> SavedComparison:
    """Every run under these directories as one comparison, its baseline first. FileNotFoundError where there is none,
    or a directory is missing."""
    paths = list(dict.fromkeys(path for root in roots for path in list_runs(root)))
    absent = [root for root in roots if not root.exists()]
    if absent or not paths:
        raise FileNotFoundError(f"no run directory in {', '.join(map(str, absent or roots))}")
    studies = [path.resolve().parents[1] for path in paths]  # of runs named one by one
    results = [read_object(folder / "results.json") for folder in dict.fromkeys([*roots, *studies])]
    commands = [command for each in results[: len(roots)] if (command := listed(each, "command"))]
    # the usual baseline leads where nothing else is on record
    order = [*(name for each in results for name in listed(each, "order")), "pre"]
    runs = [read_run(path) for path in paths]
    runs.sort(key=lambda run: (order.index(run.scheme), "") if run.scheme in order else (len(order), run.scheme))
    names = [root.parent if is_run(root) else root for root in map(Path.resolve, roots)]
    sources = dict.fromkeys((name.parent if name.name == "runs" else name).name for name in names)
    return SavedComparison(
        path=roots[0],
        all_runs=runs,
        all_rows=aggregate([run.summary for run in runs]),
        folders=roots[0].resolve().name if len(paths) == 1 else ", ".join(sources),
        command=repeat_elsewhere(commands[0]) if commands else None,
    )


def repeat_elsewhere(command: list[str]) -> str:
    """The command with another --out, as a line of shell: in its own folder everything is done already.

    >>> repeat_elsewhere(["geonorm", "compare", "--out=runs/a", "--seeds", "5"])
    'geonorm compare --out NEW --seeds 5'
    """
    words = [part for word in command for part in (word.split("=", 1) if word.startswith("--out=") else [word])]
    at = words.index("--out") if "--out" in words else len(words)
    return shlex.join([*words[:at], "--out", "NEW", *words[at + 2 :]])
