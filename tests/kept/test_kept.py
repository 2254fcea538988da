"""What an earlier version left behind opens, resumes, evaluates, compares, exports and reports as it did (make.py)."""

from __future__ import annotations

import json
import runpy
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from geonorm.cli.main import main

HERE = Path(__file__).parent
SCHEMES = runpy.run_path(str(HERE / "make.py"))["SCHEMES"]
# one machine repeats its numbers bit for bit; another sums in another order, which eight steps do not blow up
CLOSE = {"rel": 2e-5, "abs": 2e-6}
TIMES = {"seconds", "tokens_per_second", "wall_seconds", "peak_memory_bytes"}
MOVED = {"val_loss", "val_bpb"}
"""Measured on the start of the held-out text then, on windows spread over all of it now. So is the trace."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    with tarfile.open(HERE / "a501130.tar.xz") as file:
        file.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
        file.extractall(folder)
    return folder


@pytest.fixture
def kept(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to write in, as the working directory: the folders name their text relative to it."""
    shutil.copytree(archive, tmp_path / "kept")
    monkeypatch.chdir(tmp_path / "kept")
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "kept"


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def assert_contains(new: object, old: object, place: str = "") -> None:
    """Every number that the old version wrote is there and equal to rounding; new keys may stand beside it."""
    if isinstance(old, dict):
        assert isinstance(new, dict), place
        for key, value in old.items():
            if key not in TIMES:
                assert key in new, f"{place} lost {key}"
                assert_contains(new[key], value, f"{place}.{key}")
    elif isinstance(old, float):
        assert new == pytest.approx(old, **CLOSE), place
    else:
        assert new == old, place


@pytest.mark.parametrize("name", SCHEMES)
def test_a_run_goes_on_from_its_checkpoint(name: str, kept: Path) -> None:
    run = kept / "runs" / name
    last = run / "checkpoints" / "step-8"
    before, metrics, trace = (
        load_file(last / "model.safetensors"),
        rows(run / "metrics.jsonl"),
        rows(run / "trace.jsonl"),
    )
    shutil.rmtree(last)
    (run / "summary.json").unlink()
    assert main(["train", "--config", f"runs/{name}/config.yaml"]) == 0
    for new, old in zip(rows(run / "metrics.jsonl"), metrics, strict=True):
        assert_contains(new, {key: value for key, value in old.items() if key not in MOVED}, f"step {old['step']}")
    for new, old in zip(rows(run / "trace.jsonl"), trace, strict=True):
        assert set(old) <= set(new)
        assert all(new[key] == old[key] for key in ("step", "scheme", "layer", "kind", "t"))
    after = load_file(last / "model.safetensors")
    for key, weight in before.items():
        torch.testing.assert_close(after[key].reshape(weight.shape), weight, rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_run_is_evaluated(name: str, kept: Path) -> None:
    old = json.loads((kept / "evaluations" / name / "summary.json").read_text(encoding="utf-8"))
    assert main(["eval", f"runs/{name}", "--data", "text.txt", "--out", "again"]) == 0
    assert_contains(json.loads((kept / "again" / "summary.json").read_text(encoding="utf-8")), old)


def test_a_comparison_is_not_trained_again(kept: Path) -> None:
    old = json.loads((kept / "comparison" / "results.json").read_text(encoding="utf-8"))
    stamps = {path: path.stat().st_mtime_ns for path in kept.glob("comparison/runs/*/checkpoints/*/*")}
    assert main(["compare", "--config", "comparison/config.yaml"]) == 0
    new = json.loads((kept / "comparison" / "results.json").read_text(encoding="utf-8"))
    assert stamps and all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert_contains(new["runs"][0], old["runs"][0])
    for one, other in zip(new["schemes"], old["schemes"], strict=True):
        for key in ("scheme", "n", "lr", "val_loss_mean", "val_loss_std", "difference", "difference_low"):
            assert_contains(one[key], other[key], key)
    assert (kept / "comparison" / "report.html").stat().st_size > 10_000


def test_a_run_is_probed(kept: Path) -> None:
    old = rows(kept / "probe" / "trace.jsonl")
    assert main(["probe", "runs/geonorm", "--data", "text.txt", "--tokens", "256", "--out", "again"]) == 0
    # the null of a site is an estimate from a sample, and the sample may change
    for new, row in zip(rows(kept / "again" / "trace.jsonl"), old, strict=True):
        assert_contains(new, {key: value for key, value in row.items() if "null" not in key})


def test_a_simulation_goes_on_and_is_reported(kept: Path) -> None:
    old = rows(kept / "simulation" / "trace.jsonl")
    assert main(["simulate", "--config", "simulation/config.yaml"]) == 0
    for new, row in zip(rows(kept / "simulation" / "trace.jsonl"), old, strict=True):
        assert_contains(new, row, f"{row['scheme']} at {row['time']}")
    assert main(["report", "simulation", "--out", "page.html"]) == 0
    assert (kept / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["geonorm", "ngpt", "siamese"])
def test_an_export_is_the_run_that_it_was_made_from(name: str, kept: Path) -> None:
    from geonorm.hf import GeoNormForCausalLM
    from geonorm.lab.finished import finished

    ids = torch.arange(40, 56)[None]
    model = GeoNormForCausalLM.from_pretrained(kept / "exports" / name).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, finished(kept / "runs" / name).model(ids), rtol=1e-5, atol=1e-5)
