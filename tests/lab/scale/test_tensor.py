"""Ranks that share the matrices of every block compute what one rank computes; they keep and load the same state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from .test_checkpoint import weights
from .test_distributed import STEPS, numbers, runs  # noqa: F401 a fixture

TENSOR = ["--runtime.tensor_size", 2]


@pytest.fixture
def both(runs: Any, tmp_path: Path) -> Any:  # noqa: F811
    """Trains alone and in a world, and compares all that a run writes: both(name, size, bound, options, more)."""

    def start(name: str, size: int, bound: float, options: list[Any], more: list[Any], dtype: str = "fp64") -> Any:
        alone, run = tmp_path / f"{name} alone", tmp_path / name
        assert [r.status for r in runs(alone.name, 1, *STEPS, *options, dtype=dtype).wait()] == [0]
        ended = runs(run.name, size, *STEPS, *options, *more, dtype=dtype).wait()
        assert [(r.status, r.err[-2000:]) for r in ended] == [(0, "")] * size, ended[0].err
        for key in ("loss", "val_loss", "val_bpb"):
            assert numbers(run, key) == pytest.approx(numbers(alone, key), rel=bound, abs=0), (name, key)
        assert numbers(run, "grad_norm") == pytest.approx(numbers(alone, "grad_norm"), rel=10 * bound)
        assert json.loads((run / "summary.json").read_text())["tensor_size"] == (
            2 if "--runtime.compile" not in more else 1
        )
        if dtype == "fp64":
            expected, found = (weights(path / "checkpoints" / "step-10") for path in (alone, run))
            assert set(found) == set(expected)
            for key, tensor in found.items():
                torch.testing.assert_close(tensor, expected[key], rtol=100 * bound, atol=10 * bound)
        return alone, run

    return start


@pytest.mark.parametrize("scheme", ["pre", "geonorm", "ngpt"])
@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-10), ("fp32", 1e-5)])
def test_two_ranks_share_the_matrices(both: Any, scheme: str, dtype: str, bound: float) -> None:
    both("run", 2, bound, ["--scheme", scheme], TENSOR, dtype)


@pytest.mark.parametrize(
    ("size", "options", "more"),
    [
        (2, ["--scheme", "pre", "--model.qk_norm", "full", "--model.bias", "true", "--runtime.recompute"], []),
        (2, ["--scheme", "hybrid", "--model.qk_norm", "head", "--model.block", "parallel", "--model.norm", "dyt"], []),
        (2, ["--scheme", "angpt", "--model.heads", 4, "--model.kv_heads", 2, "--runtime.accumulate", 2], []),
        (4, ["--scheme", "geonorm(learn=step)"], ["--runtime.parallel", "fsdp"]),  # parameters without dimensions
        (4, ["--scheme", "ngpt", "--model.tied", "true"], []),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_what_acts_on_heads_and_units(both: Any, size: int, options: list[Any], more: list[Any]) -> None:
    """Norms and scales of q, k, v, of hidden units; biases; fewer key heads; on top of FSDP over pairs of ranks."""
    both("run", size, 1e-9, options, [*TENSOR, *more])


def settings(text: Path, **changes: Any) -> dict[str, Any]:
    """Of a run with most of its weights in blocks."""
    model = {"layers": 8, "width": 64, "heads": 4, "hidden": 128, "vocab_size": 257, "context": 16}
    given = {"data": str(text), "tokens": {"tokenizer": "byte"}, "model": model, "batch_size": 8}
    return {**given, "evaluation": {"tokens": 256}, **changes}


@pytest.mark.parametrize("scheme", ["geonorm(learn=step)", "ngpt", "hyper"])
def test_no_rank_ever_holds_the_whole_model(ranks: Any, text: Path, tmp_path: Path, scheme: str) -> None:
    """Initial weights are those of one rank, bit for bit; a rank that makes them holds its share, the vectors, and one
    matrix at a time, drawn and cut."""
    worlds = {"one": (1, {}), "fsdp": (4, {"parallel": "fsdp"}), "tensor": (2, {"tensor_size": 2})}
    if scheme == "ngpt":
        worlds["both"] = (4, {"tensor_size": 2})
    found = {}
    for name, (size, runtime) in worlds.items():
        ended = ranks("born", size, tmp_path / name, settings(text, scheme=scheme, runtime=runtime)).wait()
        assert all(r.status == 0 for r in ended), ended[0].err  # the profiler says something of its own
        found[name] = load_file(tmp_path / f"{name}.safetensors")
        told = [json.loads(r.out) for r in ended]
        whole = sum(tensor.nbytes for tensor in found["one"].values())
        largest = max(tensor.nbytes for tensor in found["one"].values())
        vectors = sum(t.nbytes for key, t in found["one"].items() if t.dim() < 2 or ".own." in key)
        print(scheme, name, whole, told[0])
        for each in told:
            assert each["share"] < each["peak"] < each["share"] + 3 * largest + 2 * vectors or size == 1
            assert size == 1 or each["peak"] < 0.8 * whole
        assert set(found[name]) == set(found["one"])
        assert all(torch.equal(tensor, found["one"][key]) for key, tensor in found[name].items())
        assert all(bool(tensor.isfinite().all()) for tensor in found[name].values())


def test_in_bf16_the_stream_stays_wide(ranks: Any, text: Path) -> None:
    """One step under FSDP and under tensor parallelism: as near to fp32 as one rank in bf16 is."""
    losses = {}
    for name, size, runtime in (
        ("fp32", 1, {}),
        ("one", 1, {"dtype": "bf16"}),
        ("fsdp", 2, {"dtype": "bf16", "parallel": "fsdp"}),
        ("tensor", 2, {"dtype": "bf16", "tensor_size": 2}),
    ):
        ended = ranks("born", size, "", settings(text, scheme="geonorm", runtime=runtime)).wait()
        assert all(r.status == 0 for r in ended), ended[0].err
        told = [json.loads(r.out) for r in ended]
        assert {each["stream"] for each in told} == {"torch.float32"}
        losses[name] = told[0]["losses"]
    print(losses)
    for name in ("one", "fsdp", "tensor"):
        assert losses[name] == pytest.approx(losses["fp32"], rel=5e-3) and losses[name] != losses["fp32"]


def test_saved_on_two_goes_on_alone(runs: Any, tmp_path: Path) -> None:  # noqa: F811
    """The checkpoint of step 5 of two ranks, read by one, and by four that shard it as well."""
    options = [*STEPS, "--checkpoint.every", 5, "--scheme", "ngpt"]
    assert all(not r.status for r in runs("two", 2, *options, *TENSOR).wait())
    expected = numbers(tmp_path / "two", "loss")
    shutil.rmtree(tmp_path / "two" / "checkpoints" / "step-10")
    (tmp_path / "two" / "summary.json").unlink()
    for size, more in ((1, []), (4, TENSOR)):
        run = tmp_path / f"on {size}"
        shutil.copytree(tmp_path / "two", run)
        ended = runs(run.name, size, *options, *more).wait()
        assert [r.status for r in ended] == [0] * size and "at step 5 of 10" in ended[0].out, ended
        assert numbers(run, "loss") == pytest.approx(expected, rel=1e-5)
