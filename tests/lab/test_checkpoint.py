"""Checkpoints alone: round trips, pruning, saves that fail, no pickle."""

import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import HuggingFaceStorageReader

import geonorm
from geonorm.errors import CheckpointError, DataError
from geonorm.lab import checkpoint, storage
from geonorm.lab.config import Optim
from geonorm.lab.train import optim
from geonorm.models import Decoder, DecoderConfig

SMALL = DecoderConfig(scheme="geonorm", layers=2, width=16, heads=2, hidden=16, vocab_size=32, context=8)


def trained() -> tuple[Decoder, list[Any]]:
    model = Decoder(SMALL)
    optimizers = optim.build_optimizers(model, Optim(), 1e-3)
    ids = torch.arange(16).view(2, 8)
    model.loss(ids, ids).backward()
    for optimizer in optimizers:
        optimizer.step()
    return model, optimizers


def save(folder: Path, step: int) -> Path:
    with closing(checkpoint.Saver(folder, keep=1)) as saver:
        saver.save(step, *trained(), {})
        saver.wait()
    return folder / f"step-{step}"


def weights(path: Path, kinds: str = "model") -> dict[str, torch.Tensor]:
    """All weights of a checkpoint, or its tensors of some kinds, whole, whatever number of ranks saved them."""
    headers = {name: about for name, about in storage.read_headers(path).items() if storage.kind_of(name) in kinds}
    tensors = {name: torch.empty(about.size, dtype=about.properties.dtype) for name, about in headers.items()}
    storage.read_into(path, tensors)
    return tensors


def test_another_model_is_named_and_nothing_changes(tmp_path: Path) -> None:
    for step in (4, 1, 2):
        save(tmp_path, step)
    assert (tmp_path / "step-2/model.safetensors").stat().st_mode & 0o777 == 0o666 & ~storage.UMASK
    assert checkpoint.saved_steps(tmp_path) == [2], "older ones go, and later ones, of steps that were taken back"
    other = Decoder(DecoderConfig(**{**vars(SMALL), "hidden": 8}))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"of another model: blocks\.0\.mlp\.branch\.down\.weight does not fit"):
        checkpoint.load_checkpoint(tmp_path / "step-2", other)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_a_checkpoint_has_its_name_when_all_is_on_the_disk(train: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Its rows before its files, these before its name; a power cut leaves no name without content."""
    calls, replace = list[str](), os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name))
    monkeypatch.setattr(os, "replace", lambda old, new: calls.append(f"-> {Path(new).name}") or replace(old, new))
    assert train(tmp_path / "run", "--steps", 1).status == 0
    files = [f"{kind}.safetensors" for kind in ("model", "optimizer", "random")]
    saved = ["metrics.jsonl", "trace.jsonl", "norms.jsonl", *files, "state.json", ".step-1", "-> step-1", "checkpoints"]
    begin = calls.index("metrics.jsonl")
    assert calls[begin : begin + len(saved)] == saved
    assert calls[-2].startswith(".summary.json.") and calls[-1] == "-> summary.json"


def test_what_a_checkpoint_lacks_is_said(tmp_path: Path) -> None:
    model, path = Decoder(SMALL), save(tmp_path, 2)
    with pytest.raises(CheckpointError, match="it says step 2"):
        checkpoint.load_checkpoint(path.rename(tmp_path / "step-3"), model)
    os.mkfifo((tmp_path / "step-3").rename(path) / "pipe")
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"the checksum of model\.safetensors differs"):
        checkpoint.load_checkpoint(path, model)
    with pytest.raises(DataError, match="not a regular file"):
        storage.checksum(path / "pipe")
    (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"step-2 has format None, and this version of geonorm reads 3$"):
        checkpoint.load_checkpoint(path, model)
    with pytest.raises(CheckpointError, match="geonorm reads 3; no usable checkpoint is left in"):
        checkpoint.load_newest(tmp_path, model, None, pytest.fail)


def test_no_pickle_in_the_source() -> None:
    folder = Path(geonorm.__file__).parent
    sources = [path for path in folder.rglob("*.py") if path.name != "stdlib.py"]  # a list of module names
    assert len(sources) > 40
    for path in sources:
        found = re.findall(
            r"torch\.(?:load|save)\(|\bimport pickle|\bpickle\.|\bshelve\b|allow_pickle=True", path.read_text()
        )
        assert not found, f"{path}: {found}"
    # those of torch's other storages unpickle and pickle
    assert {"read_metadata", "read_data"} <= vars(HuggingFaceStorageReader).keys()
    assert {"prepare_local_plan", "prepare_global_plan", "write_data", "finish"} <= vars(storage.Writer).keys()
