"""Tables as lines of text, and the cells of a comparison's row.

`rich` is not used here: aligning the columns takes six lines, and these modules load without it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..lab.runs.records import ComparisonRow
from ..lab.statistics.comparison import significant
from ..lab.statistics.moderated import Estimate
from ..lab.statistics.synthesis import judge, pool
from .style import rate, si, signed

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Titles of the columns, and rows of cells."""
WIDTH = 100


def align(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first flush left, the others flush right.

    >>> align([["scheme", "n"], ["pre", "12"]])
    ['scheme   n', 'pre     12']
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join((first.ljust(widths[0]), *cells)))
    return lines


def fit_width(table: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The table with the names in its first column shortened so that aligned lines fit the width."""
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    short = cut_apart([first for first, *_ in table], max(6, width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    return [[short[first], *row] for first, *row in table]


def cut_apart(names: Iterable[str], room: int) -> dict[str, str]:
    """Names of at most `room` letters, cut in the middle; numbered where two would be the same.

    >>> list(cut_apart(["pre", "geonorm(decay=sqrt, alpha=2)"], 13).values())
    ['pre', 'geon…alpha=2)']
    """
    short: dict[str, str] = {}
    for name in dict.fromkeys(names):
        text = name if len(name) <= room else f"{name[: room // 3]}…{name[room // 3 + 1 - room :]}"
        if text in short.values():
            mark = f"…{len(short) + 1}"
            text = text[: room - len(mark)] + mark
        short[name] = text
    return short


def count(n: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def count_seeds(rows: Sequence[ComparisonRow]) -> str:
    """The seeds behind each row: 3 seeds, 2 to 5 seeds."""
    seeds = sorted({row.n for row in rows})
    return count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"


def endings(row: ComparisonRow) -> str:
    """How the runs that did not finish ended: "2 diverged, 1 failed"."""
    return ", ".join(f"{n} {status}" for status, n in row.statuses.items() if status != "finished")


def unfinished(row: ComparisonRow) -> str:
    """Why a scheme has no result; its tuning runs may have finished."""
    why = endings(row)
    return f"no {'final ' if 'finished' in row.statuses else ''}run finished" + (f" ({why})" if why else "")


def spread(row: ComparisonRow) -> str:
    """Mean ± standard deviation of the validation loss over seeds."""
    return formatted(row.val_loss_mean, ".4f") + ("" if row.val_loss_std is None else f" ± {row.val_loss_std:.4f}")


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """−0.030 to −0.012"""
    return "" if low is None or high is None else f"{signed(low, digits)} to {signed(high, digits)}"


def with_interval(value: float | None, low: float | None, high: float | None, digits: int = 3) -> str:
    """A signed value and its 95 % interval: −0.021 (−0.030 to −0.012)."""
    if value is None:
        return "–"
    return signed(value, digits) + (f" ({ends})" if (ends := interval(low, high, digits)) else "")


def ratio_text(value: float | None, low: float | None, high: float | None) -> str:
    """A ratio with its interval: 1.45 (1.40 to 1.50)."""
    return "–" if value is None else f"{value:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")


def decimals(row: ComparisonRow) -> int:
    """Decimals that leave two figures of the interval's width."""
    low, high = row.difference_low, row.difference_high
    width = abs(row.difference or 0) if low is None or high is None else high - low
    if width >= 0.01:
        return 3
    return 4 if width >= 0.001 else 5


def paired_difference(row: ComparisonRow) -> str:
    """The difference to the baseline paired by seed, with its interval."""
    if row.scheme == row.baseline:
        return "baseline" if row.n else "–"
    return with_interval(row.difference, row.difference_low, row.difference_high, decimals(row))


def pool_table(names: Sequence[str], rows: Sequence[ComparisonRow], setting: str) -> Table:
    """Each scheme's difference to the baseline as a random-effects mean over the rows that have an interval."""
    lines = []
    for scheme in names:
        if pooled := pool(
            [
                Estimate(row.difference or 0.0, row.difference_std**2 / row.pairs, row.pairs - 1)
                for row in rows
                if row.scheme == scheme and row.difference_std
            ]
        ):
            ends = with_interval(*pooled.mean[:3]), interval(pooled.low, pooled.high)
            lines.append([scheme, str(pooled.n), *ends, judge(pooled.mean)])
    return ["scheme", f"{setting}s", "pooled difference (95 %)", f"in one more {setting}", "verdict"], lines


def verdict(row: ComparisonRow) -> str:
    """Resolved if 0 lies outside the interval, by itself and as one of its family."""
    if row.scheme == row.baseline or row.difference is None:
        return "–"
    if row.resolved:
        return "resolved" if significant(row.p_holm) else "resolved, not after Holm"
    return f"equal within {row.margin:g}" if row.equal else "not resolved"


def chances(p: float | None, p_holm: float | None) -> str:
    """p by itself, and adjusted by Holm for its family."""
    return "–" if p is None else f"{p:.2g}, {p_holm:.2g}"


def learning_rate(row: ComparisonRow) -> str:
    """The best learning rate, and where it lies in the grid that was tried."""
    if row.lr is None:
        return "–"
    return f"{rate(row.lr)} " + {True: "interior", False: "edge", None: "untuned"}[row.lr_interior]


def formatted(value: float | None, form: str) -> str:
    """The value in a format of Python, a dash where there is none."""
    return "–" if value is None else format(value, form)


class Column(NamedTuple):
    """A column of the comparison: heading and cell."""

    title: str
    cell: Callable[[ComparisonRow], str]


COLUMNS = (
    Column("scheme", lambda row: row.scheme),
    Column("n", lambda row: str(row.n)),
    Column("val loss", spread),
    Column("difference (95 %)", paired_difference),
    Column("p, Holm", lambda row: chances(row.p, row.p_holm)),
    Column("verdict", verdict),
    Column("lr", learning_rate),
    Column(
        "moderated (95 %)", lambda row: with_interval(row.moderated_difference, row.moderated_low, row.moderated_high)
    ),
    Column("bits/byte", lambda row: formatted(row.val_bpb_mean, ".4f")),
    Column("accuracy", lambda row: formatted(row.val_accuracy_mean, ".1%")),
    Column("memory", lambda row: f"{si(row.peak_memory_bytes)}B" if row.peak_memory_bytes else "–"),
    Column("parameters", lambda row: si(row.parameters)),
    Column("spikes", lambda row: f"{row.spikes} / {row.grad_spikes}" if row.n else "–"),
    Column("not finished", lambda row: endings(row) or "0"),
)
SECONDARY = tuple(column.title for column in COLUMNS[7:])
"""Columns that a page shows when asked: before them stands one interval, the paired one."""
