"""`geonorm bench ops`: nothing wrong is timed, bytes are what the formulas say, programs take turns."""

import json
import time
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import geodesic_update
from geonorm.bench import candidates as pool, ops
from geonorm.bench.candidates import DTYPES, GAINS, PRE, Candidate, add_norm, candidates, draw_inputs, make_step
from geonorm.bench.config import OpsBench
from geonorm.bench.ops import WrongResult, bench_ops, check_candidate, choose_candidates, measure_candidates
from geonorm.bench.timing import Clock, ratio, take_turns
from geonorm.errors import ConfigError

from ..rows import each

CPU = torch.device("cpu")
HALF = torch.tensor(0.5)


def test_what_is_measured_is_right() -> None:
    eager = [candidate for candidate in candidates(CPU) if not candidate.compiled]
    names = {candidate.name for candidate in eager}
    assert {"geonorm", "geonorm, read twice", "geonorm closed", "geonorm textbook", PRE, GAINS} <= names
    assert "geonorm, read through a norm" in names
    for dtype, (rows, dim) in product(DTYPES, ((64, 96), (8192, 16))):
        for candidate in eager:
            errors = check_candidate(candidate, *draw_inputs(rows, dim, dtype, CPU))
            assert {*errors} == {"out", "dx", "du", *(["dgains"] if candidate.gains else [])}
            assert all(0 < error < 0.05 for error in errors.values())


def test_half_of_the_rows_are_clamped() -> None:
    x, u, first, second = draw_inputs(512, 64, "fp32", CPU)
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


def lost_reader(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    out, _ = make_step("auto", HALF, "read")(x, u)
    return out, out.detach() + 0 * x


@each(
    "forward, kind, what",
    [
        (bent_forward, "step", "out"), (bent_backward, "step", "dx"), (lost_row, "step", "out"),
        (lambda x, u: (add_norm(x, u)[0],), "step", "out"), (lost_reader, "read", "dx"),
    ],
)  # fmt: skip
def test_a_wrong_implementation_is_caught(forward: Any, kind: Any, what: str) -> None:
    with pytest.raises(WrongResult, match=rf"^planted is wrong at 64x48: {what} differs .*nothing was timed$"):
        check_candidate(Candidate("planted", forward, kind), *draw_inputs(64, 48, "fp32", CPU))


def test_a_wrong_candidate_ends_the_command_before_anything_is_written(monkeypatch: Any, tmp_path: Path) -> None:
    wrong = Candidate("planted", bent_forward)
    monkeypatch.setattr(ops, "candidates", lambda device: [wrong, Candidate(PRE, add_norm, "norm")])
    out = tmp_path / "out"
    with pytest.raises(WrongResult, match="planted is wrong"):
        bench_ops(OpsBench(shapes=["32x16"], dtypes=["fp32"], modes=["fwd"], pairs=6, out=str(out)), lambda line: None)
    assert not (out / "summary.json").exists()


@each(
    "kind, dtype, mode, size",
    [
        ("step", "bf16", "fwd", 6000), ("step", "bf16", "bwd", 10_000), ("step", "bf16", "both", 16_000),
        ("read", "bf16", "fwd", 6000), ("read", "bf16", "bwd", 12_000), ("read", "mixed", "both", 30_000),
        ("norm", "bf16", "fwd", 8000), ("norm", "bf16", "bwd", 8000), ("norm", "mixed", "both", 28_000),
        ("through", "bf16", "fwd", 8000), ("through", "bf16", "bwd", 12_000), ("through", "mixed", "both", 30_000),
    ],
)  # fmt: skip
def test_bytes(kind: Any, dtype: str, mode: str, size: int) -> None:
    """1,000 elements. Passes over memory in one type: 3 + 5, or 3 + 6 with two readers, against 4 + 4; with an fp32
    stream and bf16 updates 30 and 28 bytes an element."""
    assert Candidate("x", add_norm, kind).bytes(mode, draw_inputs(10, 100, dtype, CPU)) == size


def test_command_prints_tables_and_writes_a_summary(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", lambda *args, **options: refuse)
    lines: list[str] = []
    config = OpsBench(
        shapes=["48x32"], dtypes=["fp32", "mixed"], modes=["both", "fwd"], only=["twice", "textbook"], pairs=6,
        out=str(tmp_path),
    )  # fmt: skip
    bench_ops(config, lines.append)
    text = "\n".join(lines)
    no_compiler = "left out: geonorm textbook compiled (RuntimeError: no compiler)"
    peer = "48 x 32 fp32 both; best peer: add + rms_norm"
    for part in ("auto takes", no_compiler, peer, "48 x 32 mixed fwd"):
        assert part in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {"setting", "auto", "missing", "environment", "rows"}
    assert summary["setting"] == {"pairs": 6, "threads": 1, "device": "cpu", "clock": "CPU time of the process"}
    assert "geonorm textbook compiled, 48 x 32 fp32" in summary["missing"]
    rows = [row for row in summary["rows"] if not row["name"].startswith("copy")]
    assert [row["name"] for row in rows] == 4 * ["geonorm, read twice", "geonorm textbook", PRE, GAINS]
    for row in summary["rows"]:
        assert row["bandwidth"] == pytest.approx(row["bytes"] / row["seconds"])
    for row in rows:
        for key in ("of_copy", "to_peer", "to_pre", "to_gains"):
            middle, low, high = row[key]
            assert 0 < low <= middle <= high
        for key, base in (("to_pre", PRE), ("to_gains", GAINS), ("to_peer", row["peer"])):
            assert row["name"] != base or row[key] == [1.0, 1.0, 1.0]


@pytest.mark.filterwarnings("ignore")  # torch silences its compiler's warnings itself
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_candidates_are_right_and_compared_with_compiled(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    config = OpsBench(modes=["bwd"], pairs=6)
    chosen = [c for c in candidates(CPU) if c.name in ("geonorm compiled", PRE, f"{PRE} compiled")]
    rows = {row["name"]: row for row in measure_candidates(chosen, (32, 16), "fp32", config, Clock(CPU))[0]}
    assert max(rows["geonorm compiled"]["errors"].values()) < 5e-6
    assert rows[f"{PRE} compiled"]["to_pre"][0] == 1.0 and rows["geonorm compiled"]["to_pre"][0] != 1.0


def test_choice() -> None:
    available = candidates(CPU)
    names = {each.name for each in choose_candidates(available, ["textbook compiled"])}
    assert names >= {"geonorm textbook compiled", PRE, GAINS} and "geonorm" not in names
    assert choose_candidates(available, []) == available
    with pytest.raises(ConfigError, match="'closd' is part of no candidate's name; here are geonorm; "):
        choose_candidates(available, ["closd"])


def test_everyone_is_timed_once_a_round_in_changing_order() -> None:
    calls: list[str] = []

    def sampler(name: str) -> float:
        calls.append(name)
        return len(calls)

    times = take_turns({name: (lambda name=name: sampler(name)) for name in "abc"}, 20)
    rounds = ["".join(calls[start : start + 3]) for start in range(0, 60, 3)]
    assert all(sorted(one) == list("abc") for one in rounds)
    assert len(set(rounds)) > 3  # of 6 orders
    for name in "abc":
        assert times[name] == [float(at + 1) for at, called in enumerate(calls) if called == name]


def test_ratios_are_paired_and_one_thread_is_timed_by_its_own_work() -> None:
    random = Random(3)
    load = [1.0] * 20 + [10.0] * 21
    slow = [3.0 * each * random.uniform(0.99, 1.01) for each in load]
    fast = [2.0 * each for each in load]
    middle, low, high = ratio(slow, fast)
    assert low is not None and high is not None
    assert low <= middle <= high and abs(middle - 1.5) < 0.01 and high - low < 0.02
    assert [Clock(CPU, threads).read for threads in (1, 2)] == [time.process_time, time.perf_counter]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_benchmark_of_a_gpu_runs() -> None:
    summary = bench_ops(OpsBench(shapes=["256x768"], pairs=7, dtypes=["bf16"], device="cuda"))
    assert {row["name"] for row in summary["rows"]} >= {"geonorm", "geonorm, read through a norm"}
