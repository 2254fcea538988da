"""One self-contained HTML page about comparisons, simulations and probes: everything inline, every string escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from .style import COLOURS, GREYS, Look
from .vega import Chart, Spec, inline

Cells = Sequence[Sequence[str]]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser is told about the page: it may fetch nothing."""
SYMBOLS = {
    "circle": "M-1,0A1,1 0 1,0 1,0A1,1 0 1,0 -1,0Z", "square": "M-.9,-.9H.9V.9H-.9Z",
    "triangle-up": "M0,-1.1L1.1,.9H-1.1Z", "diamond": "M0,-1.2L1.2,0L0,1.2L-1.2,0Z",
    "triangle-down": "M0,1.1L1.1,-.9H-1.1Z", "cross": "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
}  # fmt: skip
"""The markers that Vega has by name, as paths for the legend."""


@dataclass
class Section:
    """A titled part of the page: text as HTML, or charts, of a class of the style sheet."""

    title: str
    content: list[str | list[Chart]]
    css: str = ""


@dataclass
class Part:
    """What one source (a comparison, a simulation, a probe) gives to a report."""

    source: str
    """The name of its directory."""
    title: str
    caption: str
    findings: list[tuple[str, str]]
    """A sentence of result per series."""
    keys: Mapping[str, str]
    """Of each series, what it is shown as: its scheme, or its own name."""
    sections: list[Section]
    limits: Sequence[str] = ()
    """What a reader must know before believing the numbers, as sentences."""
    limits_title: str = ""
    """Their title."""
    without_limits: str = ""
    """What is said where there are none."""
    tables: Sequence[tuple[Sequence[str], Cells]] = ()
    records: list[dict[str, Any]] = field(default_factory=list)
    """What CSV has the numbers of, one row per series."""
    figures: dict[str, Spec] = field(default_factory=dict)


def page(title: str, parts: Sequence[Part], styles: Mapping[str, Look]) -> str:
    """The whole page. `styles`: the look of each entry of the legend, which hides what it stands for everywhere."""
    names = list(styles)
    resources = files("geonorm.report")
    css = resources.joinpath("page.css").read_text(encoding="utf-8") + _colours(list(styles.values()))
    script = resources.joinpath("page.js").read_text(encoding="utf-8")
    alone = len(parts) == 1
    body = "".join(_part(part, names, alone) for part in parts)
    first = _head(parts[0], names) if alone else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{css}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{first}</header>"
        f"{_legend(styles)}<main>{body}</main>"
        '<div id="tip" role="status" aria-live="polite" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


def _head(part: Part, names: Sequence[str]) -> str:
    """Caption and findings of a part: what it is about, and what came out, before everything else."""
    items = "".join(
        f'<li data-s="{names.index(part.keys[series])}">{_swatch(names.index(part.keys[series]))}'
        f"{escape(sentence)}.</li>"
        for series, sentence in part.findings
    )
    found = f'<ul class="headlines">{items}</ul>' if items else ""
    return f'<p class="caption">{escape(part.caption)}</p>{found}{limits_box(part)}'


def _part(part: Part, names: Sequence[str], alone: bool) -> str:
    place = {series: names.index(key) for series, key in part.keys.items()}
    head = "" if alone else f'<section class="part"><h2>{escape(part.title)}</h2>{_head(part, names)}</section>'
    caption = f'<p class="caption">{escape(part.caption)}</p>'
    level = "h2" if alone else "h3"
    return head + "".join(
        f"<section><{level}>{escape(section.title)}</{level}>{caption}"
        + "".join(item if isinstance(item, str) else _charts(item, place, section.css) for item in section.content)
        + "</section>"
        for section in part.sections
    )


def _charts(charts: Sequence[Chart], place: Mapping[str, int], css: str) -> str:
    drawn = "".join(
        f"<figure><figcaption><strong>{escape(chart.title)}</strong> {escape(chart.note)}</figcaption>"
        f"{inline(chart, place)}</figure>"
        for chart in charts
    )
    return f'<div class="charts {css}">{drawn}</div>'


def _legend(styles: Mapping[str, Look]) -> str:
    """One legend for all charts; each entry is a button that hides what it stands for everywhere."""
    buttons = "".join(
        f'<button type="button" data-toggle="{index}" aria-pressed="true">'
        f'<svg viewBox="0 0 30 14" aria-hidden="true"><path class="line s{index}" d="M1,7H29"/>'
        f'<path class="mark s{index}" transform="translate(15,7) scale(4)" '
        f'd="{SYMBOLS.get(look.marker, look.marker)}"/></svg>{escape(name)}</button>'
        for index, (name, look) in enumerate(styles.items())
    )
    return f'<nav aria-label="Press to hide or show">{buttons}</nav>'


def html_table(titles: Sequence[str], rows: Cells, place: Mapping[str, int] | None = None) -> str:
    """A table that scrolls on its own where the screen is narrow; its rows begin with what they are about, and with
    `place` (the entries of the legend) with the colour of that."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = ""
    for name, *cells in rows:
        index = (place or {}).get(name)
        mark, swatch = ("", "") if index is None else (f' data-s="{index}"', _swatch(index))
        body += f'<tr{mark}><th scope="row">{swatch}{escape(name)}</th>'
        body += "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _swatch(index: int) -> str:
    return f'<span class="swatch s{index}"></span>'


def details(title: str, content: str) -> str:
    """What opens when it is pressed."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def pairs(items: Iterable[tuple[str, Any]]) -> str:
    """Names with their values."""
    listed = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(plain_text(value))}</dd></div>" for key, value in items)
    return f"<dl>{listed}</dl>"


def bullets(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def limits_box(part: Part) -> str:
    """What a reader must know first, beside the findings, or that there is nothing."""
    if not part.limits:
        return f'<p class="limits">{part.without_limits}</p>' if part.without_limits else ""
    return f'<aside class="limits"><strong>{part.limits_title}</strong>{bullets(part.limits)}</aside>'


def plain_text(value: Any) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _colours(styles: Sequence[Look]) -> str:
    """Colours and dashes of the legend's entries, and the palette of the charts, for light and dark."""
    palette = [*COLOURS.values(), *GREYS]
    light = "".join(f".s{i}{{--c:var(--{s.light[1:]});--d:{s.dash or 'none'}}}" for i, s in enumerate(styles))
    day, night = ("".join(f"--{pair[0][1:]}:{pair[which]};" for pair in palette) for which in (0, 1))
    return f":root{{{day}}}{light}@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
