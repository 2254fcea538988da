"""One self-contained HTML page about studies of all kinds: everything inline, every string escaped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape, unescape
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from .charts import BETWEEN, CONFIG, Chart
from .formats import write_csv
from .render import svg
from .study import Section, Study
from .style import Look, dark_rules
from .terms import anchor, glossary, linked

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page's Content-Security-Policy: a browser may fetch nothing for it."""
WIDTH, HEIGHT = 218, 165
"""Pixels inside the axes: with its labels a chart is as wide as a phone, and three stand in a row of a large screen."""

FOLDERS = re.compile(r"(?<![\w.:/<~-])/(?:[^\s/<>\"'&;,]+/)+")
"""Matches the folders of an absolute path, which are cut: the page does not say where its files were."""


def page(studies: Sequence[Study], styles: Mapping[str, Look]) -> str:
    """The whole page. styles: the look of each entry of the legend; pressing an entry hides its series everywhere."""
    names, resources, alone = list(styles), files("geonorm.report"), len(studies) == 1
    css, script = (resources.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    places = [{series: names.index(key) for series, key in study.keys.items()} for study in studies]
    title, contents, body = studies[0].headline(), "", ""
    head = (
        f'<p class="caption">{len(names)} series in {len(studies)} studies: '
        f"{', '.join(dict.fromkeys(study.what.lower() for study in studies))}</p>{_answers(studies, places)}"
    )
    if alone:
        head = _setting(studies[0]) + _answers(studies, places) + _limits(studies[0])
    for number, (study, place) in enumerate(zip(studies, places, strict=True), 1):
        prefix, level = ("", "h2") if alone else (f"study-{number}-", "h3")
        links = []
        if not alone:
            body += f'<section id="study-{number}" class="part"><h2>{linked(study.headline())}</h2>'
            body += f"{_setting(study)}{_limits(study)}</section>"
            links.append(f'<a href="#study-{number}"><strong>{escape(study.title)}</strong></a>')
        for section in study.sections(place):
            links.append(f'<a href="#{prefix}{anchor(section.title)}">{escape(section.title)}</a>')
            body += _section(section, place, prefix, level)
        contents += f"<li>{' '.join(links)}</li>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{css}{_colours(list(styles.values()))}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{FOLDERS.sub('', head)}</header>"
        f'<nav class="contents" aria-label="Contents"><ul>{contents}</ul></nav>{_legend(styles)}'
        f"<main>{FOLDERS.sub('', body)}{glossary(head + body)}</main>"
        '<div id="tip" role="status" aria-live="polite" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


def _section(section: Section, place: Mapping[str, int], prefix: str, level: str) -> str:
    """A section of a study: a heading, which links to itself, and its HTML and charts."""
    name, title = prefix + anchor(section.title), escape(section.title)
    link = f'<a class="anchor" href="#{name}" aria-label="Link to {title}">#</a>'
    body = "".join(
        item
        if isinstance(item, str)
        else f'<div class="charts {section.css}">{"".join(_figure(chart, place, prefix) for chart in item)}</div>'
        for item in section.content
    )
    return f'<section id="{name}"><{level}>{title}{link}</{level}>{body}</section>'


def _setting(study: Study) -> str:
    return f'<p class="caption">{escape(study.title)} · {escape(study.caption())}</p>'


def _answers(studies: Sequence[Study], places: Sequence[Mapping[str, int]]) -> str:
    """What all studies say of each entry of the legend."""
    sentences: dict[int, list[str]] = {}
    for number, (study, place) in enumerate(zip(studies, places, strict=True), 1):
        link = f'<a href="#study-{number}">{escape(study.what)}</a> · ' if len(studies) > 1 else ""
        for series, sentence in study.findings():
            sentences.setdefault(place[series], []).append(f"{link}{linked(sentence)}.")
    items = "".join(
        f'<li data-s="{index}">{_swatch(index)}{"<br>".join(each)}</li>' for index, each in sentences.items()
    )
    return f'<ul class="headlines">{items}</ul>' if items else ""


def _limits(study: Study) -> str:
    """What a reader must know before believing the numbers."""
    if limits := study.limits():
        return f'<aside class="limits"><strong>{study.limits_title}</strong>{bullets(limits)}</aside>'
    return f'<p class="limits">{study.without_limits}</p>' if study.without_limits else ""


def _figure(chart: Chart, place: Mapping[str, int], prefix: str) -> str:
    """A chart with its views, what it says, how to read it and what follows, and its downloads."""
    name, views = prefix + anchor(chart.name), [chart, *chart.views]
    radios, pictures = "", ""
    for index, view in enumerate(views):
        radios += f'<label><input type="radio" name="{name}-view"{"" if index else " checked"}>{view.view}</label>'
        pictures += picture(view, place)
    switch = f'<fieldset class="views"><legend>View</legend>{radios}</fieldset>' if len(views) > 1 else ""
    meaning = f" <em>{escape(chart.meaning)}</em>" if chart.meaning else ""
    return (
        f'<figure id="{name}"><figcaption><strong>{linked(chart.title)}</strong> {linked(chart.note)}{meaning}'
        f'</figcaption>{switch}{pictures}<label class="large"><input type="checkbox"> large</label></figure>'
    )


def picture(chart: Chart, place: Mapping[str, int]) -> str:
    """A chart, with links that save its numbers as CSV and itself as SVG."""
    file = anchor(chart.name)
    data = quote(FOLDERS.sub("", write_csv(chart.table())), safe=",.-")
    return (
        f'<div class="view">{inline(chart, place)}<p class="files"><a download="{file}.csv" '
        f'href="data:text/csv,{data}">CSV</a> <button type="button" data-svg="{file}">SVG</button></p></div>'
    )


def inline(chart: Chart, place: Mapping[str, int]) -> str:
    """The chart as an element of the page: each mark says its label when pointed at (`data-tip`) and to which entry of
    the page's legend its series belongs (`data-s`, from `place`), which hides it."""
    if chart.name and chart.y and chart.y.visible:
        chart = replace(chart, width=WIDTH, height=HEIGHT)
    text = svg(chart.spec() | {"config": CONFIG | {"background": "transparent"}})

    def mark(match: re.Match[str]) -> str:
        name, between, label = unescape(match[1]).partition(BETWEEN)
        index = f' data-s="{place[name]}"' if between and name in place else ""
        return index + (f' data-tip="{escape(label)}"' if label else "")

    text = re.sub(r' aria-label="([^"]*)"', mark, text)
    text = re.sub(r' (?:aria-\w+|role|class)="[^"]*"', "", text)
    size = re.search(r'viewBox="[^"]*"', text)
    role = f'role="img" tabindex="0" aria-label="{escape(chart.title)}"'
    return re.sub(r"^<svg[^>]*>", f'<svg class="chart" {size[0] if size else ""} {role}>', text)


def _legend(styles: Mapping[str, Look]) -> str:
    """One legend for all charts; each entry is a button that hides what it stands for everywhere."""
    buttons = "".join(
        f'<button type="button" data-toggle="{index}" aria-pressed="true">{_swatch(index)}{escape(name)}</button>'
        for index, name in enumerate(styles)
    )
    return f'<nav class="legend" aria-label="Press to hide or show">{buttons}</nav>'


def html_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], place: Mapping[str, int] | None = None,
    more: Collection[str] = (),
) -> str:  # fmt: skip
    """A table that scrolls by itself on a narrow screen. place: by series, its legend entry, which colours its row.
    more: columns behind a switch."""
    hidden = [' class="more"' if title in more else "" for title in titles]
    head = "".join(f'<th scope="col"{css}>{linked(title)}</th>' for title, css in zip(titles, hidden, strict=True))
    body = ""
    for name, *cells in rows:
        index = (place or {}).get(name)
        mark, swatch = ("", "") if index is None else (f' data-s="{index}"', _swatch(index))
        body += f'<tr{mark}><th scope="row">{swatch}{escape(name)}</th>'
        body += "".join(f"<td{css}>{linked(cell)}</td>" for cell, css in zip(cells, hidden[1:], strict=True)) + "</tr>"
    switch = '<label class="switch"><input type="checkbox"> all columns</label>' if any(hidden) else ""
    return (
        f'<div class="table">{switch}'
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table by {escape(titles[0])}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


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
    return "<ul>" + "".join(f"<li>{linked(sentence)}</li>" for sentence in sentences) + "</ul>"


def plain_text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _colours(styles: Sequence[Look]) -> str:
    """Colours of the legend's entries, and those of the charts on dark paper."""
    hollow = ";background:none;border:3px solid var(--c)"
    light = "".join(f".s{i}{{--c:{look.light}{hollow * look.hollow}}}" for i, look in enumerate(styles))
    dark = "".join(f".s{i}{{--c:{look.dark}}}" for i, look in enumerate(styles))
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}{dark_rules()}}}"
