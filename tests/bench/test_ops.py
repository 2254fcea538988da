"""`geonorm bench ops`: nothing wrong is timed, bytes are what the formulas say, the table says what it compares."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import geodesic_update
from geonorm.bench import candidates as pool, ops, show
from geonorm.bench.candidates import DTYPES, Candidate, add_norm, candidates, draw_inputs as inputs, make_step
from geonorm.bench.config import OpsBench
from geonorm.bench.measure import WrongResult, check_candidate, measure_candidates, row_error
from geonorm.bench.ops import bench_ops, choose_candidates
from geonorm.bench.timing import CpuClock
from geonorm.errors import ConfigError

from ..rows import each

CPU = torch.device("cpu")
HALF = torch.tensor(0.5)


def measured(chosen: list[Candidate], size: tuple[int, int], dtype: str, config: OpsBench, missing: Any) -> Any:
    return measure_candidates(chosen, size, dtype, config.modes, config.rounds, CpuClock(1), CPU, missing)


def eager() -> list[Candidate]:
    return [candidate for candidate in candidates(CPU)[0] if not candidate.compiled]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_measured_is_right(dtype: str) -> None:
    names = set()
    for candidate in eager():
        errors = check_candidate(candidate, *inputs(64, 96, dtype, CPU))
        assert {*errors} == {"out", "dx", "du", *(["dgains"] if candidate.gains else [])}
        assert all(0 < error < 0.05 for error in errors.values())
        names.add(candidate.name)
    assert {"geonorm", "geonorm, read twice", "geonorm closed", "geonorm textbook", "add + rms_norm"} <= names
    assert {"add + rms_norm, gains", "geonorm, read through a norm"} <= names


def test_half_of_the_rows_are_clamped() -> None:
    x, u, first, second = inputs(512, 64, "fp32", CPU)
    v = u - (u * x).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x
    share = float((v.norm(dim=-1) / x.norm(dim=-1) > pool.MAX_ANGLE).float().mean())
    assert 0.3 < share < 0.7
    assert first.dtype == second.dtype == torch.float32 and not torch.equal(first, second)


def bent_forward(x: Tensor, u: Tensor) -> tuple[Tensor]:
    return (geodesic_update(x, u, decay=0.5 * 1.0001),)


def bent_backward(x: Tensor, u: Tensor) -> tuple[Tensor]:
    out = geodesic_update(x, u, decay=HALF)
    return (out.detach() + 1.001 * (out - out.detach()),)


def lost_row(x: Tensor, u: Tensor) -> tuple[Tensor]:
    out = geodesic_update(x, u, decay=HALF)
    return (torch.cat((out[:-1], out[-1:] * float("nan"))),)


@pytest.mark.parametrize(
    ("planted", "what"),
    [(bent_forward, "out"), (bent_backward, "dx"), (lost_row, "out"), (lambda x, u: (add_norm(x, u)[0],), "out")],
)
def test_a_wrong_implementation_is_caught(planted: Any, what: str) -> None:
    said = rf"^planted is wrong at 64x48: {what} differs from fp64 by .*nothing was timed$"
    with pytest.raises(WrongResult, match=said):
        check_candidate(Candidate("planted", planted), *inputs(64, 48, "fp32", CPU))


def test_a_wrong_candidate_ends_the_command_before_anything_is_written(monkeypatch: Any, tmp_path: Path) -> None:
    wrong = Candidate("planted", bent_forward)
    monkeypatch.setattr(ops, "candidates", lambda device: ([wrong, Candidate(ops.PRE, add_norm, norm=True)], {}))
    out = tmp_path / "out"
    with pytest.raises(WrongResult, match="planted is wrong"):
        bench_ops(OpsBench(shapes=["32x16"], dtypes=["fp32"], modes=["fwd"], pairs=6, out=str(out)), lambda line: None)
    assert not (out / "summary.json").exists()


def test_row_error() -> None:
    truth = torch.tensor([[3.0, 4.0], [0.0, 1.0]]).double()
    assert row_error(truth + torch.tensor([[0.0, 0.5], [0.0, 0.0]]), truth) == pytest.approx(0.1)
    assert not row_error(truth * float("nan"), truth) <= 1e9


@each(
    "what, dtype, mode, size",
    [
        ({}, "bf16", "fwd", 6000), ({}, "bf16", "bwd", 10_000), ({}, "bf16", "both", 16_000),
        ({"read": True}, "bf16", "fwd", 6000), ({"read": True}, "bf16", "bwd", 12_000),
        ({"norm": True}, "bf16", "fwd", 8000), ({"norm": True}, "bf16", "bwd", 8000),
        ({"read": True}, "mixed", "both", 30_000), ({"norm": True}, "mixed", "both", 28_000),
        ({"read": True, "through": True}, "mixed", "both", 30_000),
        ({"read": True, "through": True}, "bf16", "fwd", 8000),
        ({"read": True, "through": True}, "bf16", "bwd", 12_000),
    ],
)  # fmt: skip
def test_bytes(what: dict[str, bool], dtype: str, mode: str, size: int) -> None:
    """1,000 elements. Passes over memory in one type: 3 + 5, or 3 + 6 with two readers, against 4 + 4; with an fp32
    stream and bf16 updates 30 and 28 bytes an element."""
    assert Candidate("x", add_norm, **what).bytes(mode, inputs(10, 100, dtype, CPU)) == size


def test_table() -> None:
    said: list[str] = []
    config = OpsBench(dtypes=["fp32", "mixed"], modes=["both", "fwd"], only=["closed", "textbook"], pairs=6)
    chosen = [c for c in choose_candidates(candidates(CPU)[0], config.only) if not c.compiled]
    rows = [row for dtype in config.dtypes for row in measured(chosen, (48, 32), dtype, config, {})]
    show.print_tables(rows[: len(rows) // 2], said.append)
    text = "\n".join(said)
    assert "48 x 32 fp32 both" in text and "48 x 32 fp32 fwd" in text and "best peer: add + rms_norm" in text
    for row in rows:
        assert row["bandwidth"] == pytest.approx(row["bytes"] / row["seconds"])
        if row["name"].startswith("copy"):
            continue
        for key in ("of_copy", "to_peer", "to_pre", "to_eager"):
            middle, low, high = row[key]
            assert 0 < low <= middle <= high
        if row["name"] == "add + rms_norm":
            assert tuple(row["to_pre"]) == (1.0, 1.0, 1.0)
        if row["name"] == row["peer"]:  # which one is fastest at this size is up to the machine
            assert tuple(row["to_peer"]) == (1.0, 1.0, 1.0)


def test_command_writes_a_summary(tmp_path: Path) -> None:
    said: list[str] = []
    bench_ops(
        OpsBench(shapes=["16x8"], dtypes=["fp32"], modes=["bwd"], only=["twice"], pairs=6, out=str(tmp_path)),
        said.append,
    )
    assert any("auto takes" in line for line in said) and any("not here: Liger" in line for line in said)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert set(found) == {"setting", "auto", "missing", "environment", "rows", "host_microseconds"}
    assert found["setting"] == {"pairs": 6, "threads": 1, "device": "cpu", "clock": "CPU time of the process"}
    names = [row["name"] for row in found["rows"] if not row["name"].startswith("copy")]
    assert names == ["geonorm, read twice", "add + rms_norm", "add + rms_norm, gains"]
    assert tuple(found["rows"][-1]["to_gains"]) == (1.0, 1.0, 1.0)
    assert set(found["host_microseconds"]["fp32"]) == set(names)


def test_what_cannot_be_compiled_here_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a C++ compiler, say."""

    def refuse(*given: Any, **more: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda *given, **more: refuse)
    said: list[str] = []
    config = OpsBench(shapes=["16x8"], dtypes=["fp32"], modes=["bwd"], only=["textbook"], pairs=6, out=str(tmp_path))
    bench_ops(config, said.append)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert "geonorm textbook compiled, 16 x 8 fp32" in found["missing"]
    for names in ({row["name"] for row in found["rows"]}, found["host_microseconds"]["fp32"].keys()):
        assert "geonorm textbook" in names and "geonorm textbook compiled" not in names


@pytest.mark.filterwarnings("ignore")  # torch silences its compiler's warnings itself
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_candidates_are_right_and_compared_with_compiled(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    config = OpsBench(shapes=["32x16"], dtypes=["fp32"], modes=["bwd"], pairs=6)
    found = [c for c in candidates(CPU)[0] if c.name in ("geonorm compiled", ops.PRE, f"{ops.PRE} compiled")]
    rows = {row["name"]: row for row in measured(found, (32, 16), "fp32", config, {})}
    assert max(rows["geonorm compiled"]["errors"].values()) < 5e-6
    compiled = rows[f"{ops.PRE} compiled"]
    assert compiled["to_pre"][0] == 1.0 != compiled["to_eager"][0]


def test_a_wrong_kernel_of_another_library_is_left_out() -> None:
    other = Candidate("Other", lambda x, u, gains: (x + u, 1.1 * x * gains), norm=True, gains=True, optional=True)
    missing: dict[str, str] = {}
    chosen = [other, Candidate(ops.PRE, add_norm, norm=True)]
    rows = measured(chosen, (16, 8), "fp32", OpsBench(modes=["fwd"], pairs=6), missing)
    assert [row["name"] for row in rows if not row["name"].startswith("copy")] == [ops.PRE]
    assert (
        list(missing) == ["Other, 16 x 8 fp32"]
        and "WrongResult: Other is wrong at 16x8" in missing["Other, 16 x 8 fp32"]
    )


def test_choice() -> None:
    found = candidates(CPU)[0]
    names = [candidate.name for candidate in choose_candidates(found, ["textbook compiled"])]
    assert names == [
        "geonorm textbook compiled",
        *(f"add + rms_norm{kind}" for kind in ("", ", gains", " compiled", ", gains, compiled")),
    ]
    assert choose_candidates(found, []) == found
    with pytest.raises(ConfigError, match="'closd' is part of no candidate's name; here are geonorm; "):
        choose_candidates(found, ["closd"])


def test_what_cannot_run_is_named_with_its_reason(monkeypatch: Any) -> None:
    def broken() -> Any:
        raise RuntimeError("no driver\nand more")

    monkeypatch.setattr(pool, "FUSED", {"Broken": broken})
    found, missing = candidates(CPU)
    assert missing["Broken"] == "RuntimeError: no driver" and all(c.name != "Broken" for c in found)


def test_a_read_by_two_gets_both_gradients() -> None:
    x, u, first, second = inputs(8, 16, "fp32", CPU)
    twice = Candidate("twice", make_step("auto", HALF, read=True), read=True)
    errors = check_candidate(twice, x, u, first, second)
    assert errors["dx"] < 1e-6
    with pytest.raises(WrongResult):  # dropping the second reader's gradient
        check_candidate(
            replace(twice, forward=lambda x, u: (twice.forward(x, u)[0], x.detach() + 0 * x)), x, u, first, second
        )
