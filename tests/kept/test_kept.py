"""What an earlier version left behind opens, resumes, evaluates, compares, exports and reports as it did (make.py)."""

from __future__ import annotations

import json
import runpy
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from geonorm.cli.main import main
from geonorm.lab.data.batches import validation_batches
from geonorm.lab.data.objectives import NEXT
from geonorm.lab.train import validation
from geonorm.schemes import parse

HERE = Path(__file__).parent
SCHEMES = runpy.run_path(str(HERE / "make.py"))["SCHEMES"]
# one machine repeats its numbers bit for bit; another sums in another order, which eight steps do not blow up
CLOSE = {"rel": 2e-5, "abs": 2e-6}
TIMES = {"seconds", "tokens_per_second", "wall_seconds", "peak_memory_bytes"}
SAMPLED = ("null", "principal")
"""Of columns that are estimated from a sample of the tokens: other draws than then, and a converged direction."""

UNDRIVEN = {"hyper": "blocks.0.attn.own.connection.mix"}
"""Weights of a read whose gradient is 0 in theory: all streams are alike there, and a norm undoes the length of their
sum. Adam makes steps of its rounding, so that they and the length before that norm are another machine's."""
STEPS = 4 * 0.005
"""The furthest that Adam goes in what is trained again."""


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
    elif place.endswith(".scheme"):  # pre(form=scaled) is called polar now
        assert parse(str(new)) == parse(str(old)), place
    elif isinstance(old, float):
        assert new == pytest.approx(old, rel=CLOSE["rel"], abs=CLOSE["abs"]), place
    else:
        assert new == old, place


@pytest.fixture
def first_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out windows are spread over the text now; the old version measured on the first ones."""
    spread = validation_batches

    def first(tokens: Any, rows: int, context: int, most: int | None = None, objective: Any = NEXT) -> Any:
        return spread(tokens if most is None else tokens[: most + 1], rows, context, most, objective)

    def trace_ids(self: validation.Validation) -> torch.Tensor:
        return torch.cat([ids for ids, _ in self.part])[: self.trace_tokens // self.context]

    monkeypatch.setattr(validation, "validation_batches", first)
    monkeypatch.setattr(validation.Validation, "trace_ids", trace_ids)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_run_goes_on_from_its_checkpoint(name: str, kept: Path, first_windows: None) -> None:
    run = kept / "runs" / name
    last = run / "checkpoints" / "step-8"
    before = load_file(last / "model.safetensors")
    files = {file: rows(run / file) for file in ("metrics.jsonl", "trace.jsonl", "norms.jsonl")}
    shutil.rmtree(last)
    (run / "summary.json").unlink()
    assert main(["train", "--config", f"runs/{name}/config.yaml"]) == 0
    for file, old in files.items():
        for new, row in zip(rows(run / file), old, strict=True):
            free = SAMPLED
            if name in UNDRIVEN and file == "norms.jsonl" and (row["layer"], row["kind"]) == (0, "attn"):
                free = (*SAMPLED, "norm_before")
            same = {key: value for key, value in row.items() if not any(word in key for word in free)}
            assert_contains(new, same, f"{file}, step {row['step']}")
    after = load_file(last / "model.safetensors")
    assert after.keys() == before.keys()
    for key, weight in before.items():
        atol = STEPS if name in UNDRIVEN and key.startswith(UNDRIVEN[name]) else 1e-6
        torch.testing.assert_close(after[key].reshape(weight.shape), weight, rtol=1e-4, atol=atol, msg=key)


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
    for new, row in zip(rows(kept / "again" / "trace.jsonl"), old, strict=True):
        assert_contains(new, {key: value for key, value in row.items() if "null" not in key})


def test_a_simulation_goes_on_and_is_reported(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To rounding: the angle of a geodesic step is taken from squares since its derivatives of every order are right,
    which moved `geonorm` by 5e-16; other schemes have not moved by a bit on the machine that made the folder."""
    monkeypatch.setitem(CLOSE, "rel", 1e-10)
    monkeypatch.setitem(CLOSE, "abs", 1e-13)
    old = rows(kept / "simulation" / "trace.jsonl")
    assert main(["simulate", "--config", "simulation/config.yaml"]) == 0
    for new, row in zip(rows(kept / "simulation" / "trace.jsonl"), old, strict=True):
        assert_contains(new, row, f"{row['scheme']} at {row['time']}")
    assert main(["report", "simulation", "--out", "page.html"]) == 0
    assert (kept / "page.html").stat().st_size > 10_000


CUT = object()
DAMAGES = [
    *(("simulation", name, CUT) for name in ("summary.json", "trace.jsonl", "theory.json", "particles.json")),
    *(("simulation", name, None) for name in ("summary.json", "trace.jsonl", "theory.json")),
    ("simulation", "summary.json", '{"kind": "simulation"}'),
    ("simulation", "trace.jsonl", ""),
    ("simulation", "theory.json", "[]"),
    ("simulation", "theory.json", "{}"),
    ("simulation", "theory.json", '{"pre": 3, "post": 3, "geonorm": 3}'),
    ("simulation", "theory.json", '{"pre": {"times": [0], "gap": [], "speed": [1], "radius": [1]}}'),
    *(("probe", name, CUT) for name in ("summary.json", "trace.jsonl", "norms.jsonl")),
    *(("probe", name, None) for name in ("summary.json", "trace.jsonl", "norms.jsonl")),
    ("probe", "summary.json", '{"kind": "probe", "models": [{}]}'),
    ("probe", "trace.jsonl", ""),
    ("comparison", "results.json", CUT),
    ("comparison", "results.json", '{"schemes": [3]}'),
    ("comparison", "runs", None),
]


@pytest.mark.parametrize(("folder", "name", "content"), DAMAGES)
def test_a_damaged_folder_is_refused(
    folder: str, name: str, content: object, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names what is damaged, status 2, and no page: a file that is cut, gone or of something else."""
    file = kept / folder / name
    if content is CUT:
        file.write_bytes(file.read_bytes()[:-30])
    elif isinstance(content, str):
        file.write_text(content, encoding="utf-8")
    elif file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink()
    assert main(["report", folder, "--out", "page.html"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (name in line or name == "runs") and folder in line and not (kept / "page.html").exists(), line


def test_what_is_damaged_in_a_run_is_named_on_the_page(kept: Path) -> None:
    """A run goes on while others read it, so that a file of it may be cut; its page says so."""
    file = kept / "comparison" / "runs" / "pre-lr0.005-seed0" / "summary.json"
    file.write_bytes(file.read_bytes()[:-30])
    assert main(["report", "comparison", "--out", "page.html"]) == 0
    assert "Unreadable lines or files were skipped in pre-lr0.005-seed0" in (kept / "page.html").read_text()


@pytest.mark.parametrize("name", ["geonorm", "ngpt", "siamese"])
def test_an_export_is_the_run_that_it_was_made_from(name: str, kept: Path) -> None:
    from geonorm.hf import GeoNormForCausalLM
    from geonorm.lab.open import open_run

    ids = torch.arange(40, 56)[None]
    model = GeoNormForCausalLM.from_pretrained(kept / "exports" / name).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, open_run(kept / "runs" / name).model(ids), rtol=1e-5, atol=1e-5)
