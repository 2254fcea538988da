"""One self-contained HTML page about comparisons, simulations and probes: everything inline, every string escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .charts import Chart, inline
from .style import COLOURS, GREYS, Look

if TYPE_CHECKING:
    from .study import Study

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser is told about the page: it may fetch nothing."""
SYMBOLS = {
    "circle": "M-1,0A1,1 0 1,0 1,0A1,1 0 1,0 -1,0Z", "square": "M-.9,-.9H.9V.9H-.9Z",
    "triangle-up": "M0,-1.1L1.1,.9H-1.1Z", "diamond": "M0,-1.2L1.2,0L0,1.2L-1.2,0Z",
    "triangle-down": "M0,1.1L1.1,-.9H-1.1Z", "cross": "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
}  # fmt: skip
"""The markers that Vega has by name, as paths for the legend."""


def page(studies: Sequence[Study], styles: Mapping[str, Look]) -> str:
    """The whole page. styles: the look of each entry of the legend; pressing an entry hides its series everywhere."""
    names, alone = list(styles), len(studies) == 1
    resources = files("geonorm.report")
    css = resources.joinpath("page.css").read_text(encoding="utf-8") + _colours(list(styles.values()))
    script = resources.joinpath("page.js").read_text(encoding="utf-8")
    title = escape(", ".join(dict.fromkeys(study.title for study in studies)))
    places = [{series: names.index(key) for series, key in study.keys.items()} for study in studies]
    body = "".join(_study(study, place, alone) for study, place in zip(studies, places, strict=True))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{title}</title><style>{css}</style></head><body>"
        f"<header><h1>{title}</h1>{_head(studies[0], places[0]) if alone else ''}</header>"
        f"{_legend(styles)}<main>{body}</main>"
        '<div id="tip" role="status" aria-live="polite" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


def _head(study: Study, place: Mapping[str, int]) -> str:
    """Caption, findings and limits, before everything else."""
    items = "".join(
        f'<li data-s="{place[series]}">{_swatch(place[series])}{escape(sentence)}.</li>'
        for series, sentence in study.findings()
    )
    findings = f'<ul class="headlines">{items}</ul>' if items else ""
    if limits := study.limits():
        box = f'<aside class="limits"><strong>{study.limits_title}</strong>{bullets(limits)}</aside>'
    else:
        box = f'<p class="limits">{study.without_limits}</p>' if study.without_limits else ""
    return f'<p class="caption">{escape(study.caption())}</p>{findings}{box}'


def _study(study: Study, place: Mapping[str, int], alone: bool) -> str:
    head = "" if alone else f'<section class="part"><h2>{escape(study.title)}</h2>{_head(study, place)}</section>'
    caption = f'<p class="caption">{escape(study.caption())}</p>'
    level = "h2" if alone else "h3"
    return head + "".join(
        f"<section><{level}>{escape(section.title)}</{level}>{caption}"
        + "".join(item if isinstance(item, str) else _charts(item, place, section.css) for item in section.content)
        + "</section>"
        for section in study.sections(place)
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


def html_table(titles: Sequence[str], rows: Sequence[Sequence[str]], place: Mapping[str, int] | None = None) -> str:
    """A table that scrolls by itself on a narrow screen. place: by series, its legend entry, which colours its row."""
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
    """Content that opens when its title is pressed."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def pairs(items: Iterable[tuple[str, Any]]) -> str:
    """A list of names with their values."""
    entries = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(plain_text(value))}</dd></div>" for key, value in items)
    return f"<dl>{entries}</dl>"


def bullets(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def plain_text(value: Any) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _colours(styles: Sequence[Look]) -> str:
    """Colours and dashes of the legend's entries, and the palette of the charts, for light and dark."""
    palette = [*COLOURS.values(), *GREYS]
    light = "".join(f".s{i}{{--c:var(--{s.light[1:]});--d:{s.dash or 'none'}}}" for i, s in enumerate(styles))
    day, night = ("".join(f"--{pair[0][1:]}:{pair[which]};" for pair in palette) for which in (0, 1))
    return f":root{{{day}}}{light}@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
