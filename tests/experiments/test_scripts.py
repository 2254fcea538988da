"""Scripts of experiments: what carries out a plan and keeps what it found."""

import ast
import hashlib
import importlib
import json
import runpy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .test_plans import ROOT

ENDED = {"status": "finished", "scheme": "pre", "val_loss": 1.0}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Names and options of runs that end at once, after four minutes by the clock."""
    done: list[tuple[str, list[str]]] = []

    def run(command: list[str], check: bool) -> Any:
        out = Path(command[-1])
        out.mkdir(parents=True)
        (out / "config.yaml").touch()
        (out / "summary.json").write_text(json.dumps(ENDED))
        assert command[-8:-2:2] == ["--checkpoint.keep", "--runtime.compile", "--runtime.tensorboard"]
        done.append((out.name, command[4:-8]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("time.monotonic", lambda: 240.0 * len(done))
    return done


def test_a_branch_waits_for_its_trunk_and_does_without_one_that_is_gone(trained: Any, tmp_path: Path) -> None:
    """Of a shared prefix on record alone there is no folder: its branch is trained from the first step."""
    (tmp_path / "results.jsonl").write_text(json.dumps({"run": "kept", **ENDED}) + "\n")
    words = {"long": "--steps 4 --branch short", "short": "--steps 2", "longer": "--steps 9 --branch kept"}
    grid = {name: text.split() for name, text in words.items()}
    carry_out = runpy.run_path(str(ROOT / "programme.py"))["carry_out"]
    assert carry_out(tmp_path, lambda known: grid, tmp_path / "out") == 0
    long = ["--steps", "4", "--branch", str(tmp_path / "out" / "short")]
    assert trained == [("short", ["--steps", "2"]), ("long", long), ("longer", ["--steps", "9"])]


def test_what_is_kept_of_a_run(tmp_path: Path) -> None:
    """Of a step that was trained twice the later row; every 500 steps their mean loss; a run on record stays as it is
    when its folder is gone."""
    own = runpy.run_path(str(ROOT / "programme.py"))
    run = tmp_path / "out" / "b-lr1-seed0"
    run.mkdir(parents=True)
    (run / "summary.json").write_text(json.dumps({"status": "finished", "scheme": "pre", "val_loss": 1.6}))
    (run / "environment.json").write_text(json.dumps([{"commit": "a", "device": "x"}, {"commit": "b", "device": "y"}]))
    (run / "config.yaml").write_text("lr: 1\nout: here\n")
    ended = {"step": 600, "loss": 2.0, "val_loss": 1.6, "val_loss_part": 1.5}
    steps = [{"step": n, "loss": 2.0 if n > 500 else 4.0} for n in range(1, 1001)]
    metrics = [{"step": 500, "loss": 9.0, "val_loss": 9.0}, *steps, ended]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    (run / "trace.jsonl").write_text(json.dumps({"step": 600, "layer": 0, "kind": "mlp", "clamped": 0.5}) + "\n")
    (tmp_path / "results.jsonl").write_text(json.dumps({"run": "a", "val_loss": 1.0}) + "\n")
    own["keep"](tmp_path, tmp_path / "out")
    first, second = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert first == {"run": "a", "val_loss": 1.0} and second["run"] == "b-lr1-seed0"
    assert second["course"] == [[600, 1.5]] and second["train"] == [[500, 4.0], [1000, 2.0]]
    assert (second["commit"], second["machine"]) == ("b", "y")
    assert second["settings_sha256"] == hashlib.sha256(b"lr: 1").hexdigest(), "where a run lies is no setting"
    head, line = (tmp_path / "traces.csv").read_text().splitlines()
    assert head.startswith("run,step,") and line.startswith("b-lr1-seed0,600,,0,mlp,0.5,")


def test_no_run_is_begun_that_would_end_too_late(trained: Any, tmp_path: Path) -> None:
    """Within ten minutes the first two are trained, and the third would end after twelve."""
    carry_out = runpy.run_path(str(ROOT / "programme.py"))["carry_out"]
    grid = {name: ["--steps", "2"] for name in "abc"}
    for ended in (["a", "b"], ["a", "b", "c"]):
        assert carry_out(tmp_path, lambda known: grid, tmp_path / "out", 10.0) == 0
        assert [name for name, _ in trained] == ended


def test_scripts_import_what_there_is() -> None:
    """Most of them run for hours and are read by no other test."""
    names = [
        (file, node.module, alias.name)
        for file in [*ROOT.glob("*.py"), *ROOT.glob("*/*.py"), *ROOT.parent.glob("benchmarks/*.py")]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("geonorm")
        for alias in node.names
    ]
    assert len(names) > 40
    for file, module, name in names:
        found = importlib.import_module(str(module))
        assert hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}")), (file, name)
