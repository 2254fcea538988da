"""One rank equals two equals four: DDP, FSDP2, HSDP, accumulation; checkpoints move between worlds of any size."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from geonorm.lab import storage
from geonorm.lab.runs.folder import read_rows

from ...rows import each
from ..conftest import without
from ..test_checkpoint import weights

SCHEMES = ("geonorm", "ngpt")
STEPS = ["--steps", 10, "--model.layers", 2, "--batch_size", 8, "--evaluation.every", 5]
SHARDED = ["--runtime.parallel", "fsdp"]
WORLDS: dict[tuple[str, str], tuple[int, list[Any]]] = {
    ("fp64", "accumulation"): (1, ["--micro-batch", 2]),
    ("fp64", "ddp and accumulation"): (2, ["--micro-batch", 3]),
    ("fp64 in pieces", "fsdp and accumulation"): (2, [*SHARDED, "--micro-batch", 2]),
    ("fp32", "ddp"): (2, ["--runtime.parallel", "ddp"]),
    ("fp32", "fsdp"): (2, SHARDED),
}
MORE: dict[tuple[str, str], tuple[int, list[Any]]] = {
    ("fp64", "fsdp, recomputed"): (2, [*SHARDED, "--runtime.recompute"]),
    ("fp64", "hsdp"): (4, ["--runtime.parallel", "hsdp"]),
}


@pytest.fixture
def runs(ranks: Any, tiny: list[str], tmp_path: Path) -> Any:
    """Trains in a world and returns the run directory: runs(name, size, *options, dtype=)."""

    def start(name: str | Path, size: int, *options: Any, dtype: str = "fp32") -> Any:
        return ranks("run", size, dtype, "train", *without(tiny, options), "--out", tmp_path / name, *map(str, options))

    return start


def numbers(run: Path, key: str) -> list[float]:
    return [row[key] for row in read_rows(run / "metrics.jsonl") if key in row]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_world_computes_the_same(runs: Any, tmp_path: Path, scheme: str) -> None:
    """Losses and gradient norms of 10 steps: in fp64 within 1e-10, weights at the end too; in fp32 within 1e-5."""
    for dtype in ("fp64", "fp32"):
        alone = tmp_path / f"{dtype} alone"
        assert [r.status for r in runs(alone.name, 1, *STEPS, "--scheme", scheme, dtype=dtype)] == [0]
        assert len(set(numbers(alone, "loss"))) == 10
    for (dtype, name), (size, options) in (WORLDS | MORE if scheme == "geonorm" else WORLDS).items():
        wide = dtype.startswith("fp64")
        bound = 1e-10 if wide else 1e-5
        alone, run = tmp_path / f"{dtype[:4]} alone", tmp_path / f"{dtype} {name}"
        ended = runs(run.name, size, *STEPS, "--scheme", scheme, *options, dtype=dtype)
        assert [r.status for r in ended] == [0] * size, ended
        assert all(r.err == "" for r in ended) and all(r.out == "" for r in ended[1:]), ended
        for key in ("loss", "val_loss", "val_bpb"):
            assert numbers(run, key) == pytest.approx(numbers(alone, key), rel=bound, abs=0), (dtype, name, key)
        summary = json.loads((run / "summary.json").read_text())
        assert summary["world_size"] == size
        assert summary["parallel"] == ("none" if size == 1 else name[:3].replace("fsd", "fsdp").replace("hsd", "fsdp"))
        trace = list(read_rows(run / "trace.jsonl"))
        assert [row["step"] for row in trace] == [5] * 4 + [10] * 4
        if wide:
            assert numbers(run, "grad_norm") == pytest.approx(numbers(alone, "grad_norm"), rel=1e-9)
            expected = weights(alone / "checkpoints" / "step-10")
            found = weights(run / "checkpoints" / "step-10")
            assert set(found) == set(expected)
            for key, tensor in found.items():
                torch.testing.assert_close(tensor, expected[key], rtol=1e-8, atol=1e-9)
            for row, other in zip(trace, read_rows(alone / "trace.jsonl"), strict=True):
                for key in ("angle", "radius", "law_angle", "grad_norm", "update_norm"):
                    assert row[key] == pytest.approx(other[key], rel=1e-8)


@each(
    "scheme, size, options",
    [
        ("geonorm(learn=affine)", 2, ["--optim.name", "muon"]),  # numbers, of which one rank has none; whole matrices
        ("hyper", 2, ["--model.tied", "true"]),  # one matrix in two places
        ("pre", 2, ["--model.norm", "dyt", "--model.block", "parallel"]),
        ("angpt", 4, ["--model.hidden", 6]),  # a rank without a share
        ("prores(mhc, steps=3)", 2, ["--model.norm", "gated"]),  # a count that grows; matrices inside norms and schemes
        ("pre", 2, [*"--model.norm taper --model.taper_from 4 --model.taper_to 8 --runtime.recompute".split()]),
        ("attnres(blocks=2)", 2, ["--runtime.recompute", "true"]),  # a stream of three slots, kept between blocks
        ("nag", 2, ["--model.init", "zero"]),
        ("lambdas", 2, ["--model.values", "token", "--model.norm", "rms"]),  # tables outside the blocks
        ("mhc", 2, ["--model.values", "first", "--runtime.recompute", "true"]),  # a second tensor beside the stream
        ("pre", 2, ["--data", "lines.jsonl", "--model.document_end", 256, "--model.window", 6]),  # masks of documents
        ("geonorm(learn=gain)", 2, ["--objective", "mlm", "--model.vocab_size", 258]),  # accuracies, no causal mask
    ],
)
def test_what_is_hard_to_shard(
    runs: Any, text: Path, tmp_path: Path, scheme: str, size: int, options: list[Any]
) -> None:
    lines = [json.dumps({"text": line[:9]}) for line in text.read_text().splitlines()]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    options = [tmp_path / word if word == "lines.jsonl" else word for word in options]
    for ranks, more in ((1, []), (size, SHARDED)):
        ended = runs(tmp_path / str(ranks), ranks, *STEPS, "--scheme", scheme, *options, *more, dtype="fp64")
        assert all(r.status == 0 and r.err == "" for r in ended), ended
    for key in ("loss", "grad_norm", "val_loss", "val_bpb", "val_accuracy"):
        assert numbers(tmp_path / str(size), key) == pytest.approx(numbers(tmp_path / "1", key), rel=1e-8), key
    assert len(set(numbers(tmp_path / "1", "loss"))) == 10


@pytest.fixture
def saved_on_two(runs: Any, tmp_path: Path) -> Path:
    options = [*STEPS, "--checkpoint.every", 5, "--scheme", "geonorm(learn=gain)", "--runtime.parallel", "fsdp"]
    assert all(not r.status for r in runs("two", 2, *options))
    return tmp_path / "two"


def test_saved_on_two_loaded_on_any(saved_on_two: Path, ranks: Any, tmp_path: Path) -> None:
    folder = saved_on_two / "checkpoints" / "step-10"
    state = storage.read_state(folder)
    assert all(sum(storage.kind_of(name) == kind for name in state["sha256"]) == 2 for kind in ("model", "optimizer"))
    expected = weights(folder, "model optimizer")
    settings = yaml.safe_load((saved_on_two / "config.yaml").read_text())
    for size, kind in ((1, "auto"), (2, "ddp"), (3, "fsdp"), (4, "fsdp")):
        settings["runtime"]["parallel"], settings["batch_size"] = kind, 12
        ended = ranks("gather", size, folder, tmp_path / str(size), settings)
        assert all(r.status == 0 for r in ended), ended
        found = load_file(tmp_path / f"{size}.safetensors")
        assert set(found) == set(expected) and any(name.endswith("exp_avg_sq") for name in found)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        with safe_open(tmp_path / f"{size}.safetensors", "pt") as opened:
            assert (int(opened.metadata()["sharded"]) > 30) == (kind == "fsdp")


def test_a_run_goes_on_in_another_world(saved_on_two: Path, runs: Any, call: Any, tmp_path: Path) -> None:
    """2 ranks to step 5, then 1 to the end, or 4: the losses of the uninterrupted run."""
    whole = numbers(saved_on_two, "loss")
    shutil.rmtree(saved_on_two / "checkpoints" / "step-10")
    (saved_on_two / "summary.json").unlink()
    options = [*STEPS, "--checkpoint.every", 5, "--scheme", "geonorm(learn=gain)"]
    for size, more in ((1, []), (4, ["--runtime.parallel", "fsdp"])):
        run = tmp_path / f"on {size}"
        shutil.copytree(saved_on_two, run)
        ended = runs(run.name, size, *options, *more)
        assert [r.status for r in ended] == [0] * size and "at step 5 of 10" in ended[0].out, ended
        assert numbers(run, "loss") == pytest.approx(whole, rel=1e-5)
        assert numbers(run, "loss")[:5] == whole[:5]
    evaluated = call("eval", tmp_path / "on 4", "--data", yaml.safe_load((run / "config.yaml").read_text())["data"])
    assert evaluated.status == 0 and '"loss"' in evaluated.out  # a sharded checkpoint read whole


def test_bad_input_is_one_line_of_one_rank(runs: Any) -> None:
    for options in (["--data", "/nowhere/text.txt"], ["--scheme", "geonrom"]):
        ended = runs("run", 2, "--steps", 2, *options)
        assert [r.status for r in ended] == [2, 2]
        assert options[1] in ended[0].err and len(ended[0].err.splitlines()) == 1 and ended[1].err == ""


def settings(text: Path, **changes: Any) -> dict[str, Any]:
    model = {"layers": 8, "width": 64, "heads": 4, "hidden": 128, "vocab_size": 257, "context": 16}
    given = {"data": str(text), "tokens": {"tokenizer": "byte"}, "model": model, "batch_size": 8}
    return {**given, "evaluation": {"tokens": 256}, **changes}


@each("scheme", ["geonorm(learn=step)", "ngpt", "hyper"])
def test_no_rank_ever_holds_the_whole_model(ranks: Any, text: Path, tmp_path: Path, scheme: str) -> None:
    """Initial weights are those of one rank, bit for bit; a rank holds its share, vectors, and one matrix at a time."""
    runtime = {"parallel": "fsdp"}
    (alone,) = ranks("born", 1, tmp_path / "one", settings(text, scheme=scheme))
    sharded = ranks("born", 2, tmp_path / "two", settings(text, scheme=scheme, runtime=runtime))
    assert all(r.status == 0 for r in (alone, *sharded)), sharded[0].err  # the profiler says something of its own
    one, two = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    whole, largest = sum(tensor.nbytes for tensor in one.values()), max(tensor.nbytes for tensor in one.values())
    vectors = sum(t.nbytes for key, t in one.items() if t.dim() < 2 or ".own." in key)
    for rank in (json.loads(r.out) for r in sharded):
        assert rank["share"] < rank["peak"] < rank["share"] + 3 * largest + 2 * vectors
        assert rank["peak"] < 0.8 * whole < json.loads(alone.out)["peak"]
    assert set(two) == set(one) and all(torch.equal(tensor, one[key]) for key, tensor in two.items())


def test_in_bf16_the_stream_stays_wide(ranks: Any, text: Path) -> None:
    losses = []
    for size, runtime in ((1, {}), (1, {"dtype": "bf16"}), (2, {"dtype": "bf16", "parallel": "fsdp"})):
        ended = ranks("born", size, "", settings(text, scheme="geonorm", runtime=runtime))
        assert all(r.status == 0 for r in ended), ended[0].err
        reports = [json.loads(r.out) for r in ended]
        assert {report["stream"] for report in reports} == {"torch.float32"}
        losses.append(reports[0]["losses"])
    for rounded in losses[1:]:
        assert rounded == pytest.approx(losses[0], rel=5e-3) and rounded != losses[0]
