"""The directory of a simulation: what an interrupted one goes on with."""

import json
from pathlib import Path
from typing import Any

import pytest

from geonorm import report
from geonorm.dynamics import simulate as simulation

RULE = """
from dataclasses import dataclass
from geonorm.schemes import Pre

@dataclass(frozen=True)
class Own(Pre):
    own: float = 0.5
"""
QUICK = ["--tokens", 4, "--dim", 8, "--seeds", 1, "--points", 8, "--time", 4, "--out", "out"]


@pytest.fixture
def interrupted(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "build", lambda dirs, out, figures: out)
    for name in ("first", "second"):
        (tmp_path / f"{name}_rule.py").write_text(RULE)
    real = simulation.run_scheme

    def stopped(config: Any, scheme: Any, *rest: Any) -> None:
        if "second" in str(scheme):
            raise KeyboardInterrupt
        real(config, scheme, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "run_scheme", stopped)
        assert call("simulate", "--schemes", "./first_rule.py:Own", "./second_rule.py:Own", *QUICK).status == 130
    return tmp_path


def test_another_source_of_a_finished_scheme_is_refused(interrupted: Path, call: Any) -> None:
    words = ["simulate", "--schemes", "./first_rule.py:Own", "./second_rule.py:Own", *QUICK]
    before = {path: path.read_bytes() for path in (interrupted / "out").rglob("*") if path.is_file()}
    kept = json.loads((interrupted / "out" / "environment.json").read_text())["schemes"]
    assert kept["./first_rule.py:Own"]["./first_rule.py"]["source"] == RULE
    (interrupted / "first_rule.py").write_text(RULE.replace("0.5", "0.75"))
    refused = call(*words)
    assert refused.status == 2 and "out was made with source of ./first_rule.py " in refused.err
    assert all(path.read_bytes() == content for path, content in before.items())
    (interrupted / "first_rule.py").write_text(RULE)
    (interrupted / "second_rule.py").write_text(RULE.replace("0.5", "0.75"))  # nothing of it is there yet
    assert call(*words).status == 0
    summary = json.loads((interrupted / "out" / "summary.json").read_text())
    assert [row["scheme"] for row in summary["schemes"]] == ["./first_rule.py:Own", "./second_rule.py:Own"]
