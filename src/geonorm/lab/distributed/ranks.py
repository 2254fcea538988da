"""Which process of how many this is: `geonorm train` alone is a world of one, torchrun makes larger ones.

Nothing here knows about models. Collective calls must be made by every rank, in the same order.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from ...errors import CheckpointError, ConfigError, DataError, GeonormError, cause, is_out_of_memory, require
from ...output import placed

T = TypeVar("T")
KINDS = {kind.__name__: kind for kind in (GeonormError, ConfigError, DataError, CheckpointError)}
TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for another, at the start and in every collective."""


@dataclass(frozen=True)
class World:
    """This process among its peers. A world of one does no communication at all."""

    rank: int = 0
    size: int = 1
    local_size: int = 1
    """Ranks on this machine."""
    saving: Any = None
    """A gloo group of its own for checkpoints: they are written by a second thread beside the training."""

    @property
    def first(self) -> bool:
        """True on the rank that prints and writes for all."""
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """Mean over ranks, in place, without waiting for a GPU."""
        if self.size > 1:
            dist.all_reduce(value)
            value /= self.size
        return value

    def total(self, values: list[float]) -> list[float]:
        """Sums over ranks, in fp64."""
        return [sum(each) for each in zip(*self.gather(values), strict=True)]

    def highest(self, value: int) -> int:
        """The largest of the ranks' numbers. In this way one rank that wants to stop stops all."""
        if self.size == 1:
            return value
        largest = torch.tensor(value)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def broadcast(self, value: T) -> T:
        """The first rank's value, on every rank."""
        return self.gather(value)[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank. It travels as JSON: nothing that comes from outside is unpickled."""
        if self.size == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(text)]))
        room = max(int(size) for size in sizes)
        texts = [torch.empty(room, dtype=torch.uint8) for _ in sizes]
        dist.all_gather(texts, torch.nn.functional.pad(text, (0, room - len(text))))
        return [json.loads(bytes(padded[: int(size)].tolist())) for padded, size in zip(texts, sizes, strict=True)]

    def on_all_ranks(self, work: Callable[[], T]) -> T:
        """Runs `work` on every rank; if it fails on one, all raise that error, which names the rank unless it is the
        first. Otherwise the others would wait for ever."""
        if self.size == 1:
            return work()
        own_failure: tuple[str, str] | None = None
        try:
            result = work()
        except (GeonormError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise  # a fault of the program: it is shown whole, and ends this rank
            own_failure = (type(error).__name__, " ".join(str(error).split()) or "out of memory")
        for rank, failure in enumerate(self.gather(own_failure)):
            if failure is not None:
                kind, text = failure
                raise raised_by_all_ranks(KINDS.get(kind, GeonormError)(text if rank == 0 else f"rank {rank}: {text}"))
        return result


ALONE = World()
KEPT_GROUPS: list[Any] = []
"""Groups of ranks that live as long as the process. A group's end waits for its threads with the interpreter's lock
held, and a thread that has just finished a collective may need that lock to let go of its tensors: both would wait for
ever."""


def raised_by_all_ranks(error: GeonormError) -> GeonormError:
    """Marks an error that all ranks raise alike, so that only the first one prints it."""
    error.agreed = True
    return error


def rank_device(device: torch.device) -> torch.device:
    """This rank's device: of several GPUs on a machine the one with the rank's local number."""
    if device.type == "cuda" and device.index is None and placed():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


@contextmanager
def join_world(device: torch.device, prepare: Callable[[World], object] = lambda world: None) -> Iterator[World]:
    """The world that torchrun describes, or a world of one. The first rank does `prepare` while the others wait for it,
    however long that takes: TIMEOUT begins after it. What fails there fails again later, on all ranks. gloo carries
    tensors on the CPU and checkpoints, NCCL tensors on GPUs. A rank that waits longer than TIMEOUT for another, or sees
    it end, raises."""
    if not placed():
        yield ALONE
        return
    numbers = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")]
    valid = all(text.isdecimal() for text in numbers) and int(numbers[0]) < int(numbers[1]) and int(numbers[3]) < 2**16
    require(
        valid, f"$RANK, $WORLD_SIZE, $LOCAL_RANK, $MASTER_PORT {' '.join(numbers)}: start with torchrun, or unset them"
    )
    rank, size = int(numbers[0]), int(numbers[1])
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    try:
        # torchrun started its ranks again: the store still holds keys of their earlier life
        store = PrefixStore(f"life {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", open_store())
        if rank == 0:
            with suppress(GeonormError, OSError, MemoryError):
                prepare(World(rank, size, local_size))
            store.set("prepared", "")
        store.wait(["prepared"], timedelta(days=7))
        options: dict[str, Any] = {"store": store, "rank": rank, "world_size": size, "timeout": TIMEOUT}
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options["device_id"] = device
        dist.init_process_group("cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo", **options)
        try:
            saving = dist.new_group(backend="gloo", timeout=TIMEOUT)
            KEPT_GROUPS.extend((dist.group.WORLD, saving))
            yield World(rank, size, local_size, saving)
        finally:
            dist.destroy_process_group()
    except Exception as error:
        error.rank = rank  # type: ignore[attr-defined]  # whoever says it says where it happened
        if isinstance(error, ConfigError):  # the settings are the same everywhere
            error.agreed = True
        raise


def open_store() -> Any:
    """The store through which ranks find each other. GeonormError where it cannot be reached."""
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        socket.getaddrinfo(host, port)  # torch would try a name that does not exist until TIMEOUT
        return next(rendezvous("env://", timeout=TIMEOUT))[0]
    except (dist.DistError, OSError) as error:
        raise GeonormError(f"ranks cannot meet at $MASTER_ADDR {host}, $MASTER_PORT {port}: {cause(error)}") from None


@contextmanager
def lost_peers_in_one_line(world: World) -> Iterator[None]:
    """One line for what a rank sees when another has died or does not answer; any other error is itself."""
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise GeonormError(
            f"lost another rank, or waited {TIMEOUT.total_seconds() / 60:g} minutes for it; the same command goes on "
            "from the last checkpoint, and torchrun --max-restarts N does so by itself"
        ) from error
