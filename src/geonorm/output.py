"""Lines on stdout and stderr: which process of a world prints them, and what happens when a stream is closed."""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from shutil import get_terminal_size

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def prepare() -> None:
    """Opens standard streams that are closed, so that no other file takes their numbers; makes every line go out at
    once, so that a closed pipe is noticed when it closes; shows as an escape what the encoding of a stream lacks."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)


def settle() -> None:
    """Drops what a stream could not take: Python would try again at its end, and end with a status of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(line: str) -> None:
    """A line on stderr, if anybody can hear it. Names in it may hold anything: what would break the line, or move a
    terminal's cursor, is shown as an escape."""
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    with suppress(OSError):
        print(escaped, file=sys.stderr, flush=True)


def columns(most: int) -> int:
    """How wide lines on stdout may be: as a terminal is, at most `most`, which a file has."""
    return min(most, max(40, get_terminal_size((most, 24)).columns)) if sys.stdout.isatty() else most


def placed() -> bool:
    """True if torchrun, or a launcher with its variables, gave this process a rank."""
    return all(name in os.environ for name in TORCHRUN)


def first() -> bool:
    """True on the rank that prints for all."""
    return not placed() or os.environ["RANK"] == "0"


def speaker(error: BaseException) -> str | None:
    """How a line about an error begins on this rank; None where another one says it. What all ranks have agreed on the
    first says; what went wrong before they met, the first of each machine; anything else the rank where it happened."""
    if not placed() or not os.environ["RANK"].isdigit():
        return ""
    if getattr(error, "agreed", False):
        return "" if first() else None
    if (rank := getattr(error, "rank", None)) is not None:
        return f"rank {rank}: "
    return "" if os.environ["LOCAL_RANK"] == "0" else None
