"""The report in other forms than the page: tables for LaTeX, numbers as CSV, figures as one PDF."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .charts import CONFIG
from .study import Study

ENDINGS = {"html": ".html", "latex": ".tex", "csv": ".csv", "pdf": ".pdf"}
"""The end of a file's name by format."""
ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "²": "$^2$", "–": "--",
    "·": r"$\cdot$", "°": r"$^\circ$", "γ": r"$\gamma$", "β": r"$\beta$", "θ": r"$\theta$", "√": r"$\sqrt{}$",
    "⟨": r"$\langle$", "⟩": r"$\rangle$", **{character: "\\" + character for character in "&%$#_{}"},
}  # fmt: skip

FORMULA = re.compile(r"[\t\r]|\s*[=@]|\s*[+-](?!\d*\.?\d+(e[+-]?\d+)?$)")
"""How a text begins that a spreadsheet computes, unless it is a number."""


def tex(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)


def latex(studies: Sequence[Study]) -> str:
    """Each table as a booktabs tabular; caption, findings and limits stand above it as comments."""
    lines = [r"% geonorm report: \usepackage{booktabs}"]
    for study in studies:
        lines += [
            "",
            f"% {study.title}",
            f"% {study.caption()}",
            *(f"% {sentence}" for _, sentence in study.findings()),
        ]
        lines += [f"% {study.limits_title}: {limit}" for limit in study.limits()]
        for titles, rows in study.tables().values():
            named = [[study.labels.get(row[0], row[0]), *row[1:]] for row in rows]
            head, *body = [" & ".join(map(tex, row)) + r" \\" for row in (titles, *named)]
            lines += [rf"\begin{{tabular}}{{{'l' * len(titles)}}}", r"\toprule", head, r"\midrule", *body]
            lines += [r"\bottomrule", r"\end{tabular}"]
    # a control character, such as \r, may end a line, and with it a comment
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines) + "\n"


def csv_text(studies: Sequence[Study]) -> str:
    """A row per scheme or model: its source, every number on it, and the limits."""
    rows = [
        {"source": study.title, **{key: value for key, value in record.items() if not isinstance(value, dict | list)}}
        | ({"limits": " ".join(study.limits())} if study.limits() else {})
        for study in studies
        for record in study.records()
    ]
    return write_csv(rows)


def write_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with all their columns."""
    buffer = io.StringIO()
    names = dict.fromkeys(key for row in rows for key in row)
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([as_text(value) for value in line] for line in [names, *(map(row.get, names) for row in rows)])
    return buffer.getvalue()


def as_text(value: Any) -> Any:
    """A cell that a spreadsheet shows as it is: an apostrophe before a text that it would compute."""
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def pdf(studies: Sequence[Study]) -> bytes:
    """Findings, and below them all figures, on one page."""
    import vl_convert

    columns = []
    for study in studies:
        prose = [study.caption(), *(f"{sentence}." for _, sentence in study.findings()), *study.limits()]
        figures = [{key: value for key, value in spec.items() if key != "config"} for spec in study.figures().values()]
        title = {} if study.bare else {"title": {"text": study.title, "subtitle": prose}}
        columns.append({"vconcat": figures, "spacing": 44, **title})
    whole = {"vconcat": columns, "spacing": 70} if len(columns) > 1 else columns[0]
    return bytes(vl_convert.vegalite_to_pdf(whole | {"config": CONFIG, "padding": 30}))


WRITERS: dict[str, Callable[[Sequence[Study]], str | bytes]] = {"latex": latex, "csv": csv_text, "pdf": pdf}
