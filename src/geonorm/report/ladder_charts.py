"""The charts of a ladder: each takes it and gives charts, or none if there is nothing to show."""

from __future__ import annotations

import math
from dataclasses import replace

from .atomic import Record
from .ladder import SavedLadder, speedup_text
from .style import figures, si, signed
from .vega import NUMBER, RATE, Axis, Chart

LOSS = "validation loss (nats per token)"
ROUGHLY = "replace(format(datum.value, '.3~s'), 'G', 'B')"
"""How tokens and parameters, which are seldom round, are written on an axis."""


def speedup(found: SavedLadder) -> list[Chart]:
    """The effective speed-up of every scheme at each size, and over the sizes."""
    rows = [row for row in found.rows("speedups") if row["speedup"] is not None or row["bound"]]
    if not rows:
        return []
    ends = [row[f"speedup{end}"] for row in rows for end in ("", "_low", "_high") if row[f"speedup{end}"]]
    ends += [row["limit"] for row in rows if row["bound"]] + [math.exp(ln) for row in rows for ln in row["ln"]]
    x = ratios_axis(ends, f"speed-up over {found.baseline} (right of 1 is better)")
    drawn = []
    for size in dict.fromkeys(row["size"] for row in rows):
        here = [row for row in rows if row["size"] == size]
        note = "Each mark is one seed, the bar the 95 % interval of their mean. > and <: outside the curves."
        at = f"Speed-up at {si(here[0]['parameters'])} parameters, {si(here[0]['tokens'])} tokens"
        chart = Chart(at, x, None, found.looks, note)
        chart.rule(x=1.0)
        for row in here:
            dots = [(math.exp(ln), f"{row['scheme']}: {math.exp(ln):.3g}") for ln in row["ln"]]
            dots = dots or [(row["limit"], f"{row['scheme']}: {speedup_text(row)}")]
            chart.strip(
                row["scheme"], speedup_text(row), dots, (row["speedup"], row["speedup_low"], row["speedup_high"])
            )
        drawn.append(chart)
    if len(drawn) > 1:
        drawn.append(over_sizes(found, rows, ends))
    return drawn


def over_sizes(found: SavedLadder, rows: list[Record], ends: list[float]) -> Chart:
    x = Axis.around([row["parameters"] for row in rows], log=True, margin=0.08, title="parameters", form=ROUGHLY,
                    labels=[row["parameters"] for row in found.sizes.values()])  # fmt: skip
    y = ratios_axis(ends, f"speed-up over {found.baseline}")
    chart = Chart(
        "Speed-up over sizes", x, y, found.looks, "The band is the 95 % interval at each size. Logarithmic scales."
    )
    chart.rule(y=1.0)
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        here = [row for row in rows if row["scheme"] == scheme and row["speedup"] is not None]
        known = [row for row in here if row["speedup_low"] is not None]
        chart.band(scheme, [(row["parameters"], row["speedup_low"], row["speedup_high"]) for row in known])
        chart.line(scheme, [(row["parameters"], row["speedup"]) for row in here])
        for row in here:
            label = f"{scheme} · {si(row['parameters'])} parameters: {row['speedup']:.3g}"
            chart.mark(scheme, row["parameters"], row["speedup"], label)
    return chart


def ratios_axis(ratios: list[float], title: str) -> Axis:
    """A logarithmic axis that holds these ratios and those near 1, with about five written on it, 1 among them."""
    axis = Axis.around([0.95, 1.05, *ratios], log=True, margin=0.08, title=title)
    for steps in (
        [0.9, 0.95, 1, 1.05, 1.1], [0.8, 0.9, 1, 1.1, 1.25], [0.5, 0.67, 0.8, 1, 1.25, 1.5, 2],
        [0.1, 0.2, 0.5, 1, 2, 5, 10],
    ):  # fmt: skip
        if steps[0] <= axis.low * 1.06 and steps[-1] >= axis.high / 1.06:
            return replace(axis, labels=[step for step in steps if axis.holds(step)])
    return axis


def places(found: SavedLadder) -> tuple[str, Axis]:
    """What losses are drawn over: tokens at one size, else compute."""
    key, form, title = ("tokens", ROUGHLY, "tokens") if len(found.sizes) == 1 else ("compute", RATE, "compute (FLOP)")
    values = [row[key] for row in found.rows("points")]
    labels = [row[key] for row in found.rows("points") if row["scheme"] == found.baseline]
    round_ones = Axis.around(values, log=True, margin=0.06)
    shown = sorted(labels) if key == "tokens" and len(labels) <= 7 else None
    return key, Axis(round_ones.low, round_ones.high, True, form, title, shown)


def loss(found: SavedLadder) -> list[Chart]:
    """Validation loss at every budget and size, and fits where there are some."""
    rows = [row for row in found.rows("points") if row["val_loss_mean"] is not None]
    if not rows:
        return []
    key, x = places(found)
    y = Axis.around([row["val_loss_mean"] for row in rows], margin=0.08, title=LOSS)
    fits = [row for row in found.rows("fits") if not row["problem"] and row["along"] == key]
    note = "Means over seeds at the best rate; lines join the budgets of a size" + (
        ", or are fits (dotted)." if fits else "."
    )
    chart = Chart(f"Loss against {key}", x, y, found.looks, note)
    for fit in fits:
        inside = [row[key] for row in rows if row["scheme"] == fit["scheme"] and fit["size"] in ("all", row["size"])]
        steps = [math.exp(math.log(min(inside)) + i / 40 * math.log(max(inside) / min(inside))) for i in range(41)]
        chart.line(fit["scheme"], [(s, fit["E"] + fit["A"] * (s / fit["scale"]) ** -fit["a"]) for s in steps], "dotted")
    for scheme, line in lines(rows):
        chart.line(scheme, [(row[key], row["val_loss_mean"]) for row in line])
        for row in line:
            chart.mark(scheme, row[key], row["val_loss_mean"], f"{place(row)}: {figures(row['val_loss_mean'])}")
    return [chart]


def difference(found: SavedLadder) -> list[Chart]:
    """The difference to the baseline at every budget and size: does its sign move?"""
    rows = [row for row in found.rows("points") if row["difference"] is not None and row["scheme"] != found.baseline]
    if not rows:
        return []
    key, x = places(found)
    ends = [row[f"difference{end}"] for row in rows for end in ("", "_low", "_high")]
    y = Axis.around([0.0, *(end for end in ends if end is not None)], title="difference (nats per token)", form=NUMBER)
    note = (
        f"Validation loss less that of {found.baseline}, paired by seed; the band is the 95 % interval at each point."
    )
    chart = Chart("Difference to the baseline", x, y, found.looks, note)
    chart.rule(y=0.0)
    for scheme, line in lines(rows):
        known = [row for row in line if row["difference_low"] is not None]
        chart.band(scheme, [(row[key], row["difference_low"], row["difference_high"]) for row in known])
        chart.line(scheme, [(row[key], row["difference"]) for row in line])
        for row in line:
            chart.mark(scheme, row[key], row["difference"], f"{place(row)}: {signed(row['difference'], 4)} nats")
    return [chart]


def place(row: Record) -> str:
    """A point in words."""
    return f"{row['scheme']} · {si(row['parameters'])} parameters · {si(row['tokens'])} tokens"


def lines(rows: list[Record]) -> list[tuple[str, list[Record]]]:
    """What one line joins: the budgets of a scheme at a size, or its sizes where each has one budget."""
    several = len({(row["size"], row["tokens"]) for row in rows}) > len({row["size"] for row in rows})
    joined: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        joined.setdefault((row["scheme"], row["size"] if several else ""), []).append(row)
    return [(scheme, sorted(line, key=lambda row: row["compute"])) for (scheme, _), line in joined.items()]


CHARTS = (speedup, loss, difference)
"""By their names."""
