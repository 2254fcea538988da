"""The columns of a step's time, on a CPU and, with events made by hand, as on a GPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from geonorm.devices import peak_flops
from geonorm.lab.plan import flops_per_token
from geonorm.lab.runs.records import MetricRow
from geonorm.lab.train import step_times
from geonorm.lab.train.step_times import StepTimes
from geonorm.models import Decoder, preset


class Event:
    """A clock that goes on by one millisecond with each event."""

    now = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.now += 1
        self.at = Event.now

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


@pytest.mark.parametrize(
    "name, bf16, fp32",
    [
        ("NVIDIA H100 80GB HBM3", 989e12, 67e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0, 0),
        ("NVIDIA H100 PCIe", 0, 0),
        ("NVIDIA A100-PCIE-40GB", 312e12, 19.5e12),
    ],
)
def test_events_and_mfu(monkeypatch: pytest.MonkeyPatch, name: str, bf16: float, fp32: float) -> None:
    device, model = torch.device("cuda"), Decoder(preset("nano"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name=name, total_memory=2**36))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(step_times, "peak_memory", lambda _: 5)
    assert (peak_flops(device, "bf16"), peak_flops(device, "fp32")) == (bf16, fp32)
    times = StepTimes(model, "bf16", device, ranks=2)
    for part in ("", "batch", "model", "optimizer") * 2:
        times.mark(part)
    rows: list[Any] = [{"step": step, "tokens": 64 * step, "loss": 0.0, "lr": 0.0, "grad_norm": 0.0} for step in (1, 2)]
    assert times.add(rows, 7.0) == rows[-1]["seconds"] > 7
    for row in map(MetricRow.read, rows):
        assert (row.batch_seconds, row.model_seconds, row.optimizer_seconds) == pytest.approx((1e-3, 1e-3, 1e-3))
        assert row.peak_memory_bytes == 5 and row.more == {}
        reached = flops_per_token(model) * row.tokens_per_second / (2 * bf16) if bf16 else None
        assert row.mfu == (reached and pytest.approx(reached))
    assert peak_flops(torch.device("cpu"), "fp32") == 0


@pytest.mark.parametrize("steps", [8, 4])
def test_a_profile_of_some_steps(train: Any, tmp_path: Path, steps: int) -> None:
    """From the fourth step on, as many as asked for, or until the run ends."""
    run = tmp_path / "run"
    assert train(run, "--steps", steps, "--evaluation.every", 10, "--profile", 2).status == 0
    trace = json.loads(gzip.decompress((run / "profile/trace.json.gz").read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"] if event.get("cat") == "user_annotation"}
    assert {name for name in names if name.startswith("Profiler")} == {"ProfilerStep#3", "ProfilerStep#4"}
    assert "aten::mm" in (run / "profile/table.txt").read_text()
