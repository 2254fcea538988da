"""What the report says of a comparison: findings, table, charts, recipe, and how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path

from ..lab.runs.folder import flatten
from . import comparison_charts as charts
from .checks import PER_RUN, limits
from .page import Part, Section, bullets, details, html_table, pairs, plain_text
from .runs import Run, SavedComparison
from .tables import COLUMNS, LIMITS, count, headline, summary_line
from .vega import Chart

STATUS = ("scheme", "seed", "lr", "phase", "status", "val_loss")
NO_LOSS = "No run finished with a validation loss, so there is nothing to compare yet."
NO_METRICS = "No metrics were recorded in these runs."
NO_LIMITS = "No departure from the comparison protocol was found in these runs."
TABLE_NOTE = (
    "<p>Mean ± standard deviation over seeds; differences are paired by seed, with their 95 % interval; p of each "
    "alone, and by Holm for all {family}; moderated: the difference of the means, variances drawn towards that of "
    "all schemes as far as their spreads agree (too narrow, on average, for one that scatters far more than they do); "
    "fitted minimum: of a parabola in log rate through all full runs, ± standard error, too small where the luck of a "
    "seed is the same at all rates; spikes (of the loss / of the gradient norm) are summed over the n runs, in "
    "brackets those that most other runs have not at the same batch. "
    "Speeds are not compared: runs share a machine (geonorm bench train measures them in turns).</p>"
)
NO_TRACE = "No trace was recorded in these runs, so the geometry of the stream cannot be shown."


def report_comparison(comparison: SavedComparison, place: Mapping[str, int]) -> Part:
    """`place`: where each scheme stands in the legend."""
    training = [*charts.losses(comparison), *charts.gaps(comparison), *charts.learning_rates(comparison)]
    noise = [*charts.final_loss(comparison), *charts.differences(comparison)]
    shown = [column for column in COLUMNS if any(column.cell(row) != "–" for row in comparison.rows)]
    titles, cells = [column.title for column in shown], [[c.cell(row) for c in shown] for row in comparison.rows]
    sections = [
        Section("Noise and differences", [_charts(noise, NO_LOSS)], "wide"),
        Section("Table", [html_table(titles, cells, place), TABLE_NOTE.format(family=comparison.rows[0]["family"])]),
        Section("Training", [_charts(training, NO_METRICS)]),
        Section("Geometry of the stream", [_charts(charts.geometry(comparison), NO_TRACE)]),
        Section("Stability", [_stability(comparison), _charts(charts.gradient_course(comparison), NO_METRICS)]),
        Section("Recipe", [_recipe(comparison)]),
        Section("Repeat it", [_repeat(comparison)]),
    ]
    return Part(
        source=comparison.source,
        title=f"{comparison.source}: "
        + (f"{len(comparison.names)} residual schemes compared" if len(comparison.names) > 1 else comparison.names[0]),
        caption=summary_line(comparison),
        findings=[(row["scheme"], headline(row)) for row in comparison.rows],
        keys=comparison.keys,
        sections=sections,
        limits=limits(comparison),
        limits_title=LIMITS,
        without_limits=NO_LIMITS,
        tables=[(titles, cells)],
        records=comparison.rows,
        figures=charts.figures_of(comparison),
    )


def _charts(found: list[Chart], otherwise: str) -> str | list[Chart]:
    return found or f"<p>{escape(otherwise)}</p>"


def _stability(comparison: SavedComparison) -> str:
    sentences = [
        f"{row['scheme']}: {count(row['spikes'], 'loss spike')} and "
        f"{count(row['grad_spikes'], 'gradient spike')} "
        f"in {count(row['n'], 'finished run')}"
        + ("" if row.get("spikes_apart") is None else f", {row['spikes_apart']} and {row['grad_spikes_apart']} its own")
        + (f"; {row['failed']} did not finish." if row["failed"] else ".")
        for row in comparison.rows
    ]
    rule = (
        "A spike is a value more than 6 standard deviations above the mean of the 100 steps before it. Runs of one "
        "seed see the same batches: a spike that more than half of the others have at the same step is the batch's, "
        "any other the run's own."
    )
    return f"<p>{rule}</p>{bullets(sentences)}"


def _recipe(comparison: SavedComparison) -> str:
    """Settings that all runs share, where each scheme departs from them, and what its paper asks for beside them."""
    if not any(run.config for run in comparison.runs):
        return "<p>No configuration was stored with these runs.</p>"
    flat = {id(run): flatten(run.config) for run in comparison.runs}
    first, *others = flat.values()
    keys = dict.fromkeys(key for config in flat.values() for key in config if key not in PER_RUN)
    shared = [(key, first.get(key)) for key in keys if all(config.get(key) == first.get(key) for config in others)]
    own = [key for key in keys if key not in dict(shared)]
    parts = [details(f"Shared by all runs: {count(len(shared), 'setting')}", pairs(shared))]
    if own:
        runs = {scheme: comparison.of(scheme) for scheme in comparison.names}
        rows = [
            [key, *(", ".join(dict.fromkeys(plain_text(flat[id(run)].get(key)) for run in of)) for of in runs.values())]
            for key in own
        ]
        parts.append("<p>Where the runs differ, besides scheme, seed and learning rate:</p>")
        parts.append(html_table(["setting", *runs], rows))
    else:
        parts.append("<p>The runs differ in nothing but scheme, seed and learning rate.</p>")
    asked = []
    for scheme in comparison.names:
        summary = comparison.of(scheme)[0].summary
        if recipe := summary.get("paper_recipe"):
            settings = ", ".join(f"{key} {plain_text(value)}" for key, value in recipe.items())
            used = "applied here" if summary.get("own_recipe") else "not applied here"
            asked.append(f"{scheme}: its paper asks for {settings} ({used}).")
    return "".join(parts) + (bullets(asked) if asked else "")


def _repeat_run(run: Run) -> list[str]:
    """The command that makes a run again."""
    config = Path(str(run.config.get("out") or run.path)) / "config.yaml"
    return ["geonorm", "train", "--config", str(config), "--out", "NEW"]


def _repeat(comparison: SavedComparison) -> str:
    """Commands for the directory that the runs were started in: what they name, data above all, is relative to it."""
    parts = ["<p>In the directory in which these runs were started:</p>"]
    if comparison.command:
        parts.append(f"<p>The whole comparison:</p><pre>{escape(comparison.command)}</pre>")
    parts.append("<p>One run, from what is stored in its directory:</p>")
    parts.append(f"<pre>{escape(shlex.join(_repeat_run(comparison.drawn(comparison.names[0])[0])))}</pre>")
    for scheme in comparison.names:
        run = comparison.drawn(scheme)[0]
        if run.config_text:
            title = f"Configuration of {run.path.name} ({scheme})"
            parts.append(details(title, f"<pre>{escape(run.config_text)}</pre>"))
    # the step at which a part of a run begins tells apart what is alike
    found = [{key: value for key, value in part.items() if key != "step"}
             for run in comparison.runs for part in run.environment or [{}]]  # fmt: skip
    environments = {json.dumps(part, sort_keys=True): part for part in found}
    for number, environment in enumerate(environments.values(), 1):
        name = "Environment" + (f" {number} of {len(environments)}" if len(environments) > 1 else "")
        content = pairs(flatten(environment).items()) if environment else "<p>No environment was recorded.</p>"
        parts.append(details(name, content))
    rows = [[run.path.name, *(plain_text(run.summary.get(key)) for key in STATUS)] for run in comparison.runs]
    parts.append(
        details(f"All {count(len(comparison.runs), 'run')} and how they ended", html_table(("run", *STATUS), rows))
    )
    return "".join(parts)
