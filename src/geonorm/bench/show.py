"""What a benchmark found, as text for the terminal and as figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.columns import aligned

if TYPE_CHECKING:
    from ..report.vega import Chart

Say = Callable[[str], None]
Row = dict[str, Any]


def interval(ratio: Any) -> str:
    """1.02 (1.00 to 1.04)."""
    middle, low, high = ratio
    return f"{middle:.2f}" if low is None else f"{middle:.2f} ({low:.2f} to {high:.2f})"


def host(times: dict[str, dict[str, float]], say: Say) -> None:
    """Launch times by candidate and dtype."""
    names = list(next(iter(times.values())))
    table = [["host time of forward + backward, 8 x 64, microseconds", *times]]
    table += [[name, *(f"{column[name]:.0f}" for column in times.values())] for name in names]
    say("\n".join(["", *aligned(table)]))


def ops(rows: list[Row], say: Say) -> None:
    """The tables of one shape and dtype, one a mode."""
    head = [
        "microseconds",
        "ideal MB",
        "GB/s",
        "of copy",
        "to best peer",
        "to Pre-Norm",
        "to same, gains",
        "error out dx du",
    ]
    for mode, group in groupby(rows, key=lambda row: row["mode"]):
        entries = list(group)
        first = entries[0]
        warm = ", data in cache" if first["cached"] else ""
        peer = next(row["peer"] for row in entries if "peer" in row)
        table = [[f"{first['rows']} x {first['dim']} {first['dtype']} {mode}{warm}; best peer: {peer}", *head]]
        for row in entries:
            cells = [f"{1e6 * row['seconds']:.1f}", f"{row['bytes'] / 1e6:.1f}", f"{row['bandwidth'] / 1e9:.0f}"]
            if "to_pre" in row:
                cells += [interval(row[key]) for key in ("of_copy", "to_peer", "to_pre")]
                cells.append(interval(row["to_gains"]) if "to_gains" in row else "")
                cells.append(" ".join(f"{row['errors'][key]:.0e}" for key in ("out", "dx", "du")))
            table.append([row["name"], *cells, *[""] * (len(head) - len(cells))])
        say("\n".join(["", *aligned(table)]))


def steps(rows: list[Row], baseline: str, say: Say) -> None:
    """The table of `bench train`."""
    table = [["scheme", "mode", "ms a step", "tokens/s", "peak memory", f"step time to {baseline}"]]
    for row in rows:
        memory = f"{row['peak_memory_bytes'] / 2**30:.2f} GiB" if row["peak_memory_bytes"] else "–"
        cells = [row["scheme"], row["mode"], f"{1e3 * row['seconds']:.1f}", f"{row['tokens_per_second']:,.0f}", memory]
        table.append([*cells, interval(row["ratio"])])
    say("\n".join(aligned(table)))


def norms(rows: list[Row], base: str, say: Say) -> None:
    """The tables of `bench norms` for one shape and dtype, one a pass."""
    head = ["microseconds", "ideal MB", "GB/s", "MFLOP", "kept MB", f"to {base}", "RMSNorm to it", "error out dx dw"]
    for mode, group in groupby(rows, key=lambda row: row["mode"]):
        entries = list(group)
        first = entries[0]
        table = [[f"{first['rows']} x {first['dim']} {first['dtype']} {MODES[mode]}", *head]]
        for row in entries:
            cells = [f"{1e6 * row['seconds']:.1f}", f"{row['bytes'] / 1e6:.1f}", f"{row['bandwidth'] / 1e9:.1f}"]
            if "to_eager" in row:
                kept = "–" if row["kept_bytes"] is None else f"{row['kept_bytes'] / 1e6:.1f}"
                cells += [f"{row['flops'] / 1e6:.1f}", kept, interval(row["to_eager"])]
                cells.append(interval(row["rms_to_this"]) if "rms_to_this" in row else "")
                cells.append(" ".join(f"{row['errors'][key]:.0e}" for key in ("out", "dx", "dweight")))
            table.append([row["name"], *cells, *[""] * (len(head) - len(cells))])
        say("\n".join(["", *aligned(table)]))


def norm_shares(rows: list[Row], say: Say) -> None:
    """What norms cost a model."""
    table = [["step", "mode", "norm", "norms", "ms a step", "of it in norms", "step with RMSNorm to it"]]
    for row in rows:
        share = tuple(None if part is None else 100 * part for part in row["share"])
        middle, low, high = share
        told = f"{middle:.1f} %" if low is None else f"{middle:.1f} % ({low:.1f} to {high:.1f})"
        versus = interval(row["rms_to_this"]) if "rms_to_this" in row else ""
        cells = [row["step"], row["mode"], row["norm"], str(row["norms"]), f"{1e3 * row['seconds']:.2f}", told, versus]
        table.append(cells)
    say("\n".join(["", *aligned(table)]))


def draw_figures(
    rows: Iterable[Row], folder: Path, environment: dict[str, Any], stem: str = "ops", base: str = "add + rms_norm"
) -> list[Path]:
    """One figure per dtype, PNG, SVG and PDF: time over that of eager `base` of every candidate, forward and
    backward; nothing where the drawing library is not installed."""
    if find_spec("vl_convert") is None:
        return []
    from ..report.vega import figure, save_figures

    counted = [row for row in rows if "to_eager" in row]
    modes = [row["mode"] for row in counted]
    mode = "both" if "both" in modes else modes[0]
    drawn = {}
    for dtype in dict.fromkeys(row["dtype"] for row in counted):
        chosen = [row for row in counted if (row["dtype"], row["mode"]) == (dtype, mode)]
        about = f"{MODES[mode]}, {dtype}, {environment['device']}, torch {environment['torch']}"
        charts = [panel(chosen, size, base) for size in dict.fromkeys((row["rows"], row["dim"]) for row in chosen)]
        drawn[f"{stem}_{dtype}"] = figure(charts, about, columns=len(charts))
    return save_figures(drawn, folder)


MODES = {"both": "forward + backward", "fwd": "forward", "bwd": "backward"}


def panel(rows: list[Row], size: tuple[int, int], base: str) -> Chart:
    """A row per candidate, ours in colour, with the 95 % interval of its median as a bar."""
    from ..report.style import COLOURS, Look
    from ..report.vega import Axis, Chart

    here = {row["name"]: row for row in rows if (row["rows"], row["dim"]) == size}
    ours, peers = (Look(*COLOURS[name], "", "circle") for name in ("vermilion", "ink"))
    ends = [end for row in here.values() for end in row["to_eager"] if end is not None]
    ticks = [tick for tick in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16) if min(ends) / 1.2 <= tick <= max(ends) * 1.2]
    axis = Axis.around([*ends, 1.0], log=True, labels=ticks, title=f"time over that of eager {base}")
    title = f"{size[0]} x {size[1]}   (1 = {1e6 * here[base]['seconds']:.0f} µs)"
    looks = {name: ours if row["ours"] else peers for name, row in here.items()}
    chart = Chart(title, axis, None, looks, width=300)
    chart.rule(x=1.0)
    for name, row in here.items():
        middle, low, high = row["to_eager"]
        chart.strip(name, f"{middle:.2f}", [(middle, f"{name}: {middle:.2f}")], (None, low, high))
    return chart
