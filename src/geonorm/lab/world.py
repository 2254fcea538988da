"""Which process of how many this is: `geonorm train` alone is a world of one, torchrun makes larger ones.

Nothing here knows about models. Collective calls must be made by every rank, in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from ..errors import GeonormError

T = TypeVar("T")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """This process among its peers. A world of one does no communication at all."""

    rank: int = 0
    size: int = 1
    saving: Any = None
    """A gloo group of its own for checkpoints: they are written by a second thread beside the training."""
    tensor: int = 1
    """Ranks, one after the other, that share every matrix and see the same data."""

    @property
    def first(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0

    @property
    def readers(self) -> int:
        """How many there are that read different data: groups of `tensor` ranks."""
        return self.size // self.tensor

    @property
    def reader(self) -> int:
        """Which of them this rank belongs to."""
        return self.rank // self.tensor

    @property
    def counts(self) -> bool:
        """Whether this rank speaks for its group where ranks are summed."""
        return self.rank % self.tensor == 0

    def mean(self, value: Tensor) -> Tensor:
        """Mean over ranks, in place, without waiting for a GPU."""
        if self.size > 1:
            dist.all_reduce(value)
            value /= self.size
        return value

    def total(self, values: list[float]) -> list[float]:
        """Sums over ranks, in fp64."""
        if self.size == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def highest(self, value: int) -> int:
        """The largest of the ranks' numbers: how ranks agree that one of them wants to stop."""
        if self.size == 1:
            return value
        found = torch.tensor(value)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)

    def shared(self, value: T) -> T:
        """The first rank's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def gathered(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def together(self, work: Callable[[], T]) -> T:
        """Runs `work` on every rank; if it fails on one, all raise that error, which says the rank if it is not the
        first. Without this the others would wait for ever."""
        if self.size == 1:
            return work()
        failure: tuple[type, str] | None = None
        try:
            result = work()
        except (GeonormError, OSError) as error:
            failure = (type(error) if isinstance(error, GeonormError) else GeonormError, str(error))
        for rank, found in enumerate(self.gathered(failure)):
            if found is not None:
                raise found[0](found[1] if rank == 0 else f"rank {rank}: {found[1]}")
        return result

    def in_turn(self, work: Callable[[], T]) -> T:
        """The first rank's work, then that of all others: they find in the cache what the first has prepared."""
        done = self.together(lambda: work() if self.first else None)
        return self.together(lambda: work() if done is None else done)


ALONE = World()
LEFT: list[Any] = []
"""Groups that live as long as the process. A group's end waits for its threads with the interpreter's lock held, and a
thread that has just finished a collective may need that lock to let go of its tensors: both would wait for ever."""


def launched() -> bool:
    """Whether torchrun, or something that speaks like it, started this process."""
    return all(name in os.environ for name in TORCHRUN)


def own_device(device: torch.device) -> torch.device:
    """This rank's device: of several GPUs on a machine the one with the rank's local number."""
    if device.type == "cuda" and device.index is None and launched():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The world that torchrun describes, or a world of one. gloo carries numbers of the CPU and checkpoints, NCCL those
    of GPUs."""
    if not launched():
        yield ALONE
        return
    store, rank, size = next(rendezvous("env://"))
    # torchrun keeps the store when it starts the ranks again, and in it the addresses of those that have died
    store = PrefixStore(f"life {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    own = {"store": store, "rank": rank, "world_size": size}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("cuda:nccl,cpu:gloo", device_id=device, **own)
    else:
        dist.init_process_group("gloo", **own)
    try:
        saving = dist.new_group(backend="gloo")
        LEFT.extend((dist.group.WORLD, saving))
        yield World(rank, size, saving)
    finally:
        dist.destroy_process_group()
