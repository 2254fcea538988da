"""Loggers: the protocol, what they get, what happens when one is missing or fails."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from geonorm.lab.runs import loggers
from geonorm.lab.runs.folder import read_rows
from geonorm.lab.train import loop
from geonorm.lab.train.guard import Diverged
from geonorm.lab.train.loop import train as train_run

from ..conftest import small_config, spoil


class Kept:
    """A logger of one's own."""

    def __init__(self, fail: int = 0) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.fail = fail

    def __call__(self, row: Mapping[str, float], step: int) -> None:
        if step == self.fail:
            raise ConnectionError("no route to the server\nsecond line")
        self.rows.append((step, dict(row)))


def test_a_logger_gets_every_row_once(text: Path, tmp_path: Path) -> None:
    own = Kept()
    train_run(small_config(text, out=str(tmp_path / "run")), say=lambda line: None, loggers=[own])
    metrics = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert [step for step, _ in own.rows] == [1, 2, 3, 4]
    for (_, row), recorded in zip(own.rows, metrics, strict=True):
        assert row == {name: value for name, value in recorded.items() if name not in ("step", "tokens")}
        assert {"loss", "lr", "grad_norm"} <= set(row)
    assert "val_loss" in own.rows[-1][1]


def test_a_logger_gets_what_a_run_diverged_by(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is not finite is seen before its row is complete: then rows may be waiting."""
    own = Kept()
    monkeypatch.setitem(loop.LOG_EVERY, "cpu", 10)  # as on a GPU
    spoil(monkeypatch, lambda _, batch: batch == 25)
    config = small_config(
        text, out=str(tmp_path / "run"), steps=30, evaluation={"every": 30, "tokens": 64}, checkpoint={"every": 30}
    )
    with pytest.raises(Diverged):
        train_run(config, say=lambda line: None, loggers=[own])
    steps = [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert [step for step, _ in own.rows] == steps and steps[-1] >= 25


def test_a_run_on_a_cpu_counts_subnormals_as_zero(text: Path, tmp_path: Path) -> None:
    """Moments that decayed into them made runs twice as slow (017). The mode and threads of its caller stay."""
    tiny, found = torch.tensor([1e-30]), list[float]()

    class Multiplying(Kept):
        def __call__(self, row: Mapping[str, float], step: int) -> None:
            found.append((tiny * 1e-10).item())

    if not torch.set_flush_denormal(False):
        pytest.skip("this CPU has no such mode")
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    train_run(small_config(text, out=str(tmp_path / "run")), say=lambda line: None, loggers=[Multiplying()])
    assert found and set(found) == {0.0} and (tiny * 1e-10).item() > 0
    assert torch.get_num_threads() == 3
    torch.set_num_threads(threads)


def test_a_logger_that_fails_is_told_of_once_and_left(text: Path, tmp_path: Path) -> None:
    bad, good, said = Kept(fail=2), Kept(), list[str]()
    train_run(small_config(text, out=str(tmp_path / "run")), say=said.append, loggers=[bad, good])
    assert [line for line in said if "Kept" in line] == ["Kept 0: no route to the server; it gets no more of this run"]
    assert [step for step, _ in bad.rows] == [1]
    assert len(good.rows) == 4
    assert len(list(read_rows(tmp_path / "run" / "metrics.jsonl"))) == 4


@pytest.mark.parametrize("word", ["wandb", "trackio"])
def test_a_missing_package_is_one_line_and_nothing_is_written(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setitem(sys.modules, loggers.LOGGERS[word][0], None)
    refused = train(tmp_path / "run", "--steps", 2, "--log.to", word)
    assert refused.status == 2 and refused.err.count("\n") == 1
    assert f"logging to {word} needs {word}: pip install 'geonorm[{word}]'" in refused.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word", ["wandb", "trackio"])
def test_a_tracker_has_one_run_through_a_stop(
    word: str, train: Any, after: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = MagicMock()
    tracked = library.init.return_value
    tracked.__enter__.return_value = tracked
    monkeypatch.setitem(sys.modules, word, library)
    monkeypatch.setenv("WANDB_PROJECT", "ours")
    with after(2):
        assert train(tmp_path / "one", "--log.to", word, "--steps", 4).status == 130
    assert train(tmp_path / "one", "--log.to", word, "--steps", 4).status == 0
    starts = [call.kwargs for call in library.init.call_args_list]
    assert len(starts) == 2 and len({start.get("id") or start["name"] for start in starts}) == 1
    assert {(start["project"], start["config"]["model"]["width"]) for start in starts} == {("ours", 16)}
    losses = {call.kwargs["step"]: call.args[0]["loss"] for call in tracked.log.call_args_list}
    assert losses == {row["step"]: row["loss"] for row in read_rows(tmp_path / "one" / "metrics.jsonl")}
