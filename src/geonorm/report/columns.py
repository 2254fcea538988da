"""Tables as lines of text, and of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


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


def fit(table: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The table with its first column cut so that aligned lines are no wider."""
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    room = max(6, width - sum(widths[1:]) - 2 * (len(widths) - 1))
    return [[first if len(first) <= room else first[: room - 1] + "…", *row] for first, *row in table]


def markdown_lines(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table for a README, of which no text can break out of its cell."""
    escapes = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " "})
    head = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return [*head, *("| " + " | ".join(cell.translate(escapes) for cell in row) + " |" for row in rows)]
