"""Files that anybody may have written: read within bounds, or refused in one line that names them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from geonorm import parse
from geonorm.cli.arguments import read
from geonorm.errors import ConfigError, DataError
from geonorm.lab.data import files
from geonorm.lab.data.cache import cache_folder
from geonorm.lab.data.files import open_zstandard
from geonorm.lab.distributed.ranks import from_bytes, to_bytes
from geonorm.models.sampling import sample
from geonorm.parsing import from_yaml
from geonorm.settings import Settings

from ...rows import each


def test_zstandard_is_decompressed_piece_by_piece(tmp_path: Path) -> None:
    """256 MiB of one letter are some kilobytes: no more than a few MiB of them are there at a time."""
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "bomb.txt.zst"
    path.write_bytes(zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 2**28))
    total = 0
    with open_zstandard(path) as file:
        while chunk := file.read1(1 << 16):
            total += len(chunk)
            assert len(file.raw.ready) <= 64 * 128 * 2**10  # type: ignore[attr-defined]
    assert total == 2**28


def test_a_line_of_json_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text('{"text": "short"}\n{"text": "' + "a" * 2**21 + '"}\n')
    assert len(list(files.read_documents(path))) == 2
    monkeypatch.setattr(files, "LINE_BYTES", 2**20)
    with pytest.raises(DataError, match=r"long.jsonl:2: a line of more than 1 MiB"):
        list(files.read_documents(path))


def test_a_file_that_is_read_whole_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("a" * 2**21)
    monkeypatch.setattr(files, "WHOLE_BYTES", 2**20)
    with pytest.raises(DataError, match=r"tokenizer.json: more than 1 MiB"):
        files.read_bytes(path)


def test_parquet_with_other_kinds_of_text(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    texts = ["one", "two", "one"]
    pq.write_table(pa.table({"url": ["x"] * 4, "text": [*texts, None]}), tmp_path / "a.parquet")
    assert list(files.read_documents(tmp_path / "a.parquet")) == texts
    for kind in (pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.large_string()):
        path = tmp_path / "some.parquet"
        column = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts, kind)
        try:
            pq.write_table(pa.table({"text": column, "n": [1, 2, 3]}), path)
        except pa.ArrowNotImplementedError:  # older ones read views of strings and cannot write them
            assert pa.types.is_string_view(kind)
        else:
            assert list(files.read_documents(path)) == texts


@each(
    "text, said",
    [
        ("a: &a [1]\nb: *a", "alias"),
        ("a: &a [*a]", "alias"),
        ("a: 1\na: 2", "given twice"),
        ("[" * 100_000, "deep|recursion"),
        ("a: " + "9" * 5000, "digits"),
        ("!!python/object/apply:os.system ['true']", "constructor"),
    ],
)
def test_yaml_is_plain(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_yaml(text)


@dataclass(frozen=True)
class Some(Settings):
    """Some."""

    steps: int = 1
    """How many."""
    names: list[str] = field(default_factory=list)
    """Which."""
    out: str = "x"
    """Where."""


@each(
    "words, said",
    [
        (["--steps", "9" * 5000], "a whole number, got '9{40,50}[.]{3}9{40,50}'"),
        (["--out", "a\0b"], "NUL character"),
        (["--out", "a\udcff"], "not valid Unicode"),
    ],
)
def test_arguments_that_cannot_be_used(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(Some, "geonorm test", words)


def test_home_is_found_where_something_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert read(Some, "geonorm test", ["--out=~/runs"]).out == "/somewhere/runs"


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("GEONORM_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(DataError, match="set GEONORM_CACHE"):
        cache_folder()


def test_schemes_with_numbers_that_fp32_has_not_and_with_commas() -> None:
    with pytest.raises(ConfigError, match="alpha must be a finite number of at most 1e\\+30, got 1e\\+300"):
        parse("geonorm(alpha=1e300)")
    with pytest.raises(ConfigError, match="several schemes are separated by spaces"):
        parse("pre,post")


@each("temperature", [1e-320, 1e-40, 1e-37, 1e-9])
def test_a_low_temperature_is_the_likeliest_token(temperature: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 100
    assert torch.equal(sample(logits, temperature, None, None), logits.argmax(-1, keepdim=True))


def test_what_ranks_tell_each_other_is_json() -> None:
    value = {"status": "new", "list": [1, None, "ä"]}
    assert from_bytes(to_bytes(value)) == value
    with pytest.raises(TypeError):
        to_bytes(object())
