"""What a benchmark found, as text for the terminal and as figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from ..report.columns import aligned

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


def figures(
    rows: Iterable[Row], folder: Path, environment: dict[str, Any], stem: str = "ops", base: str = "add + rms_norm"
) -> list[Path]:
    """One figure per dtype, PNG and SVG: time over that of eager `base` of every candidate, forward and backward."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    from ..report.figures import STYLE

    counted = [row for row in rows if "to_eager" in row]
    modes = [row["mode"] for row in counted]
    mode = "both" if "both" in modes else modes[0]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    style: Any = STYLE
    with mpl.rc_context(style):
        for dtype in dict.fromkeys(row["dtype"] for row in counted):
            chosen = [row for row in counted if (row["dtype"], row["mode"]) == (dtype, mode)]
            figure = Figure()
            FigureCanvasAgg(figure)
            draw(figure, chosen, base, f"{MODES[mode]}, {dtype}, {environment['device']}, torch {environment['torch']}")
            for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
                path = folder / f"{stem}_{dtype}.{suffix}"
                figure.savefig(path, metadata=metadata)
                written.append(path)
    return written


MODES = {"both": "forward + backward", "fwd": "forward", "bwd": "backward"}


def draw(figure: Any, rows: list[Row], base: str, about: str) -> None:
    """Panels side by side, one a shape: ours filled, peers hollow, bars for the 95 % interval of the median."""
    sizes = list(dict.fromkeys((row["rows"], row["dim"]) for row in rows))
    names = list(dict.fromkeys(row["name"] for row in rows))
    figure.set_size_inches(2.8 + 2.8 * len(sizes), 1.6 + 0.27 * len(names))
    grid = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, size in zip(grid, sizes, strict=True):
        panel = {row["name"]: row for row in rows if (row["rows"], row["dim"]) == size}
        unit = panel[base]["seconds"]
        for place, name in enumerate(names):
            if name not in panel:
                continue
            row = panel[name]
            colour = "#d55e00" if row["ours"] else "#2b2b2b"
            middle, low, high = row["to_eager"]
            if low is not None:
                axes.plot([low, high], [place, place], color=colour, alpha=0.35, linewidth=5, solid_capstyle="butt")
            axes.plot([middle], [place], "o", color=colour, markerfacecolor=colour if row["ours"] else "white")
            axes.annotate(f"{middle:.2f}", (middle, place), (0, 5), textcoords="offset points", ha="center", fontsize=7)
        axes.axvline(1.0, color="#5c5c5c", linewidth=0.8)
        axes.set_xscale("log")
        ticks = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16]
        low_end, high_end = axes.get_xlim()
        axes.set_xticks([tick for tick in ticks if low_end / 1.2 <= tick <= high_end * 1.2])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
        axes.set_title(f"{size[0]} x {size[1]}   (1 = {1e6 * unit:.0f} µs)")
    grid[0].set_yticks(range(len(names)), names, color="#1c1c1c")
    grid[0].set_ylim(len(names) - 0.4, -0.7)
    figure.supxlabel(f"time over that of eager {base}\n{about}", fontsize=8, color="#5c5c5c")
