"""How far a long command is: a bar per piece of work on a terminal, with a note and the time left; lines alone where
nobody watches (a file, a pipe), without anything that moves a cursor."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NAME, NOTE = 24, 38
"""Characters of a name and of the note beside it: with a bar and a time they make 80."""


def span(seconds: float) -> str:
    """A length of time.

    >>> span(42), span(11100), span(187200)
    ('0:42', '3:05:00', '2 d 4 h')
    """
    hours, rest = divmod(round(seconds), 3600)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def shorten(name: str, room: int = NAME) -> str:
    """The name, of a long one beginning and end: schemes begin alike and seeds stand last.

    >>> shorten("geonorm-decay-sqrt-seed11", 16)
    'geono…qrt-seed11'
    """
    if len(name) <= room:
        return name
    tail = (room - 1) * 2 // 3
    return f"{name[: room - 1 - tail]}…{name[-tail:]}"


class Pace:
    """When work will be done, by how long what was done since now has taken. `clock`: seconds."""

    def __init__(self, done: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.began, self.before = clock, clock(), done

    def left(self, done: float, total: float) -> float | None:
        """Seconds until all is done; None before any of it is."""
        if done <= self.before:
            return None
        return (self.clock() - self.began) * max(0.0, total - done) / (done - self.before)


class Unwatched:
    """Nobody sees bars: what is finished is a line on stderr, if `tell` says so."""

    watched = False

    def __init__(self, tell: bool) -> None:
        self.tell = tell

    def show(self, name: str, share: float, note: str = "", left: float | None = None) -> None:
        """This piece of work is so far; 1 is its end."""
        if share == 1 and self.tell:
            print(f"{name}: done", file=sys.stderr, flush=True)

    def drop(self, name: str) -> None:
        """Nothing more is shown of it."""


class Bars(Unwatched):
    """A row each: name, bar, note, time left."""

    watched = True

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        def text(field: str, width: int) -> Any:
            column = Column(no_wrap=True, overflow="ellipsis", max_width=width)
            return TextColumn("{task." + field + "}", markup=False, table_column=column)

        self.tasks: dict[str, Any] = {}
        self.rows = Progress(
            text("description", NAME), BarColumn(bar_width=6), text("fields[note]", NOTE), text("fields[left]", 8),
            console=console, transient=True,
        )  # fmt: skip

    def show(self, name: str, share: float, note: str = "", left: float | None = None) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.rows.add_task(shorten(name), total=1.0, note="", left="")
        note = note or f"{share:.0%}"
        self.rows.update(self.tasks[name], completed=share, note=note, left="" if left is None else span(left))

    def drop(self, name: str) -> None:
        if name in self.tasks:
            self.rows.remove_task(self.tasks.pop(name))


def watched() -> bool:
    """True if stdout and stderr are terminals: somebody sees what is printed and the bars below it."""
    return sys.stdout.isatty() and sys.stderr.isatty()


@contextmanager
def show_progress(live: bool, tell: bool = True) -> Iterator[Unwatched]:
    """Bars on stderr where someone watches; what is printed meanwhile stands above them."""
    if not live:
        yield Unwatched(tell)
        return
    from rich.console import Console

    bars = Bars(Console(stderr=True))
    with bars.rows:
        yield bars
