"""What a benchmark measured, as tables on the terminal and as summary.json."""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ..devices import pick_device
from ..lab.runs.folder import check_out_folder, read_object
from ..report.tables import align
from .config import Timing

Say = Callable[[str], None]
Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Of a table: titles, and what stands below each for a row."""


def number_cell(key: str, factor: float = 1.0, form: str = ".1f") -> Callable[[Row], str]:
    """A number in other units; a dash where it is not known."""
    return lambda row: "–" if row[key] is None else format(factor * row[key], form)


def ratio_cell(key: str) -> Callable[[Row], str]:
    """1.02 (1.00 to 1.04), where there is such a ratio."""
    return lambda row: "{:.2f} ({:.2f} to {:.2f})".format(*row[key]) if key in row else ""


OPS: Columns = {
    "microseconds": number_cell("seconds", 1e6), "ideal MB": number_cell("bytes", 1e-6),
    "GB/s": number_cell("bandwidth", 1e-9, ".0f"), "of copy": ratio_cell("of_copy"),
    "to best peer": ratio_cell("to_peer"), "to Pre-Norm": ratio_cell("to_pre"),
    "to same, gains": ratio_cell("to_gains"),
    "error out dx du": lambda row: " ".join(f"{row['errors'][key]:.0e}" for key in ("out", "dx", "du"))
    if row["errors"] else "",
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
        title = f"{first['rows']} x {first['dim']} {first['dtype']} {mode}"
        title += f"{', data in cache' if first['cached'] else ''}; best peer: {first['peer']}"
        say("\n" + format_table(title, OPS, entries))


def print_steps(rows: list[Row], baseline: str, say: Say) -> None:
    """The table of `bench train`."""
    columns: Columns = {
        "mode": lambda row: str(row["mode"]), "ms a step": number_cell("seconds", 1e3),
        "tokens/s": number_cell("tokens_per_second", 1, ",.0f"),
        "peak memory, GiB": number_cell("peak_memory_bytes", 2**-30, ".2f"),
        f"step time to {baseline}": ratio_cell("ratio"),
    }  # fmt: skip
    say(format_table("scheme", columns, rows, "scheme"))


def begin(config: Timing) -> torch.device:
    """The device, with as many CPU threads as asked for. CheckpointError if the folder cannot be written, or holds
    something else than a benchmark; leaves nothing there."""
    device = pick_device(config.device)
    torch.set_num_threads(config.threads)
    if config.out:
        holds_one = "rows" in read_object(Path(config.out, "summary.json"))
        check_out_folder(Path(config.out), "benchmark", holds_one)
    return device
