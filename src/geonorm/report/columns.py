"""Tables as lines of text, and of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap


def align(table: Sequence[Sequence[str]], numbers: bool = True) -> list[str]:
    """Columns of equal width: the first flush left, the others flush right if they are numbers."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        cells = [
            cell.rjust(width) if numbers else cell.ljust(width) for cell, width in zip(others, widths[1:], strict=True)
        ]
        lines.append("  ".join((first.ljust(widths[0]), *cells)).rstrip())
    return lines


def fit_width(table: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The table with its first column cut so that aligned lines are no wider."""
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    short = cut_apart([first for first, *_ in table], max(6, width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    return [[short[first], *row] for first, *row in table]


def cut_apart(names: Iterable[str], room: int) -> dict[str, str]:
    """Each name in at most so many letters. Names that would be one begin alike, and go on where they part; where that
    still tells them not apart, they are numbered."""
    plain = {name: _cut(name, room) for name in names}
    found: dict[str, str] = {}
    for name, text in plain.items():
        alike = [other for other in plain if plain[other] == text]
        if len(alike) > 1:
            start = next(place for place, letters in enumerate(zip_longest(*alike)) if len(set(letters)) > 1)
            word = max(name.rfind(" ", 0, start), name.rfind("(", 0, start)) + 1
            start = word if start - word < room // 3 else start
            text = f"{name[: room // 3]}…{_cut(name[start:], room - room // 3 - 1)}"
            if text in found.values():
                mark = f"…{len(found) + 1}"
                text = text[: room - len(mark)] + mark
        found[name] = text
    return found


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else name[: room - 1] + "…"


def wrap_all(texts: Iterable[str], width: int) -> list[str]:
    """Texts as lines of at most that width, those after the first of each indented; an empty text is an empty line."""
    return [line for text in texts for line in wrap(text, width, subsequent_indent="  ") or [""]]


def markdown_lines(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table for a README, of which no text can break out of its cell."""
    escapes = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " "})
    head = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return [*head, *("| " + " | ".join(cell.translate(escapes) for cell in row) + " |" for row in rows)]
