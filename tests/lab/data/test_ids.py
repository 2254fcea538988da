"""Token ids of other programs as data: the ids that were written are those that are trained on."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geonorm.errors import DataError
from geonorm.lab.data import load_tokenizer, open_source, tokenize

from ...rows import each
from ..conftest import summary

IDS = np.random.default_rng(0).integers(0, 250, 4000)
HEADER = np.zeros(256, "<i4")
HEADER[:3] = 20240520, 1, len(IDS)


def write_megatron(path: Path, ids: Any, code: int = 4, kind: str = "<i4") -> None:
    """Three sequences in two documents, as MMapIndexedDatasetBuilder writes them."""
    ids.astype(kind).tofile(path)
    lengths = [1000, 1500, len(ids) - 2500]
    places = np.cumsum([0, *lengths[:-1]]) * np.dtype(kind).itemsize
    parts = [np.array(lengths, "<i4"), places.astype("<i8"), np.array([0, 2, 3], "<i8")]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 3, 3)
    path.with_suffix(".idx").write_bytes(head + b"".join(part.tobytes() for part in parts))


WRITERS: list[tuple[str, Callable[[Path, Any], Any]]] = [
    ("a.bin", lambda path, ids: ids.astype("<u2").tofile(path)),
    ("b.bin", lambda path, ids: path.write_bytes(HEADER.tobytes() + ids.astype("<u2").tobytes())),
    ("c.bin", lambda path, ids: ids.astype("<u4").tofile(path)),
    ("d.bin", write_megatron),
    ("e.bin", lambda path, ids: write_megatron(path, ids, 8, "<u2")),
    ("a.npy", lambda path, ids: np.save(path, ids.astype(np.uint16))),
    ("b.npy", lambda path, ids: np.save(path, ids.astype(np.int32))),
]


@each("name, write", WRITERS)
def test_ids_are_read_as_they_are(name: str, write: Any, tmp_path: Path) -> None:
    write(tmp_path / name, IDS)
    source = open_source(str(tmp_path / name))
    data = tokenize(source, load_tokenizer("bpe", source, 250), tmp_path / "cache")
    assert (np.asarray(data.train) == IDS[:3800]).all() and (np.asarray(data.validation) == IDS[3800:]).all()
    assert data.train.dtype == np.uint16
    assert tokenize(source, load_tokenizer("none", source, 70_000), tmp_path / "cache").train.dtype == np.uint32
    with pytest.raises(DataError, match=r"holds ids from 0 to 249: --model.vocab_size 249 has 0 to 248"):
        tokenize(source, load_tokenizer("none", source, 249), tmp_path / "cache")


def test_a_folder_of_nanogpt_has_its_own_split(tmp_path: Path) -> None:
    for name, ids in (("train", IDS[:3000]), ("val", IDS[3000:])):
        ids.astype("<u2").tofile(tmp_path / f"{name}.bin")
    source = open_source(str(tmp_path))
    data = tokenize(source, load_tokenizer("none", source, 257), tmp_path / "cache")
    assert source.own_split and (np.asarray(data.validation) == IDS[3000:]).all() and len(data.train) == 3000
    (tmp_path / "val.bin").write_bytes((tmp_path / "train.bin").read_bytes())
    with pytest.raises(DataError, match=r"val.bin: its content is that of .*train.bin"):
        open_source(str(tmp_path))


@each(
    "name, content, line",
    [
        ("a.bin", b"odd", "3 bytes are no whole uint16 tokens"),
        ("a.bin", HEADER.tobytes() + b"ab", "2 bytes are no 4000 tokens that its header names"),
        ("a.npy", b"\x93NUMPY\x01\0\xff\xff", "not a readable .npy file"),
        ("m.bin", b"abcd", "m.idx does not describe the ids in m.bin, as an index of Megatron does"),
    ],
)
def test_what_holds_no_ids_is_one_line(name: str, content: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / "m.idx").touch()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=line):
        open_source(str(tmp_path / name))


def test_arrays_of_another_kind_and_ids_below_zero(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for array, line in ((np.zeros((2, 2), np.int32), "of shape"), (np.zeros(9), "float64 of shape")):
        np.save(path, array)
        with pytest.raises(DataError, match=line):
            open_source(str(path))
    np.save(path, -np.ones(99, np.int32))
    source = open_source(str(path))
    with pytest.raises(DataError, match="holds ids from -1 to -1"):
        tokenize(source, load_tokenizer("none", source, 257), tmp_path / "cache")
    np.save(path, np.ones(9, np.int32))
    with pytest.raises(DataError, match="has changed while it was read"):
        list(source.spans["train"][0].read())


def test_a_run_on_ids_measures_nats_and_refuses_text(train: Any, call: Any, text: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS.astype(np.uint16))
    out = tmp_path / "run"
    result = train(out, "--data", tmp_path / "ids.npy", "--tokens.tokenizer", "none", "--steps", 2)
    assert result.status == 0 and "bits per byte" not in result.out, result.err
    assert summary(out)["val_loss"] > 0 and summary(out)["val_bpb"] is None
    evaluated = call("eval", out, "--data", tmp_path / "ids.npy")
    assert evaluated.status == 0 and "bits_per_byte" in evaluated.out, evaluated.err
    for words in (["generate", out], ["generate", out, "--prompt", "a"], ["eval", out, "--data", text],
                  ["export", out, "--to", tmp_path / "to"]):  # fmt: skip
        refused = call(*words)
        assert refused.status == 2 and "no tokenizer" in refused.err and refused.err.count("\n") == 1, refused


def test_a_run_on_a_mixture_is_resumed_to_the_bit(
    train: Any, call: Any, after: Any, losses: Any, text: Path, tmp_path: Path
) -> None:
    """Its documents hidden from each other; other weights are other data. Its parts are text that it was trained on."""
    lines = [json.dumps({"text": f"{number} dunes " * 20}) for number in range(60)]
    (other := tmp_path / "other.jsonl").write_text("\n".join(lines))
    words = ["--data", f"3*{text} + {other}", "--model.document_end", 256, "--steps", 4]
    with after(2):
        assert train(tmp_path / "run", *words).status == 130
    assert train(tmp_path / "run", *words).status == train(tmp_path / "whole", *words).status == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    ended = summary(tmp_path / "run")
    assert ended["val_bpb"] == pytest.approx(ended["val_loss"] / np.log(2), rel=0.02), "one byte a token but for ends"
    for change, line in (
        ({1: f"2*{text} + {other}"}, "holds a run with data 3"),
        ({3: 10}, "256 ends a document here: set --model"),
    ):
        refused = train(tmp_path / "run", *[change.get(place, word) for place, word in enumerate(words)])
        assert refused.status == 2 and line in refused.err, refused
    assert '"held-out"' in call("eval", tmp_path / "run", "--data", text).out
