"""Finds the rank that holds up the others, from the moment they meet. Ranks wait for each other in every step, so when
one is stuck all are, and none of them knows which it is: each says through a store where it stands, and the one
furthest behind is it. A rank that does not say so any more is stopped or dead, the store's own among them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from threading import Event, Thread
from typing import Any

from ... import output

DOINGS = (
    "meeting the others", "preparing the data", "building the model", "reading the checkpoint", "reading the batch",
    "forward and backward", "the optimizer's step", "evaluation", "tasks", "saving", "the end",
)  # fmt: skip
"""In the order of a run, and of one step."""
STATUS = 3


@dataclass
class Place:
    """Where a rank said last that it stands; seconds without progress there; when it was first heard to say so."""

    step: int
    doing: int
    beat: int
    age: float
    heard: float

    def __str__(self) -> str:
        return name_place(self.step, self.doing)


def name_place(step: int, doing: int) -> str:
    return DOINGS[doing] + (f" of step {step}" if step else "")


class Watchdog:
    """Publishes where this rank stands and watches all once nothing moves here. Without a store it does nothing.
    `host`: the rank in whose process the store is; None if it is in none of them."""

    def __init__(
        self, rank: int = 0, size: int = 1, timeout: float = inf, store: Any = None, host: int | None = 0
    ) -> None:
        self.rank, self.size, self.timeout, self.store, self.host = rank, size, timeout, store, host
        self.here = (0, 0)
        self.since = time.monotonic()
        self.tick = min(1.0, timeout / 10)
        self.patience = max(5.0, 4 * self.tick)  # a busy machine may well keep a thread waiting for a second or two
        self.beat = 0
        self.places: dict[int, Place] = {}
        self.looked = self.began = inf  # when the places were read last, and since when they are

    def at(self, step: int, doing: str) -> None:
        """This rank now does this, one of DOINGS, in this step."""
        self.here = (step, DOINGS.index(doing))
        self.get_on()

    def get_on(self) -> None:
        """This rank still does what it said last, and is not stuck in it. Costs an assignment."""
        self.since = time.monotonic()

    @property
    def place(self) -> str:
        """Where this rank stands, in words."""
        return name_place(*self.here)

    @property
    def age(self) -> float:
        return time.monotonic() - self.since

    def talk(self, over: Event) -> None:
        """Runs in a thread, which may be held up by a store that does not answer. Says at once where this rank stands:
        it may be stopped the next moment."""
        try:
            while True:
                self.publish()
                if self.age > self.timeout / 2:
                    self.read()
                if over.wait(self.tick):
                    return
        except RuntimeError:  # the store is gone: what `judge` sees is that nothing new comes
            return

    def publish(self) -> None:
        step, doing = self.here
        self.beat += 1
        self.store.set(f"rank {self.rank}", f"{step} {doing} {self.beat} {self.age}")

    def read(self) -> None:
        """What all ranks have said last; those that never came are left out."""
        self.began = min(self.began, time.monotonic())
        for rank in range(self.size):
            if self.store.check([f"rank {rank}"]):
                step, doing, beat, age = self.store.get(f"rank {rank}").split()
                known = self.places.get(rank)
                heard = known.heard if known and known.beat == int(beat) else time.monotonic()
                self.places[rank] = Place(int(step), int(doing), int(beat), float(age), heard)
        self.looked = time.monotonic()

    def watch(self, over: Event) -> None:
        """Runs in a thread until the training is over; ends the process if nothing has moved for the timeout."""
        while not over.wait(self.tick):
            if self.age > self.timeout and time.monotonic() - self.began > self.patience:
                verdict = self.judge()
                if verdict is not None and not over.is_set():
                    self.end(verdict)

    def judge(self) -> str | None:
        """Which rank is stuck, and where: one that does not answer any more, or else the one furthest behind. Empty on
        all ranks but the one that says it; None while a rank still gets on."""
        waited = f"the other ranks have waited for {self.timeout:g} s"
        now, places = time.monotonic(), dict(self.places)
        if now - min(self.looked, now) > self.patience or not places:
            if self.host is None:
                return "torchrun, which holds the ranks' store, does not answer" if self.rank == 0 else ""
            last = f", last seen in {places[self.host]}" if self.host in places else ""
            speaks = self.rank == (1 if self.host == 0 else 0)
            return f"rank {self.host} does not answer{last}; {waited}" if speaks else ""
        silent = [r for r in range(self.size) if r not in places or now - places[r].heard > self.patience]
        if any(places[r].age < self.timeout for r in places if r not in silent):
            return None
        least = min((place.step, place.doing) for place in places.values())
        behind = silent or [r for r, place in places.items() if (place.step, place.doing) == least]
        ahead = [r for r in places if r not in behind]
        if self.rank != (ahead or behind)[0]:
            return ""
        place = places.get(behind[0])
        if not ahead:
            return f"all ranks are stuck in {place} for {self.timeout:g} s"
        who = f"rank {behind[0]}" if len(behind) == 1 else f"each of the ranks {', '.join(map(str, behind))}"
        if place is None:
            return f"{who} has not come; {waited}"
        return f"{who} {'does not answer, last seen' if silent else 'is stuck'} in {place}; {waited}"

    def end(self, verdict: str) -> None:
        """The main thread is stuck, so that nothing but the end of the process helps; torchrun starts it again if
        --max-restarts says so."""
        if verdict:
            output.complain(f"geonorm train: {verdict}; the run goes on from its last checkpoint")
        time.sleep(max(1.0, 4 * self.tick))  # the rank that speaks must not be ended by the end of another
        os._exit(STATUS)


@contextmanager
def run_watchdog(dog: Watchdog) -> Iterator[None]:
    """The watchdog's threads at work."""
    if dog.store is None:
        yield
        return
    over = Event()
    threads = [Thread(target=work, args=(over,), name="watchdog", daemon=True) for work in (dog.talk, dog.watch)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        threads[0].join(dog.patience)  # longer only if the store holds it up
        threads[1].join()
