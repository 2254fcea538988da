"""A text, a model and a command line small enough to train in a fraction of a second."""

import contextlib
import io
import json
import math
import multiprocessing
import os
import random
import runpy
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from geonorm import report
from geonorm.cli.main import main
from geonorm.lab.compare import executors as team
from geonorm.lab.config import TrainConfig
from geonorm.settings import from_dict

WORDS = "the cat sat on a mat and saw that residual streams grow with depth while spheres keep their radius".split()
MODEL = (
    "--model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 --model.vocab_size 257 "
    "--tokens.tokenizer byte --evaluation.tokens 256 --evaluation.trace_tokens 64 --runtime.device cpu"
).split()
SMALL = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "context": 16, "vocab_size": 257}


def small_config(data: Path, **settings: Any) -> TrainConfig:
    """The settings of a run of four steps with the smallest model."""
    known: dict[str, Any] = {"model": SMALL, "data": str(data), "tokens": {"tokenizer": "byte"}, "steps": 4}
    known |= {"runtime": {"device": "cpu", "tensorboard": False}, "evaluation": {"tokens": 256, "trace_tokens": 0}}
    config: TrainConfig = from_dict(TrainConfig, known | settings)
    return config


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text("".join(" ".join(words.choices(WORDS, k=8)) + ".\n" for _ in range(400)))
    return path


@pytest.fixture
def tiny(text: Path) -> list[str]:
    """Arguments of train and compare for the smallest model, without TensorBoard."""
    return [*MODEL, "--data", str(text), "--runtime.tensorboard", "false"]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: Any) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def train(call: Command, tiny: list[str]) -> Command:
    """geonorm train with the smallest model: train(out, *options). The caller's options replace the same ones here."""

    def run(out: Path, *options: Any) -> Result:
        return call("train", *without(tiny, options), "--out", out, *options)

    return run


def without(words: Sequence[Any], options: Sequence[Any]) -> list[Any]:
    """Pairs of option and value but for the options that are given anew."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in options for word in pair]


@pytest.fixture(scope="session")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """trained(*options): a run with the smallest model that has learned something, for all tests of a file."""

    def run(*options: Any) -> Path:
        out = tmp_path_factory.mktemp("trained") / "run"
        usual = [*MODEL, "--data", text, "--lr", 0.02, "--runtime.tensorboard", "false", "--out", out]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GEONORM_CACHE", str(out.parent / "cache"))
            assert main([str(word) for word in ["train", *without(usual, options), *options]]) == 0
        return out

    return run


def summary(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())


def results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def same(first: Path, second: Path, step: int) -> bool:
    """True if two checkpoints are equal to the bit: the checksums of their files, and what is no tensor."""

    def read(run: Path) -> list[Any]:
        state = json.loads((run / "checkpoints" / f"step-{step}" / "state.json").read_text())
        return [state[key] for key in ("sha256", "optimizer", "guard", "batch_offset")]

    return read(first) == read(second)


@pytest.fixture
def losses() -> Callable[[Path], list[tuple[Any, ...]]]:
    """What of a run's metrics must repeat bit for bit."""

    def read(run: Path) -> list[tuple[Any, ...]]:
        keys = ("step", "tokens", "loss", "lr", "grad_norm", "val_loss")
        return [tuple(row.get(key) for key in keys) for row in rows(run / "metrics.jsonl")]

    return read


def add_hook(patch: pytest.MonkeyPatch, hook: Any) -> None:
    """Every training loop calls this hook too, after its own."""
    from geonorm.lab.train import loop

    build_hooks = loop.build_hooks
    patch.setattr(loop, "build_hooks", lambda *args: [*build_hooks(*args), hook])


def spoil(patch: pytest.MonkeyPatch, bad: Callable[[Any, int], bool], factor: float = math.nan) -> None:
    """Multiplies the loss of those batches for which bad(state, number of the batch of the data, from 1) is true."""
    from geonorm.lab.train import loop

    fetch_batch = loop.fetch_batch

    def fetch_and_spoil(state: Any, step: int) -> Any:
        scale = factor if bad(state, step + state.batch_offset) else 1.0
        state.parallel_model.loss = lambda ids, targets: state.model.loss(ids, targets) * scale
        return fetch_batch(state, step)

    patch.setattr(loop, "fetch_batch", fetch_and_spoil)


@contextmanager
def act_after(step: int, act: Callable[[], Any] = lambda: signal.raise_signal(signal.SIGINT)) -> Iterator[None]:
    from geonorm.lab.train.hooks import Hook

    class Act(Hook):
        def after_step(self, state: Any, row: Any) -> None:
            if state.step == step:
                act()

    with pytest.MonkeyPatch.context() as patch:
        add_hook(patch, Act())
        yield


@pytest.fixture
def after() -> Callable[..., AbstractContextManager[None]]:
    """with after(step, act): when this step of training is made something happens, if nothing else is said Ctrl-C."""
    return act_after


PRELOAD = (
    "geonorm.cli.main geonorm.lab.train.loop geonorm.lab.plan torch._dynamo torch._decomp.decompositions_for_jvp "
    "torch.testing pytest yaml tyro"
).split()
"""What every rank imports: once, in the process that they are forked from."""


HANG = 600
"""Seconds after which ranks that have not ended never will: far above what they take on a busy machine."""


def environments(size: int) -> list[dict[str, str]]:
    """What torchrun would tell each rank of a world; a world of one is told nothing."""
    cache = {"GEONORM_CACHE": os.environ["GEONORM_CACHE"]}
    if size == 1:
        return [cache]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(size)}
    address |= {"LOCAL_WORLD_SIZE": str(min(size, 2))}  # four ranks are two machines
    return [{**cache, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


class World:
    """The processes of a world, each forked from a server that has imported torch."""

    def __init__(self, folder: Path, job: str, size: int, arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.files, self.processes = [folder / f"rank{rank}." for rank in range(size)], list[Any]()
        script = str(Path(__file__).with_name("rank.py"))
        words = [str(word) if isinstance(word, (Path, int)) else word for word in arguments]
        for environment, file in zip(environments(size), self.files, strict=True):
            known = {"job": job, "arguments": words, "environment": {**environment, "OUTPUT": str(file)}}
            self.processes.append(context.Process(target=runpy.run_path, args=(script, known, "__main__"), daemon=True))
            self.processes[-1].start()

    def wait(self) -> list[Result]:
        for process in self.processes:
            process.join(HANG)
            assert process.exitcode is not None, (self.read("out"), self.read("err"))
        outs, errs = self.read("out"), self.read("err")
        return [Result(p.exitcode, o, e) for p, o, e in zip(self.processes, outs, errs, strict=True)]

    def read(self, name: str) -> list[str]:
        paths = [Path(f"{file}{name}") for file in self.files]
        return [path.read_text() if path.exists() else "" for path in paths]


@pytest.fixture
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a job of rank.py in a world of some size. Of ranks that get stuck, the world comes back."""
    worlds: list[World] = []

    def start(job: str, size: int, *arguments: Any) -> list[Result] | World:
        worlds.append(World(tmp_path_factory.mktemp("ranks"), job, size, arguments))
        return worlds[-1] if job == "stuck" else worlds[-1].wait()

    yield start
    for process in (process for world in worlds for process in world.processes):
        process.kill()
        process.join()


class InProcess:
    """A subprocess.Popen that has run `geonorm train` to its end before it returns."""

    fail: Callable[[str], bool] = staticmethod(lambda name: False)
    started: list[str] = []  # noqa: RUF012 reset by the fixture

    def __init__(self, command: list[str], stdout: Any, **_: Any) -> None:
        assert command[1:4] == ["-m", "geonorm", "train"]
        name = Path(command[-1]).stem
        self.started.append(name)
        if self.fail(name):
            stdout.write(b"a traceback\nKilled\n")
            self.status = -9
            return
        log = io.StringIO()
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            self.status = main(command[3:])
        stdout.write(log.getvalue().encode())

    def poll(self) -> int:
        return self.status

    def kill(self) -> None:
        raise AssertionError("nothing runs any more")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[InProcess]:
    monkeypatch.setattr(team, "subprocess", SimpleNamespace(Popen=InProcess, STDOUT=subprocess.STDOUT))
    monkeypatch.setattr(team, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    monkeypatch.setattr(report, "build", lambda dirs, out, figures: out)  # drawing takes longer than training
    monkeypatch.setattr(InProcess, "started", [])
    monkeypatch.setattr(InProcess, "fail", staticmethod(lambda name: False))
    return InProcess
