"""Notes Ctrl-C, SIGTERM, a lost terminal and a closed pipe, for the training loop to look at between two steps."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

PARENT = "GEONORM_PARENT"
"""Environment variable with the id of the process that started this run: when that ends, the run saves and ends."""


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
    """Inside, `received` gets the time of each signal to stop. A second one ends the process at once, unless it is
    patient, as under torchrun: that sends Ctrl-C again to processes that have had it, and kills what takes too long."""
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
    """`say`, but where it fails (its pipe is closed, so nobody reads it), that counts as a signal to stop."""

    def tell(line: Any) -> None:
        try:
            say(line)
        except OSError:
            received.append(time.monotonic())

    return tell


@contextmanager
def watch_parent() -> Iterator[None]:
    """Inside, this process gets SIGTERM when the one that started it, torchrun or a comparison, is killed. Otherwise it
    would go on unseen, with its directory locked. It polls, which works on every system."""
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
