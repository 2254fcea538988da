"""Finds the rank that holds up the others. Ranks wait for each other in every step, so when one is stuck all are, and
none of them knows which it is: each says through a store where it stands, and the one furthest behind is it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread

from torch.distributed import TCPStore

from .world import World

DOINGS = ("reading the batch", "forward and backward", "the optimizer's step", "evaluation", "saving", "the end")
"""In the order of one step."""
STATUS = 3
Told = Callable[[str], None]


class Watchdog:
    """Publishes where this rank stands and watches all once nothing moves here. Without a timeout, or alone, it does
    nothing."""

    def __init__(self, world: World, timeout: float, store: TCPStore | None) -> None:
        self.world, self.timeout, self.store = world, timeout, store
        self.here = (0, DOINGS[0])
        self.since = time.monotonic()
        self.tick = min(1.0, timeout / 10)

    def at(self, step: int, doing: str) -> None:
        """This rank now does this in this step. Costs an assignment."""
        self.here = (step, doing)
        self.since = time.monotonic()

    def watch(self, over: Event) -> None:
        """Runs in a thread until the training is over; ends the process if nothing has moved for the timeout."""
        assert self.store is not None
        beat = 0
        while not over.wait(self.tick):
            beat += 1
            step, doing = self.here
            self.store.set(f"rank {self.world.rank}", f"{step} {DOINGS.index(doing)} {beat}")
            if time.monotonic() - self.since > self.timeout and not over.is_set():
                self.end(self.verdict())

    def verdict(self) -> str:
        """Which rank is stuck, and where: the one furthest behind, or one that does not even publish any more."""
        first = self.places()
        time.sleep(3 * self.tick)
        places = self.places()
        silent = [rank for rank in places if rank != self.world.rank and places[rank][2] == first[rank][2]]
        least = min(place[:2] for place in places.values())
        behind = silent or [rank for rank, place in places.items() if place[:2] == least]
        ahead = [rank for rank in places if rank not in behind]
        step, doing, _ = places[behind[0]]
        what = f"{'does not answer' if silent else 'is stuck'} in {DOINGS[doing]} of step {step}"
        if not ahead:
            return f"all ranks are stuck in {DOINGS[doing]} of step {step}" if self.world.first else ""
        if self.world.rank != ahead[0]:
            return ""
        who = f"rank {behind[0]} {what}" if len(behind) == 1 else f"ranks {', '.join(map(str, behind))}: each {what}"
        return f"{who}; the other ranks have waited for {self.timeout:g} s"

    def places(self) -> dict[int, tuple[int, int, int]]:
        """(step, doing, beat) of every rank."""
        assert self.store is not None
        found = {}
        for rank in range(self.world.size):
            step, doing, beat = (int(part) for part in self.store.get(f"rank {rank}").split())
            found[rank] = (step, doing, beat)
        return found

    def end(self, verdict: str) -> None:
        """The main thread is stuck, so that nothing but the end of the process helps; torchrun starts it again if
        --max-restarts says so."""
        if verdict:
            print(f"geonorm train: {verdict}; the run goes on from its last checkpoint", file=sys.stderr, flush=True)
        time.sleep(2 * self.tick)  # the rank that speaks must not be ended by the end of another
        os._exit(STATUS)


@contextmanager
def watchdog(world: World, timeout: float) -> Iterator[Watchdog]:
    """A watchdog for the time of the training. Collective."""
    if world.size == 1 or timeout <= 0:
        yield Watchdog(world, float("inf"), None)
        return
    host = os.environ["MASTER_ADDR"]
    wait = timedelta(seconds=60)
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=wait) if world.first else None
    port = world.shared(store.port if store else 0)
    dog = Watchdog(world, timeout, store or TCPStore(host, port, is_master=False, timeout=wait))
    over = Event()
    thread = Thread(target=dog.watch, args=(over,), name="watchdog", daemon=True)
    thread.start()
    try:
        yield dog
    finally:
        over.set()
        thread.join()
