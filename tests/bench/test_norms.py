"""`geonorm bench norms`: right first, counted as written down, and the steps of a model that is the one trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch import config as functorch
from torch.utils._python_dispatch import TorchDispatchMode

from geonorm.bench import norms
from geonorm.bench.config import NormsBench
from geonorm.bench.measure import WrongResult, check_candidate, measure_candidates
from geonorm.bench.norms import FLOPS, NormCandidate, candidates
from geonorm.bench.timing import CpuClock
from geonorm.errors import ConfigError
from geonorm.nn import preset

CPU = torch.device("cpu")
TINY = preset("nano", layers=1, width=16, heads=2, hidden=16, vocab_size=32, context=8)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_every_norm_is_right(dtype: str) -> None:
    found = candidates(48, CPU, ["eager"])
    assert [candidate.name for candidate in found] == [
        "LayerNorm, torch", "LayerNorm without bias, torch", "RMSNorm, torch", "LayerNorm, geonorm", "RMSNorm, geonorm",
    ]  # fmt: skip
    for candidate in found:
        errors = check_candidate(candidate, *NormCandidate.inputs(64, 48, dtype, CPU))
        assert ("dbias" in errors) == (candidate.kind == "layer")


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("out", lambda y, x: y + 1e-3),
        ("dx", lambda y, x: y + 1e-3 * (x - x.detach())),
        ("out", lambda y, x: y * torch.nan),
    ],
)
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_wrong_norm_is_caught(kind: str, what: str, change: Any) -> None:
    right = next(c for c in candidates(48, CPU, ["eager"]) if c.kind == kind)
    wrong = replace(right, forward=lambda x, *weights: change(right.forward(x, *weights), x))
    with pytest.raises(WrongResult, match=rf"is wrong at 64x48: {what} differs from fp64 by .*nothing was timed$"):
        check_candidate(wrong, *NormCandidate.inputs(64, 48, "fp32", CPU))


class Work(TorchDispatchMode):
    """Adds up the largest operand of every operation: multiplications and additions of a program without views."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.total += max(t.numel() for t in (*args, out) if isinstance(t, Tensor))
        return out


def worked(kind: str, dim: int = 1000) -> tuple[tuple[int, int], list[Tensor], list[Tensor]]:
    """Operations an element of one row, forward and backward, of a program written out by hand; what it computes, and
    what autograd finds."""
    torch.manual_seed(0)
    x, dy, w, b = torch.randn(4, dim, dtype=torch.float64).unbind()
    with Work() as forward:
        rest = x if kind == "rms" else x - x.mean()
        scale = (rest * rest).mean().add(norms.EPS).rsqrt()
        y = rest * scale * w
        y = y + b if kind == "layer" else y
    with Work() as backward:
        slope = dy * w
        hat = rest * scale
        dx = slope - hat * (slope * hat).mean()
        dx = dx if kind == "rms" else dx - slope.mean()
        dx = dx * scale
        dw = dy * hat
    given = [t.clone().requires_grad_() for t in ((x, w, b) if kind == "layer" else (x, w))]
    truth = norms.textbook(kind)(*given)
    mine = [y, dx, dw] + ([dy] if kind == "layer" else [])
    return (forward.total // dim, backward.total // dim), mine, [truth, *torch.autograd.grad(truth, given, dy)]


@pytest.mark.parametrize("kind", FLOPS)
def test_the_count_of_operations_is_that_of_a_program(kind: str) -> None:
    """For one row; the sum of gradients of gains and biases over rows is one more operation an element each."""
    (forward, backward), mine, truth = worked(kind)
    for a, b in zip(mine, truth, strict=True):
        torch.testing.assert_close(a, b.detach())
    sums = {"rms": 1, "layer without bias": 1, "layer": 2}[kind]
    centring = 0 if kind == "rms" else 1  # x - mean, again
    assert (forward, backward + sums + centring) == FLOPS[kind]
    candidate = next(c for c in candidates(8, CPU, ["eager"]) if c.kind == kind)
    assert candidate.flops("both", 10) == 10 * sum(FLOPS[kind])


def test_what_is_kept_for_the_backward_pass() -> None:
    x, *others = NormCandidate.inputs(64, 48, "fp32", CPU)
    memory = {c.name: c.kept((x, *others)) for c in candidates(48, CPU, ["eager"])}
    assert memory["LayerNorm, torch"] == x.nbytes + 2 * 64 * 4  # the input, a mean and a scale a row
    assert memory["RMSNorm, torch"] >= x.nbytes


def test_command_writes_tables_and_a_summary(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(norms, "preset", lambda name, **changes: preset("nano", **{**vars(TINY), **changes}))
    said: list[str] = []
    config = NormsBench(
        shapes=["32x16"],
        dtypes=["fp32"],
        passes=["fwd", "both"],
        modes=["eager"],
        batch_size=2,
        pairs=6,
        out=str(tmp_path),
    )
    norms.bench_norms(config, said.append)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert set(found) == {"setting", "missing", "environment", "rows", "steps"} and found["missing"] == {}
    rows = [row for row in found["rows"] if not row["name"].startswith("copy")]
    assert len(rows) == 10 and len(found["rows"]) == 12
    for row in rows:
        middle, low, high = row["to_eager"]
        assert 0 < low <= middle <= high and row["flops"] == row["rows"] * row["dim"] * (
            FLOPS[row["kind"]][0] if row["mode"] == "fwd" else sum(FLOPS[row["kind"]])
        )
        assert ("rms_to_this" in row) == (row["kind"] != "rms")
    base = next(row for row in rows if row["name"] == norms.BASE)
    assert base["to_eager"] == [1.0, 1.0, 1.0]
    steps = {(row["step"], row["norm"]): row for row in found["steps"]}
    assert set(steps) == {(step, norm) for step in ("training", "decoding") for norm in ("layer", "rms")}
    for row in steps.values():
        assert row["norms"] == 3 and row["share"][0] > 0 and row["norm_seconds"] < row["seconds"]
    assert (tmp_path / "figures" / "norms_fp32.png").stat().st_size > 2000
    assert any("of it in norms" in line for line in said) and any("RMSNorm to it" in line for line in said)


def test_a_wrong_norm_ends_the_command_before_anything_is_written(monkeypatch: Any, tmp_path: Path) -> None:
    bent = replace(candidates(16, CPU, ["eager"])[0], forward=lambda x, w, b: x * w + b)
    monkeypatch.setattr(norms, "candidates", lambda *_: [bent])
    with pytest.raises(WrongResult):
        norms.bench_norms(NormsBench(shapes=["32x16"], dtypes=["fp32"], out=str(tmp_path / "out")), lambda line: None)
    assert not (tmp_path / "out" / "summary.json").exists()


def test_decoding_does_the_same_each_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(norms, "preset", lambda name, **changes: preset("nano", **{**vars(TINY), **changes}))
    model, step = norms.make_training("layer", "eager", NormsBench(batch_size=2), CPU)
    step()
    model.eval()
    state = norms.decoding_state(model, CPU)
    norms.decode_one(model, state)
    norms.decode_one(model, state)
    assert [layer.length for layer in state[1]] == [4]
    assert len(norms.timed_norms(model)) == 3
    norms.all_norms(model, 4, "eager", True, CPU)()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch silences its compiler's warnings itself
def test_compiled_norms_are_right_and_compared_with_compiled() -> None:
    chosen, missing = candidates(16, CPU, ["compiled"]), {}
    with functorch.patch(donated_buffer=False):
        rows = measure_candidates(chosen, (32, 16), "fp32", ["bwd"], 6, CpuClock(1), CPU, missing, norms.BASE)
    assert not missing and [row["name"] for row in rows if row.get("compiled") is False] == [norms.BASE]
    assert sum(row.get("compiled", False) for row in rows) == 5


def test_settings() -> None:
    assert NormsBench(quick=True).sizes(cuda=False) == [(256, 768)] and NormsBench(quick=True).rounds == 7
    for changes in ({"passes": []}, {"modes": []}, {"dtypes": []}, {"shapes": ["4x"]}, {"batch_size": 0}, {"pairs": 3}):
        with pytest.raises(ConfigError):
            NormsBench(**changes)
