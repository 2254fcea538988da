"""Ctrl-C, SIGTERM, a lost terminal or a closed pipe as something the training loop can look at between two steps."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

PARENT = "GEONORM_PARENT"
"""Set by a process that starts runs: they save and end when it is no more."""


@contextmanager
def handle_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP go to the handler; a SIGHUP that is ignored (nohup) stays so."""
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    try:
        old = {number: signal.signal(number, handler) for number in wanted}
    except ValueError:  # not the main thread: whoever runs us handles signals
        yield
        return
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


@contextmanager
def stop_signals(patient: bool, received: list[float]) -> Iterator[None]:
    """`received` takes the time at which a signal to stop arrives. A second one ends the process at once, unless it
    is patient: torchrun passes Ctrl-C on to processes that have seen it already, and kills what takes too long."""
    signals = 0

    def note(number: int, _: Any) -> None:
        nonlocal signals
        signals += 1
        if signals > 1 and not patient:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(time.monotonic())

    with handle_signals(note), watch_parent():
        yield


def stop_unheard(say: Callable[[Any], None], received: list[float]) -> Callable[[Any], None]:
    """`say`, of which a failure is a signal to stop: nobody hears what it says any more."""

    def tell(line: Any) -> None:
        try:
            say(line)
        except OSError:
            received.append(time.monotonic())

    return tell


@contextmanager
def watch_parent() -> Iterator[None]:
    """This process gets SIGTERM when the one that started it, torchrun or a comparison, is killed: it would go on
    unseen, and its directory stay locked. Looks once in a while, which any system can do."""
    named = os.environ.pop(PARENT, "")  # not for processes that this one starts
    if named.isdecimal():
        parent = int(named)
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        parent = os.getppid()
    else:
        yield
        return
    over = Event()

    def look() -> None:
        while os.getppid() == parent:
            if over.wait(0.5):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=look, name="parent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
