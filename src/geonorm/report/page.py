"""The report as one HTML page: everything inline, nothing fetched, every string escaped."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..lab.runs.statistics import Row
from . import charts
from .checks import limits
from .runs import Comparison, Record, Run, flatten
from .style import Look, looks, si
from .svg import SHAPES
from .tables import COLUMNS, LIMITS, Column, count, headline

PER_RUN = {"scheme", "seed", "lr", "out", "name", "phase"}  # settings that differ between runs by design
STATUS = ("scheme", "seed", "lr", "phase", "status", "val_loss")
NUMERIC = {"n", "memory", "parameters"}


def page(comparison: Comparison) -> str:
    """The whole page."""
    styles = looks(comparison.schemes)
    title = f"{comparison.source}: {len(styles)} residual schemes compared"
    training = [*charts.losses(comparison), *charts.gaps(comparison), *charts.learning_rates(comparison)]
    sections = [
        (
            "Noise and differences",
            _charts([*charts.noise(comparison), *charts.forest(comparison)], NO_LOSS, "wide"),
        ),
        ("Table", _table(comparison)),
        ("Training", _charts(training, NO_METRICS)),
        ("Geometry of the stream", _charts(charts.geometry(comparison), NO_TRACE)),
        ("Stability", _stability(comparison)),
        ("Recipe", _recipe(comparison)),
        ("Repeat it", _repeat(comparison)),
    ]
    caption = f'<p class="caption">{escape(summary_line(comparison))}</p>'
    body = "".join(f"<section><h2>{escape(name)}</h2>{caption}{content}</section>" for name, content in sections)
    resources = files("geonorm.report")
    css = resources.joinpath("page.css").read_text(encoding="utf-8") + _colours(list(styles.values()))
    script = resources.joinpath("page.js").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{css}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{caption}{_headlines(comparison)}{_limits(comparison)}</header>"
        f"{_legend(styles)}<main>{body}</main>"
        '<div id="tip" role="status" aria-live="polite" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


NO_LOSS = "No run finished with a validation loss, so there is nothing to compare yet."
NO_METRICS = "No metrics were recorded in these runs."
NO_TRACE = "No trace was recorded in these runs, so the geometry of the stream cannot be shown."


def summary_line(comparison: Comparison) -> str:
    """Size, depth, tokens, number of seeds and data: the caption of everything."""
    rows = comparison.rows
    sizes = [row["parameters"] for row in rows if row["parameters"]]
    tokens = [row["tokens"] for row in rows if row["tokens"] and row["n"]]
    seeds = sorted({row["n"] for row in rows})
    parts = [
        f"{si(max(sizes))} parameters" if sizes else "size unknown",
        count(comparison.depth, "layer") if comparison.depth else "depth unknown",
        f"{si(max(tokens))} tokens per run" if tokens else "tokens unknown",
        count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds",
        f"data {comparison.data}" if comparison.data else "data not named",
    ]
    return " · ".join(parts)


def _headlines(comparison: Comparison) -> str:
    items = "".join(
        f'<li data-s="{index}"><span class="swatch s{index}"></span>{escape(headline(row))}.</li>'
        for index, row in enumerate(comparison.rows)
    )
    return f'<ul class="headlines">{items}</ul>'


def _limits(comparison: Comparison) -> str:
    found = limits(comparison)
    if not found:
        return '<p class="limits">No departure from the comparison protocol was found in these runs.</p>'
    return f'<aside class="limits"><h2>{LIMITS}</h2>{_list(found)}</aside>'


def _legend(styles: dict[str, Look]) -> str:
    """One legend for all charts; each entry is a button that hides its scheme everywhere."""
    buttons = "".join(
        f'<button type="button" data-toggle="{index}" aria-pressed="true">'
        f'<svg viewBox="0 0 30 14" aria-hidden="true"><path class="line s{index}" d="M1,7H29"/>'
        f'<path class="mark s{index}" transform="translate(15,7)" d="{SHAPES[look.marker]}"/></svg>'
        f"{escape(scheme)}</button>"
        for index, (scheme, look) in enumerate(styles.items())
    )
    return f'<nav aria-label="Schemes: press to hide or show">{buttons}</nav>'


def _charts(figures: Sequence[charts.Figure], otherwise: str, css: str = "") -> str:
    if not figures:
        return f"<p>{escape(otherwise)}</p>"
    drawn = "".join(
        f"<figure><figcaption><strong>{escape(figure.title)}</strong> {escape(figure.note)}</figcaption>"
        f"{figure.chart}</figure>"
        for figure in figures
    )
    return f'<div class="charts {css}">{drawn}</div>'


def _table(comparison: Comparison) -> str:
    shown = [column for column in COLUMNS if any(column.cell(row) != "–" for row in comparison.rows)]
    rows = "".join(
        f'<tr data-s="{index}">{"".join(_cell(column, row, index) for column in shown)}</tr>'
        for index, row in enumerate(comparison.rows)
    )
    note = (
        "Mean ± standard deviation over seeds; differences are paired by seed, with their 95 % interval; p of each "
        f"alone, and by Holm for all {comparison.rows[0]['family']}; moderated: the difference of the means, variances "
        "drawn towards that of all schemes as far as their spreads agree; fitted minimum: of a parabola in log rate "
        "through all full runs, ± standard error; spikes (of the loss / of the gradient norm) are summed over the n "
        "runs. Speeds are not compared: runs share a machine (geonorm bench train measures them in turns)."
    )
    return f"{_grid([column.title for column in shown], rows)}<p>{note}</p>"


def _grid(titles: Sequence[str], rows: str) -> str:
    """A table that scrolls on its own where the screen is narrow."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(column: Column, row: Row, index: int) -> str:
    text = escape(column.cell(row))
    if column.title == "scheme":
        return f'<th scope="row"><span class="swatch s{index}"></span>{text}</th>'
    return f'<td class="{"right" if column.title in NUMERIC else ""}">{text}</td>'


def _stability(comparison: Comparison) -> str:
    sentences = [
        f"{row['scheme']}: {count(row['spikes'], 'loss spike')} and "
        f"{count(row['grad_spikes'], 'gradient spike')} "
        f"in {count(row['n'], 'finished run')}" + (f"; {row['failed']} did not finish." if row["failed"] else ".")
        for row in comparison.rows
    ]
    rule = "A spike is a value more than 6 standard deviations above the mean of the 100 steps before it."
    return f"<p>{rule}</p>{_list(sentences)}{_charts(charts.gradients(comparison), NO_METRICS)}"


def _recipe(comparison: Comparison) -> str:
    """Settings that all runs share, and where each scheme departs from them."""
    if not any(run.config for run in comparison.runs):
        return "<p>No configuration was stored with these runs.</p>"
    flat = [dict(flatten(run.config)) for run in comparison.runs]
    keys = dict.fromkeys(key for config in flat for key in config if key.split(".")[-1] not in PER_RUN)
    shared = [(key, flat[0].get(key)) for key in keys if all(c.get(key) == flat[0].get(key) for c in flat)]
    own = [key for key in keys if key not in dict(shared)]
    title = f"Shared by all runs: {count(len(shared), 'setting')}"
    parts = [f"<details><summary>{title}</summary>{_pairs(shared)}</details>"]
    if own:
        body = "".join(
            f'<tr><th scope="row">{escape(key)}</th>'
            + "".join(f"<td>{escape(_values(comparison.of(scheme), key))}</td>" for scheme in comparison.schemes)
            + "</tr>"
            for key in own
        )
        parts.append("<p>Where the runs differ, besides scheme, seed and learning rate:</p>")
        parts.append(_grid(["setting", *comparison.schemes], body))
    else:
        parts.append("<p>The runs differ in nothing but scheme, seed and learning rate.</p>")
    asked = _own_recipes(comparison)
    return "".join(parts) + (_list(asked) if asked else "")


def _own_recipes(comparison: Comparison) -> list[str]:
    """What each scheme's paper asks for beside the shared recipe, and whether these runs did it."""
    sentences = []
    for scheme in comparison.schemes:
        for run in comparison.of(scheme)[:1]:
            asked = run.summary.get("paper_recipe")
            if asked:
                settings = ", ".join(f"{key} {_plain(value)}" for key, value in asked.items())
                used = "applied here" if run.summary.get("own_recipe") else "not applied here"
                sentences.append(f"{scheme}: its paper asks for {settings} ({used}).")
    return sentences


def _values(runs: Iterable[Run], key: str) -> str:
    values = dict.fromkeys(_plain(dict(flatten(run.config)).get(key)) for run in runs)
    return ", ".join(values)


def _repeat(comparison: Comparison) -> str:
    """Commands for the directory that the runs were started in: what they name, data above all, is relative to it."""
    parts = ["<p>In the directory in which these runs were started:</p>"]
    if comparison.command:
        parts.append(f"<p>The whole comparison:</p><pre>{escape(comparison.command)}</pre>")
    run = comparison.drawn(comparison.baseline)[0]
    config = Path(str(run.config.get("out") or run.path)) / "config.yaml"
    again = shlex.join(["geonorm", "train", "--config", str(config), "--out", "NEW"])
    parts.append("<p>One run, from the configuration stored in its directory:</p>")
    parts.append(f"<pre>{escape(again)}</pre>")
    for scheme in comparison.schemes:
        run = comparison.drawn(scheme)[0]
        if run.config_text:
            parts.append(
                f"<details><summary>Configuration of {escape(run.path.name)} ({escape(scheme)})</summary>"
                f"<pre>{escape(run.config_text)}</pre></details>"
            )
    found = [part for run in comparison.runs for part in run.environment or [{}]]
    environments = {json.dumps(part, sort_keys=True): part for part in map(_alike, found)}
    for number, environment in enumerate(environments.values(), 1):
        name = "Environment" + (f" {number} of {len(environments)}" if len(environments) > 1 else "")
        content = _pairs(list(flatten(environment))) if environment else "<p>No environment was recorded.</p>"
        parts.append(f"<details><summary>{name}</summary>{content}</details>")
    statuses = "".join(_status(run.summary, run.path.name) for run in comparison.runs)
    parts.append(
        f"<details><summary>All {count(len(comparison.runs), 'run')} and how they ended</summary>"
        f"{_grid(('run', *STATUS), statuses)}</details>"
    )
    return "".join(parts)


def _alike(environment: Record) -> Record:
    """What may be the same for several parts of several runs: not the step at which one begins."""
    return {key: value for key, value in environment.items() if key != "step"}


def _status(summary: Record, name: str) -> str:
    cells = [
        name,
        *(_plain(summary.get(key)) for key in STATUS),
    ]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _pairs(pairs: Sequence[tuple[str, Any]]) -> str:
    items = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(_plain(value))}</dd></div>" for key, value in pairs)
    return f"<dl>{items}</dl>"


def _plain(value: Any) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _list(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _colours(styles: Sequence[Look]) -> str:
    """The colour and dashes of each scheme as CSS, for light and dark."""
    light = "".join(f".s{i}{{--c:{s.light};--d:{s.dash or 'none'}}}" for i, s in enumerate(styles))
    dark = "".join(f".s{i}{{--c:{s.dark}}}" for i, s in enumerate(styles))
    band = 0.15 if len(styles) <= 5 else 0.07
    return f":root{{--band:{band}}}{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"
