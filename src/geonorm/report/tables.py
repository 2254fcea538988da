"""The result of a comparison in words and tables: one wording for terminal, README and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..lab.statistics.comparison import SEED_CAP, Row, significant
from .columns import align, fit_width, markdown_lines, wrap_all
from .runs import SavedComparison
from .style import memory, rate, si, signed

WIDTH = 100
LIMITS = "What limits this comparison"


class Column(NamedTuple):
    """A column of the comparison: its heading, its cell, and whether the narrow terminal table shows it."""

    title: str
    cell: Callable[[Row], str]
    terminal: bool = True


def headline(row: Row) -> str:
    """What was found about this scheme, in one plain sentence."""
    scheme, baseline, n = row["scheme"], row["baseline"], row["n"]
    if not n:
        return f"{scheme}: {unfinished(row)}"
    if scheme == baseline:
        return f"{scheme} is the baseline: validation loss {spread(row)} nats at {count(n, 'seed')}"
    difference, pairs = row["difference"], row["pairs"]
    if difference is None:
        return f"{scheme} shares no finished seed with {baseline}: validation loss {spread(row)}, nothing paired"
    side = "below" if difference < 0 else "above"
    digits = _digits(row)
    if row["difference_low"] is None:
        return (
            f"{scheme} is {abs(difference):.{digits}f} nats {side} {baseline} in one seed: "
            "not resolved, one seed gives no interval"
        )
    if row["resolved"]:
        near, far = sorted((abs(row["difference_low"]), abs(row["difference_high"])))
        among = f", but not among all {row['family_size']} (Holm: p = {row['p_holm']:.2g})"
        return (
            f"{scheme} is {abs(difference):.{digits}f} ({near:.{digits}f} to {far:.{digits}f}) nats {side} "
            f"{baseline} at {count(pairs, 'seed')}{'' if significant(row['p_holm']) else among}"
        )
    outlook, needed = "", row["seeds_needed"]
    if row["equal"]:
        outlook = f"; equal within {row['margin']:g} by the spreads of all schemes (p = {row['equal_p']:.2g})"
    elif needed is not None and needed > pairs:
        amount = f"more than {SEED_CAP}" if needed > SEED_CAP else f"about {needed}"
        outlook = f"; {amount} seeds would resolve a difference of this size"
    return (
        f"{scheme} against {baseline} is not resolved at {count(pairs, 'seed')}: the interval of "
        f"{signed(difference, digits)} ({between(row)}) nats holds 0{outlook}"
    )


def summary_line(comparison: SavedComparison) -> str:
    """Size, depth, tokens, number of seeds and data: the caption of everything."""
    rows = comparison.rows
    sizes = [row["parameters"] for row in rows if row["parameters"]]
    tokens = [row["tokens"] for row in rows if row["tokens"] and row["n"]]
    parts = [
        f"{si(max(sizes))} parameters" if sizes else "size unknown",
        count(comparison.depth, "layer") if comparison.depth else "depth unknown",
        f"{si(max(tokens))} tokens per run" if tokens else "tokens unknown",
        seeds_of(rows),
        f"data {comparison.data}" if comparison.data else "data not named",
        *asked_for(comparison, rows),
    ]
    return " · ".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """A table for a README, with the sentence of each scheme below it."""
    columns = [column for column in COLUMNS if any(column.cell(row) != "–" for row in rows)]
    lines = markdown_lines([column.title for column in columns], [[c.cell(row) for c in columns] for row in rows])
    return "\n".join([*lines, "", *(f"- {headline(row)}" for row in rows)]) + "\n"


def text_lines(rows: Sequence[Row], limits: Sequence[str] = (), width: int = WIDTH) -> list[str]:
    """Lines of at most that width: the table, one sentence per scheme, and what limits them, as on the page. In narrow
    ones a column that the page has too is left out."""
    columns = [column for column in COLUMNS if column.terminal and (width >= WIDTH or column.title != "p, Holm")]
    table = [[column.title for column in columns], *([column.cell(row) for column in columns] for row in rows)]
    lines = align(fit_width(table, width))
    lines.insert(1, "-" * max(map(len, lines)))
    said = [headline(row) for row in rows]
    if limits:
        said += ["", f"{LIMITS}:", *(f"- {limit}" for limit in limits)]
    return [*lines, "", *wrap_all(said, width)]


def count(n: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def seeds_of(rows: Sequence[Row]) -> str:
    """How many seeds rows are means of: 3 seeds, 2 to 5 seeds."""
    seeds = sorted({row["n"] for row in rows})
    return count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"


def endings(row: Row) -> str:
    """How the runs that did not finish ended: "2 diverged, 1 failed"."""
    return ", ".join(f"{n} {status}" for status, n in row["statuses"].items() if status != "finished")


def unfinished(row: Row) -> str:
    """That a scheme has no result, and why: its tuning runs may have finished."""
    why = endings(row)
    return f"no {'final ' if 'finished' in row['statuses'] else ''}run finished" + (f" ({why})" if why else "")


def spread(row: Row) -> str:
    """Mean and standard deviation of the validation loss."""
    mean, std = row["val_loss_mean"], row["val_loss_std"]
    if mean is None:
        return "–"
    return f"{mean:.4f}" if std is None else f"{mean:.4f} ± {std:.4f}"


def between(row: Row) -> str:
    """The interval of the paired difference: "−0.030 to −0.012"."""
    digits = _digits(row)
    return f"{signed(row['difference_low'], digits)} to {signed(row['difference_high'], digits)}"


def paired_difference(row: Row) -> str:
    """Paired difference with its interval."""
    if row["scheme"] == row["baseline"]:
        return "baseline" if row["n"] else "–"
    if row["difference"] is None:
        return "–"
    value = signed(row["difference"], _digits(row))
    return value if row["difference_low"] is None else f"{value} ({between(row)})"


def verdict(row: Row) -> str:
    """Whether the difference is told apart from 0: by its own interval, and as one of its family."""
    if row["scheme"] == row["baseline"] or row["difference"] is None:
        return "–"
    if row["resolved"]:
        return "resolved" if significant(row["p_holm"]) else "resolved, not after Holm"
    return f"equal within {row['margin']:g}" if row["equal"] else "not resolved"


def chances(row: Row) -> str:
    """p of the paired difference alone, and adjusted for all of the family."""
    return "–" if row["p"] is None else f"{row['p']:.2g}, {row['p_holm']:.2g}"


def moderated_difference(row: Row) -> str:
    """The difference of the means under variances moderated by the spreads of all schemes."""
    if row["moderated_difference"] is None:
        return "–"
    ends = f"{signed(row['moderated_low'], 3)} to {signed(row['moderated_high'], 3)}"
    return f"{signed(row['moderated_difference'], 3)} ({ends})"


def fitted_minimum(row: Row) -> str:
    """The minimum of the parabola through all rates: loss, its standard error, and the rate; or why there is none."""
    fit = row["fit"]
    if not fit:
        return "–"
    if fit["loss"] is None:
        return str(fit["problem"])
    error = "" if fit["loss_error"] is None else f" ± {fit['loss_error']:.4f}"
    return f"{fit['loss']:.4f}{error} at {fit['lr']:.2g}" + (f" ({fit['problem']})" if fit["problem"] else "")


def asked_for(comparison: SavedComparison, rows: Sequence[Row]) -> list[str]:
    """What losses are of, where that is not the next token."""
    told = [row for row in rows if row.get("val_accuracy_mean") is not None]
    if not told:
        return []
    return ["losses of masked tokens"]


def accuracy(row: Row) -> str:
    """Mean share of masked tokens that were told right, where that was trained."""
    share = row.get("val_accuracy_mean")
    return "–" if share is None else f"{share:.1%}"


def learning_rate(row: Row) -> str:
    """Best learning rate and where it lies in the grid that was tried."""
    if row["lr"] is None:
        return "–"
    return f"{rate(row['lr'])} " + {True: "interior", False: "edge", None: "untuned"}[row["lr_interior"]]


def spikes(row: Row) -> str:
    """Of the loss / of the gradient norm, in brackets those that are not the batch's, where that is known."""
    told = [
        f"{row[kind]}" + ("" if row.get(f"{kind}_apart") is None else f" ({row[f'{kind}_apart']})")
        for kind in ("spikes", "grad_spikes")
    ]
    return " / ".join(told) if row["n"] else "–"


def _digits(row: Row) -> int:
    """Decimals that leave two figures of a narrow interval."""
    low, high = row["difference_low"], row["difference_high"]
    width = abs(row["difference"] or 0) if low is None else high - low
    return 3 if width >= 0.01 else 4 if width >= 0.001 else 5


COLUMNS = (
    Column("scheme", lambda row: str(row["scheme"])),
    Column("n", lambda row: str(row["n"])),
    Column("val loss", spread),
    Column("difference (95 %)", paired_difference),
    Column("p, Holm", chances),
    Column("moderated (95 %)", moderated_difference, terminal=False),
    Column("verdict", verdict, terminal=False),
    Column("lr", learning_rate),
    Column("fitted minimum", fitted_minimum, terminal=False),
    Column(
        "bits/byte", lambda row: "–" if row["val_bpb_mean"] is None else f"{row['val_bpb_mean']:.4f}", terminal=False
    ),
    Column("accuracy", accuracy, terminal=False),
    Column("memory", lambda row: memory(row["peak_memory_bytes"]), terminal=False),
    Column("parameters", lambda row: si(row["parameters"]), terminal=False),
    Column("spikes", spikes, terminal=False),
    Column("not finished", lambda row: endings(row) or "0", terminal=False),
)
