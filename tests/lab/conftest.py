"""A text, a model and a command line small enough to train in a fraction of a second."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from geonorm.cli import main

WORDS = "the cat sat on a mat and saw that residual streams grow with depth while spheres keep their radius".split()
MODEL = (
    "--model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 --model.vocab_size 257 "
    "--tokens.tokenizer byte --evaluation.tokens 256 --evaluation.trace_tokens 64 --runtime.device cpu"
).split()


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """17 kB of ASCII."""
    words = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text("".join(" ".join(words.choices(WORDS, k=8)) + ".\n" for _ in range(400)))
    return path


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tokens are prepared once for all tests, and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEONORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def tiny(text: Path) -> list[str]:
    """Arguments of train and compare for the smallest model, without TensorBoard."""
    return [*MODEL, "--data", str(text), "--runtime.tensorboard", "false"]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process."""

    def run(*arguments: Any) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def train(call: Command, tiny: list[str]) -> Command:
    """geonorm train with the smallest model: train(out, *options). The caller's options replace the same ones here."""

    def run(out: Path, *options: Any) -> Result:
        given = {word for word in options if str(word).startswith("--")}
        pairs = zip(tiny[::2], tiny[1::2], strict=True)
        return call("train", *(word for pair in pairs if pair[0] not in given for word in pair), "--out", out, *options)

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def losses() -> Callable[[Path], list[tuple[Any, ...]]]:
    """What of a run's metrics must repeat bit for bit."""

    def read(run: Path) -> list[tuple[Any, ...]]:
        keys = ("step", "tokens", "loss", "lr", "grad_norm", "val_loss")
        return [tuple(row.get(key) for key in keys) for row in rows(run / "metrics.jsonl")]

    return read
