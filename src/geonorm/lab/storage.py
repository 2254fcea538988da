"""Checkpoint files: torch.distributed.checkpoint plans who writes and reads what, these classes do the writing.

    step-N/  model.safetensors  optimizer.safetensors  random.safetensors  state.json               one process
    step-N/  model-00001-of-00002.safetensors ...                           state.json              several

Tensors are safetensors, everything else is JSON: DCP's own file format pickles its metadata, and nothing here reads or
writes a pickle (docs/design/0003). A file holds whole tensors or shards; where a shard begins stands in the file's
header. state.json is written last, names every file with its sha256, and itself. A folder is written aside under
another name and renamed when all of it is on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.futures import Future

from ..errors import CheckpointError, cause
from ..parsing import from_json

MARKER = "state.json"
FORMAT = 1
"""Of the files of a checkpoint. A version of the program that writes others has another number, and reads or refuses
this one."""
UMASK = os.umask(0o022)
os.umask(UMASK)
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""What safetensors calls them."""
UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, TypeError)


def file_name(kind: str, rank: int, size: int) -> str:
    return f"{kind}.safetensors" if size == 1 else f"{kind}-{rank + 1:05}-of-{size:05}.safetensors"


def kind_of(file: str) -> str:
    """model, optimizer, random or average."""
    return file.split(".")[0].split("-")[0]


class Writer(FileSystemWriter):
    """Writes folder/step-N. Tensors are named KIND.NAME and go to the file of their kind as NAME. Every method of
    torch's class that touches a file is replaced."""

    def __init__(self, folder: Path, step: int, rank: int, size: int, state: dict[str, Any]) -> None:
        self.target, self.aside = folder / f"step-{step}", folder / f".step-{step}"
        super().__init__(self.aside)
        self.folder, self.number, self.size, self.state = folder, rank, size, {**state, "step": step}

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Runs on the first rank, before any rank writes."""
        clear(self.folder)
        self.aside.mkdir()  # without parents: a directory that was removed does not grow back
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[Any]:
        tensors: dict[str, dict[str, Tensor]] = {}
        offsets: dict[str, dict[str, list[int]]] = {}
        for item in plan.items:
            kind, name = item.index.fqn.split(".", 1)
            tensor = cast(Tensor, planner.resolve_data(item)).detach()
            tensors.setdefault(kind, {})[name] = tensor.contiguous()
            assert item.tensor_data is not None
            if any(start := list(item.tensor_data.chunk.offsets)):
                offsets.setdefault(kind, {})[name] = start
        sums = {}
        for kind in sorted(tensors):
            path = self.aside / file_name(kind, self.number, self.size)
            save_file(tensors[kind], path, {"offsets": json.dumps(offsets.get(kind, {}))})
            path.chmod(0o666 & ~UMASK)  # safetensors lets the owner alone read it
            sync(path)
            sums[path.name] = checksum(path)
        done: Future[Any] = Future()
        done.set_result([sums])
        return done

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Runs on the first rank, after all ranks have written."""
        sums = {name: digest for rank in results for written in rank for name, digest in written.items()}
        state = {**self.state, "format": FORMAT, "world_size": self.size, "sha256": dict(sorted(sums.items()))}
        with open(self.aside / MARKER, "w", encoding="utf-8") as file:
            json.dump({**state, "state_sha256": digest_of(state)}, file)
        sync(self.aside / MARKER)
        sync(self.aside)
        if self.target.exists():
            os.replace(self.target, self.aside.with_name(f".replaced-{self.target.name}"))
        os.replace(self.aside, self.target)
        sync(self.folder)
        clear(self.folder)


class Reader(FileSystemReader):
    """Reads what Writer wrote, at any world size."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        super().__init__(folder)
        self.folder, self.files = folder, files

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Names, sizes and chunks of all tensors, from the headers of the files."""
        tensors: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, tuple[Path, str]] = {}
        for file in self.files:
            path = self.folder / file
            with safe_open(path, framework="pt") as opened:
                starts = json.loads((opened.metadata() or {}).get("offsets", "{}"))
                for name in opened.keys():  # noqa: SIM118 not a dict
                    header = opened.get_slice(name)
                    shape = header.get_shape()
                    start = starts.get(name, [0] * len(shape))
                    key = f"{kind_of(file)}.{name}"
                    chunk = ChunkStorageMetadata(offsets=torch.Size(start), sizes=torch.Size(shape))
                    size = [a + b for a, b in zip(start, shape, strict=True)]
                    if key in tensors:
                        tensors[key].chunks.append(chunk)
                        size = [max(a, b) for a, b in zip(size, tensors[key].size, strict=True)]
                        tensors[key].size = torch.Size(size)
                    else:
                        properties = TensorProperties(dtype=DTYPES[header.get_dtype()])
                        tensors[key] = TensorStorageMetadata(properties, torch.Size(size), [chunk])
                    places[MetadataIndex(key, torch.Size(start))] = (path, name)
        return Metadata(state_dict_metadata=dict(tensors), storage_data=places)

    def tensors(self) -> dict[str, TensorStorageMetadata]:
        """What the files hold: there is nothing but tensors in them. CheckpointError if one cannot be read."""
        try:
            return cast(dict[str, TensorStorageMetadata], self.read_metadata().state_dict_metadata)
        except UNREADABLE as error:
            raise unreadable_error(self.folder, error) from error

    def fill(self, tensors: dict[str, Tensor], alone: bool = True) -> None:
        """Reads into these tensors, whatever their sharding. CheckpointError if a file cannot be read."""
        ignore_single_process()
        try:
            dcp_load(dict(tensors), storage_reader=self, no_dist=alone)
        except CheckpointException as failed:
            raise unreadable_error(self.folder, next(iter(failed.failures.values()))[0]) from failed

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[Path, list[tuple[str, Any]]] = {}
        for item in plan.items:
            path, name = self.storage_data[item.storage_index]
            wanted.setdefault(path, []).append((name, item))
        for path, items in wanted.items():
            with safe_open(path, framework="pt") as opened:
                for name, item in items:
                    part = tuple(slice(a, a + n) for a, n in zip(item.storage_offsets, item.lengths, strict=True))
                    stored = opened.get_slice(name)
                    found = stored[part] if part else opened.get_tensor(name)
                    into = planner.resolve_tensor(item)
                    into.detach().copy_(found)
                    planner.commit_tensor(item, into)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def read_state(path: Path) -> dict[str, Any]:
    """The content of state.json. CheckpointError if it is missing, damaged or of another step."""
    try:
        state: dict[str, Any] = from_json((path / MARKER).read_text(encoding="utf-8"))
        if state.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {state.get('format')}, and this version of geonorm reads {FORMAT}"
            )
        if state.pop("state_sha256") != digest_of(state):
            raise CheckpointError(f"checkpoint {path} is corrupt: the checksum of {MARKER} differs")
        if path.name != f"step-{state['step']}":
            raise CheckpointError(f"checkpoint {path} is corrupt: it says step {state['step']}")
        if not all(isinstance(name, str) and Path(name).name == name for name in state["sha256"]):
            raise CheckpointError(f"checkpoint {path} is corrupt: it names files elsewhere")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable_error(path, error) from error
    return state


def verify(path: Path, sums: Iterable[tuple[str, str]]) -> None:
    """CheckpointError if a file is missing or its content is not what was written."""
    for name, digest in sums:
        try:
            found = checksum(path / name)
        except OSError as error:
            raise unreadable_error(path, error) from error
        if found != digest:
            raise CheckpointError(f"checkpoint {path} is corrupt: the checksum of {name} differs")


def read_tensors(path: Path, files: list[str]) -> dict[str, Tensor]:
    """All tensors of some files of one kind by name, put together from their shards."""
    reader = Reader(path, files)
    tensors = {key: torch.empty(about.size, dtype=about.properties.dtype) for key, about in reader.tensors().items()}
    reader.fill(tensors)
    return {key.split(".", 1)[1]: tensor for key, tensor in tensors.items()}


def unreadable_error(path: Path, error: BaseException) -> CheckpointError:
    """The error as a CheckpointError of one line."""
    if isinstance(error, CheckpointError):
        return error
    return CheckpointError(f"checkpoint {path} is not readable: {cause(error)}")


def ignore_single_process() -> None:
    """DCP warns when there is no process group; one process is no mistake here."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")


def clear(folder: Path) -> None:
    """Removes what a save that was cut short left behind."""
    for left in folder.glob(".*step-*"):
        shutil.rmtree(left, ignore_errors=True)


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
