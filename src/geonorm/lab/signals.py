"""Ctrl-C and SIGTERM as something the training loop can look at between two steps."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(patient: bool = False) -> Iterator[list[float]]:
    """A list that takes the time at which SIGINT or SIGTERM arrives. A second one ends the process at once, unless it
    is patient: torchrun passes Ctrl-C on to processes that have seen it already, and kills what takes too long."""
    received: list[float] = []

    def note(number: int, _: Any) -> None:
        if received and not patient:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(time.monotonic())

    try:
        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs us handles signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
