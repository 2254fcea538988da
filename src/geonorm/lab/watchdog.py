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

from torch.distributed import TCPStore  # type: ignore[attr-defined]

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
        self.beat = 0

    def at(self, step: int, doing: str) -> None:
        """This rank now does this in this step. Costs an assignment."""
        self.here = (step, doing)
        self.since = time.monotonic()

    def watch(self, over: Event) -> None:
        """Runs in a thread until the training is over; ends the process if nothing has moved for the timeout."""
        while not over.wait(self.tick):
            self.publish()
            if time.monotonic() - self.since > self.timeout and not over.is_set():
                self.end(self.verdict())

    def publish(self) -> None:
        assert self.store is not None
        step, doing = self.here
        self.beat += 1
        self.store.set(f"rank {self.world.rank}", f"{step} {DOINGS.index(doing)} {self.beat}")

    def pause(self, ticks: int) -> None:
        """Lets time pass in which the others can see that this rank answers."""
        for _ in range(ticks):
            time.sleep(self.tick)
            self.publish()

    def verdict(self) -> str:
        """Which rank is stuck, and where: one that does not even publish any more, or else the one furthest behind.
        Empty on all ranks but the one that says it."""
        first = self.places()
        self.pause(4)
        places = self.places()
        silent = [rank for rank in places if places[rank][2] == first[rank][2]]
        least = min(place[:2] for place in places.values())
        behind = silent or [rank for rank, place in places.items() if place[:2] == least]
        ahead = [rank for rank in places if rank not in behind]
        if self.world.rank != (ahead or behind)[0]:
            return ""
        step, doing, _ = places[behind[0]]
        place = f"{DOINGS[doing]} of step {step}"
        if not ahead:
            return f"all ranks are stuck in {place} for {self.timeout:g} s"
        who = f"rank {behind[0]}" if len(behind) == 1 else f"each of the ranks {', '.join(map(str, behind))}"
        what = f"does not answer, last seen in {place}" if silent else f"is stuck in {place}"
        return f"{who} {what}; the other ranks have waited for {self.timeout:g} s"

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
        self.pause(4)  # the rank that speaks must not be ended by the end of another
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
