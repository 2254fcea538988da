"""Forest plots of the claims."""

from collections import Counter
from collections.abc import Callable, Sequence

from geonorm.report.charts import Chart, Strip, figure, strip_chart
from geonorm.report.style import COLOURS, Look

from .claims import Claim, Values
from .pages import Book, plain_text, tokens

WIDE = 0.5
"""Nats: longer intervals would press all others of a figure into a line."""
UNIT = "difference, nats per token; left of 0 the first is better"
SETTING, POOL = Look(*COLOURS["ink"], "", "circle"), Look(*COLOURS["vermilion"], "", "diamond")


def charts(book: Book, key: str) -> Values:
    """The forest plot of a question: a chart a pool, or one of all its claims."""
    words = book.words["questions"][key]
    by, pools = words.get("by", "where"), words.get("pools", ())
    groups = {pool: book.values[pool]["claims"] for pool in pools} or book.groups(book.members(key), by)
    label = book.what if by == "where" and not pools else book.where
    looks: dict[str, Look] = {}
    charts: list[Chart] = []
    for group, names in groups.items():
        rows = ((name, book.values[name]) for name in names)
        names = [name for name, row in rows if row["low"] is not None and row["high"] - row["low"] < WIDE]
        sizes = {tokens(book.size(name)) for name in names}
        strips = strips_of(book, names, label, looks, len(sizes) > 1)
        if pools:
            strips += pooled_strips(book, group, looks)
            title = f"{book.words['pools'][group]['what']}: {book.values[group]['verdict']}"
        else:
            counts = Counter(book.values[name]["verdict"] for name in names)
            where = plain_text(group) + (sizes.pop() if len(sizes) == 1 else "")
            title = f"{where}: {', '.join(f'{n} {verdict}' for verdict, n in counts.most_common())}"
        if strips:
            charts.append(strip_chart(title, UNIT, strips, looks, rule=0.0, width=700))
    return figure(charts, columns=1)


def strips_of(
    book: Book, names: Sequence[str], label: Callable[[Claim], str], looks: dict[str, Look], sizes: bool
) -> list[Strip]:
    """The rows of a chart, ordered by tokens per parameter, named where these differ, and parameters."""
    rows = []
    for name in sorted(names, key=lambda name: (book.size(name) or 0.0, book.values[name]["parameters"] or 0)):
        row = book.values[name]
        text = plain_text(label(book.evidence.claims[name])) + (tokens(book.size(name)) if sizes else "")
        dots = [(gap, f"seed {seed}") for seed, gap in row["pairs"].items()]
        ends = row["mean"], row["low"], row["high"]
        rows.append(Strip(add_look(looks, text, SETTING), book.difference(name), dots, *ends))
    return rows


def pooled_strips(book: Book, pool: str, looks: dict[str, Look]) -> list[Strip]:
    row = book.values[pool]
    pooled, expected = (add_look(looks, text, POOL) for text in ("pooled", "expected in one more setting"))
    return [
        Strip(pooled, book.difference(pool), [], row["mean"], row["low"], row["high"]),
        Strip(expected, book.form(pool, "expected"), [], row["mean"], row["expected_low"], row["expected_high"]),
    ]


def add_look(looks: dict[str, Look], label: str, look: Look) -> str:
    """No two rows of a figure may have one name: blanks of no width tell them apart."""
    while label in looks:
        label += "\u200b"
    looks[label] = look
    return label
