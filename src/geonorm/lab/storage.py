"""Checkpoint files: safetensors with checksums that appear all at once, planned and read by DCP
(torch.distributed.checkpoint).

    step-N/  model.safetensors  optimizer.safetensors  random.safetensors  state.json               one process
    step-N/  model-00001-of-00002.safetensors ...                           state.json              several

Tensors are safetensors, everything else is JSON: nothing here reads or writes a pickle (docs/design/0003). A file holds
whole tensors or shards, by KIND.NAME, in the format of DCP's HuggingFaceStorageReader. state.json is written last; it
has the sha256 of every file, and of its own content. A folder is written under a temporary name, and renamed when all
of it is on the disk.

DCP's HuggingFaceStorageWriter is not used: it puts each file together in memory, a second copy of all that is saved,
and orders its header at random, so that equal checkpoints differ in their bytes.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.futures import Future

from ..errors import CheckpointError, cause, explained, require
from ..parsing import from_json
from .data.files import open_regular
from .distributed.ranks import World
from .runs.folder import digest_of

MARKER = "state.json"
FORMAT = 3
"""Number of the checkpoint format. A version of the program that writes another format has another number, and reads or
refuses this one."""
UMASK = os.umask(0o022)
os.umask(UMASK)
Headers = dict[str, TensorStorageMetadata]
"""Size, dtype and shards of the tensors of a checkpoint, by KIND.NAME."""


def kind_of(name: str) -> str:
    """The kind of a tensor, or of a file: model, optimizer, average or random."""
    return name.split(".")[0].split("-")[0]


class Writer(FileSystemWriter):
    """Writes folder/step-N: each rank its files and their checksums, the first rank state.json at the end. Then it
    removes all but the newest `keep` checkpoints and that of step `protected`."""

    def __init__(
        self, folder: Path, step: int, world: World, state: dict[str, Any], keep: int, protected: int | None
    ) -> None:
        self.target, self.aside = folder / f"step-{step}", folder / f".step-{step}"
        super().__init__(self.aside)
        self.folder, self.step, self.world, self.state = folder, step, world, {**state, "step": step}
        self.keep, self.protected = keep, protected

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Runs on the first rank, before any rank writes."""
        clear(self.folder)
        self.aside.mkdir()  # without parents: a directory that was removed does not grow back
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[Any]:
        tensors: dict[str, dict[str, Tensor]] = {}
        shards: dict[str, dict[str, Any]] = {}
        for item in plan.items:
            name, kind = item.index.fqn, kind_of(item.index.fqn)
            assert item.tensor_data is not None
            tensors.setdefault(kind, {})[name] = cast(Tensor, planner.resolve_data(item)).detach().contiguous()
            shards.setdefault(kind, {})[name] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
        sums = {}
        for kind in sorted(tensors):
            part = f"-{self.world.rank + 1:05}-of-{self.world.size:05}" if self.world.size > 1 else ""
            path = self.aside / f"{kind}{part}.safetensors"
            save_file(tensors[kind], path, {"DCP_SHARDING_INFO": json.dumps(shards[kind], sort_keys=True)})
            path.chmod(0o666 & ~UMASK)  # safetensors lets the owner alone read it
            sync(path)
            sums[path.name] = checksum(path)
        done: Future[Any] = Future()
        done.set_result([sums])
        return done

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Runs on the first rank, after all ranks have written."""
        sums = {name: digest for rank in results for written in rank for name, digest in written.items()}
        state = {**self.state, "format": FORMAT, "world_size": self.world.size, "sha256": dict(sorted(sums.items()))}
        with open(self.aside / MARKER, "w", encoding="utf-8") as file:
            json.dump({**state, "state_sha256": digest_of(state)}, file)
        sync(self.aside / MARKER)
        sync(self.aside)
        if self.target.exists():
            os.replace(self.target, self.aside.with_name(f".replaced-{self.target.name}"))
        os.replace(self.aside, self.target)
        sync(self.folder)
        clear(self.folder)
        # later checkpoints go, too: they were passed over as corrupt, or belong to steps that were rewound
        steps = saved_steps(self.folder)
        current = [step for step in steps if step <= self.step]
        for old in set(steps) - {*current[-self.keep :], *({self.protected} & {*current})}:
            shutil.rmtree(self.folder / f"step-{old}", ignore_errors=True)


def saved_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, ascending."""
    names = (entry.name for entry in folder.glob("step-*") if entry.is_dir())
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def read_headers(path: Path) -> Headers:
    """What a checkpoint holds. CheckpointError if a file cannot be read."""
    with readable(path):
        tensors = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    return {name: about for name, about in tensors.items() if isinstance(about, TensorStorageMetadata)}


def read_into(path: Path, tensors: dict[str, Tensor], alone: bool = True) -> None:
    """Reads tensors of a checkpoint into those of the same names, whatever the sharding of either. alone: without a
    process group. CheckpointError if a file cannot be read."""
    ignore_single_process()
    try:
        dcp_load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(path)), no_dist=alone)
    except CheckpointException as failed:
        first, _ = next(iter(failed.failures.values()))
        raise CheckpointError(f"checkpoint {path} is not readable ({cause(first)})") from failed


def read_state(path: Path) -> dict[str, Any]:
    """The content of state.json. CheckpointError if it is missing, damaged or of another step."""
    with readable(path):
        state: dict[str, Any] = from_json((path / MARKER).read_text(encoding="utf-8"))
        if state.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {state.get('format')}, and this version of geonorm reads {FORMAT}"
            )
        if state.pop("state_sha256") != digest_of(state):
            raise CheckpointError(f"checkpoint {path} is corrupt: the checksum of {MARKER} differs")
        if path.name != f"step-{state['step']}":
            raise CheckpointError(f"checkpoint {path} is corrupt: it says step {state['step']}")
    return state


def weights_sha256(state: dict[str, Any]) -> str:
    """sha256 of all weight files of a checkpoint, by the hashes in its state."""
    return digest_of({name: digest for name, digest in state["sha256"].items() if kind_of(name) == "model"})


def verify(path: Path, sums: Iterable[tuple[str, str]]) -> None:
    """CheckpointError if a file is missing or its content is not what was written."""
    for name, digest in sums:
        with readable(path):
            actual = checksum(path / name)
        require(actual == digest, f"checkpoint {path} is corrupt: the checksum of {name} differs", CheckpointError)


def readable(path: Path) -> AbstractContextManager[None]:
    """Inside, errors that a damaged checkpoint raises are a CheckpointError of one line."""
    damage = OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError
    return explained(f"checkpoint {path} is not readable", CheckpointError, *damage)


def ignore_single_process() -> None:
    """Silences DCP's warning that there is no process group: a run may be a single process."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")


def clear(folder: Path) -> None:
    """Removes what a save that was cut short left behind."""
    for left in folder.glob(".*step-*"):
        shutil.rmtree(left, ignore_errors=True)


def checksum(path: Path) -> str:
    """sha256 of a file. DataError if it is not a regular file: a pipe may have taken its place since its folder was
    listed."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Returns when a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
