"""`geonorm bench train`: the step that is timed is the step that trains."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from geonorm.bench import train
from geonorm.bench.config import TrainBench
from geonorm.bench.timing import Clock
from geonorm.errors import GeonormError
from geonorm.models import preset

TINY = preset("nano", layers=1, width=16, heads=2, hidden=16, vocab_size=32, context=8)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: Any) -> None:
    monkeypatch.setattr(train, "preset", lambda name, **changes: preset(name, **{**vars(TINY), **changes}))


def test_table_and_summary(tmp_path: Path) -> None:
    lines: list[str] = []
    config = TrainBench(schemes=["geonorm", "pre()", "post"], batch_size=2, modes=["eager"], pairs=6, out=str(tmp_path))
    train.bench_train(config, lines.append)
    assert lines[0] == "nano: batch 2 x context 8 = 16 tokens, vocabulary 32, fp32, 1 threads"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["scheme"] for row in summary["rows"]] == ["pre", "geonorm", "post"]
    base, ours, _ = summary["rows"]
    assert base["ratio"] == [1.0, 1.0, 1.0] and 0 < ours["ratio"][1] <= ours["ratio"][0] <= ours["ratio"][2]
    assert ours["tokens_per_second"] == pytest.approx(16 / ours["seconds"]) and ours["peak_memory_bytes"] is None
    assert summary["setting"] == {
        "preset": "nano", "batch_size": 2, "context": 8, "vocabulary": 32, "dtype": "fp32", "threads": 1, "pairs": 6,
        "clock": "CPU time of the process", "baseline": "pre",
    }  # fmt: skip


def program(scheme: str) -> train.Program:
    tokens = torch.randint(0, 32, (4, 9), generator=torch.Generator().manual_seed(0))
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return train.make_program(scheme, "eager", TINY, TrainBench(), ids, targets, torch.device("cpu"))


@pytest.mark.parametrize("scheme", ["pre", "geonorm", "ngpt"])
def test_steps_learn(scheme: str) -> None:
    step = program(scheme).step
    losses = [step().item() for _ in range(30)]
    assert losses[-1] < losses[0] - 0.05
    assert Clock(torch.device("cpu")).seconds(step) > 0


def test_a_machine_that_cannot_compile_and_a_loss_that_is_not_finite_are_one_line(monkeypatch: Any) -> None:
    nan = torch.tensor(torch.nan, requires_grad=True)
    loss = Mock(side_effect=[TorchDynamoException("no compiler"), *[nan] * train.WARM_UP])
    monkeypatch.setattr(train.parallel, "trained_loss", lambda *_: loss)
    for message in ("pre cannot be compiled here: no compiler", "the loss of pre, eager, is nan"):
        with pytest.raises(GeonormError, match=message):
            program("pre")
