"""The report in other forms than the page: tables for LaTeX, numbers as CSV, figures as one PDF."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from .page import Part
from .vega import CONFIG

MARKS = {"latex": "% geonorm report", "csv": "source,", "pdf": "%PDF"}
"""How each of them begins."""
ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "²": "$^2$", "–": "--",
    "·": r"$\cdot$", "°": r"$^\circ$", "γ": r"$\gamma$", "β": r"$\beta$", "θ": r"$\theta$", "√": r"$\sqrt{}$",
    "⟨": r"$\langle$", "⟩": r"$\rangle$", **{character: "\\" + character for character in "&%$#_{}"},
}  # fmt: skip


def tex(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)


def latex(parts: Sequence[Part]) -> str:
    """Each table as a booktabs tabular, with its caption, its findings and what limits them above as comments."""
    lines = [f"{MARKS['latex']}: \\usepackage{{booktabs}}"]
    for part in parts:
        lines += ["", f"% {part.title}", f"% {part.caption}", *(f"% {sentence}" for _, sentence in part.findings)]
        lines += [f"% {part.limits_title}: {limit}" for limit in part.limits]
        for titles, rows in part.tables:
            head, *body = [" & ".join(map(tex, row)) + r" \\" for row in (titles, *rows)]
            lines += [rf"\begin{{tabular}}{{{'l' * len(titles)}}}", r"\toprule", head, r"\midrule", *body]
            lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(line.replace("\n", " ") for line in lines) + "\n"


def csv_text(parts: Sequence[Part]) -> str:
    """One row per scheme or model: the source it is from, every number the report has of it, and what limits them."""
    rows = [
        {"source": part.title, **{key: value for key, value in record.items() if not isinstance(value, dict | list)}}
        | {f"fit_{key}": value for key, value in (record.get("fit") or {}).items()}
        | ({"limits": " ".join(part.limits)} if part.limits else {})
        for part in parts
        for record in part.records
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def pdf(parts: Sequence[Part]) -> bytes:
    """Findings, and below them all figures, on one page."""
    import vl_convert

    columns = []
    for part in parts:
        said = [part.caption, *(f"{sentence}." for _, sentence in part.findings), *part.limits]
        figures = [{key: value for key, value in spec.items() if key != "config"} for spec in part.figures.values()]
        columns.append({"vconcat": figures, "spacing": 44, "title": {"text": part.title, "subtitle": said}})
    whole = {"vconcat": columns, "spacing": 70} if len(columns) > 1 else columns[0]
    return bytes(vl_convert.vegalite_to_pdf(whole | {"config": CONFIG, "padding": 30}))


WRITERS: dict[str, Callable[[Sequence[Part]], str | bytes]] = {"latex": latex, "csv": csv_text, "pdf": pdf}
