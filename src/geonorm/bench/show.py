"""What a benchmark found, as text for the terminal and as figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.columns import align

if TYPE_CHECKING:
    from ..report.vega import Chart

Say = Callable[[str], None]
Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Of a table: titles, and what stands below each for a row."""
BASE = "add + rms_norm"
MODES = {"both": "forward + backward", "fwd": "forward", "bwd": "backward"}


def number_cell(key: str, factor: float = 1.0, form: str = ".1f") -> Callable[[Row], str]:
    """A number in other units; a dash where it is not known, nothing for a copy."""
    return lambda row: "" if key not in row else "–" if row[key] is None else format(factor * row[key], form)


def ratio_cell(key: str) -> Callable[[Row], str]:
    """1.02 (1.00 to 1.04), where there is such a ratio."""

    def cell(row: Row) -> str:
        middle, *ends = ("" if part is None else f"{part:.2f}" for part in row.get(key, [None]))
        return f"{middle} ({' to '.join(ends)})" if any(ends) else middle

    return cell


def error_cell(*keys: str) -> Callable[[Row], str]:
    return lambda row: " ".join(f"{row['errors'][key]:.0e}" for key in keys) if "errors" in row else ""


OPS: Columns = {
    "microseconds": number_cell("seconds", 1e6), "ideal MB": number_cell("bytes", 1e-6),
    "GB/s": number_cell("bandwidth", 1e-9, ".0f"), "of copy": ratio_cell("of_copy"),
    "to best peer": ratio_cell("to_peer"), "to Pre-Norm": ratio_cell("to_pre"),
    "to same, gains": ratio_cell("to_gains"), "error out dx du": error_cell("out", "dx", "du"),
}  # fmt: skip


def format_table(title: str, columns: Columns, rows: Iterable[Row], key: str = "name") -> str:
    """Lines that begin with the title; rows begin with their column `key`."""
    cells = [[str(row[key]), *(cell(row) for cell in columns.values())] for row in rows]
    return "\n".join(align([[title, *columns], *cells]))


def print_tables(rows: list[Row], say: Say) -> None:
    """Of one shape and dtype, one a mode."""
    for mode, group in groupby(rows, key=lambda row: row["mode"]):
        entries = list(group)
        first = entries[0]
        peer = next(row["peer"] for row in entries if "peer" in row)
        about = f"{first['rows']} x {first['dim']} {first['dtype']} {mode}"
        about += f"{', data in cache' if first['cached'] else ''}; best peer: {peer}"
        say("\n" + format_table(about, OPS, entries))


def print_host_times(times: dict[str, dict[str, float]], say: Say) -> None:
    """Launch times by candidate and dtype."""
    rows = [{"name": name} | {dtype: column[name] for dtype, column in times.items()}
            for name in next(iter(times.values()))]  # fmt: skip
    columns = {dtype: number_cell(dtype, 1, ".0f") for dtype in times}
    say("\n" + format_table("host time of forward + backward, 8 x 64, microseconds", columns, rows))


def print_steps(rows: list[Row], baseline: str, say: Say) -> None:
    """The table of `bench train`."""
    columns: Columns = {
        "mode": lambda row: str(row["mode"]), "ms a step": number_cell("seconds", 1e3),
        "tokens/s": number_cell("tokens_per_second", 1, ",.0f"),
        "peak memory": lambda row: f"{row['peak_memory_bytes'] / 2**30:.2f} GiB" if row["peak_memory_bytes"] else "–",
        f"step time to {baseline}": ratio_cell("ratio"),
    }  # fmt: skip
    say(format_table("scheme", columns, rows, "scheme"))


def draw_figures(rows: Iterable[Row], folder: Path, environment: dict[str, Any]) -> list[Path]:
    """One figure per dtype, PNG, SVG and PDF: time over that of eager `BASE` of every candidate, forward and
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
        charts = [panel(chosen, size) for size in dict.fromkeys((row["rows"], row["dim"]) for row in chosen)]
        drawn[f"ops_{dtype}"] = figure(charts, about, columns=len(charts))
    return save_figures(drawn, folder)


def panel(rows: list[Row], size: tuple[int, int]) -> Chart:
    """A row per candidate, ours in colour, with the 95 % interval of its median as a bar."""
    from ..report.style import COLOURS, Look
    from ..report.vega import Axis, Chart

    here = {row["name"]: row for row in rows if (row["rows"], row["dim"]) == size}
    ours, peers = (Look(*COLOURS[name], "", "circle") for name in ("vermilion", "ink"))
    ends = [end for row in here.values() for end in row["to_eager"] if end is not None]
    ticks = [tick for tick in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16) if min(ends) / 1.2 <= tick <= max(ends) * 1.2]
    axis = Axis.around([*ends, 1.0], log=True, labels=ticks, title=f"time over that of eager {BASE}")
    title = f"{size[0]} x {size[1]}   (1 = {1e6 * here[BASE]['seconds']:.0f} µs)"
    looks = {name: ours if row["ours"] else peers for name, row in here.items()}
    chart = Chart(title, axis, None, looks, width=300)
    chart.rule(x=1.0)
    for name, row in here.items():
        middle, low, high = row["to_eager"]
        chart.strip(name, f"{middle:.2f}", [(middle, f"{name}: {middle:.2f}")], (None, low, high))
    return chart
