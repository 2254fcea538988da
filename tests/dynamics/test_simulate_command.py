"""The command `geonorm simulate`: what it refuses, its directory, interrupts, its report."""

import json
from pathlib import Path
from typing import Any

import pytest

from geonorm import report
from geonorm.cli.main import main
from geonorm.dynamics import simulate as simulation
from geonorm.errors import CheckpointError, GeonormError
from geonorm.lab.study_folder import read_trajectories

WORDS = "--schemes pre geonorm --tokens 4 --dim 4 --time 4 --points 10 --seeds 1 --keep tokens --out".split()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulate") / "out"
    assert main(["simulate", *WORDS, str(out)]) == 0
    return out


def test_the_directory_and_its_page(done: Path, tmp_path: Path) -> None:
    figures = {
        f"{name}.{kind}" for name in ("cosine", "collapse", "turn", "speed", "sphere") for kind in ("png", "svg", "pdf")
    }
    assert {path.name for path in (done / "figures").iterdir()} == figures
    names = {"config.yaml", "environment.json", "trace.jsonl", "summary.json", "theory.json", "particles.json",
             "trajectories.safetensors", "report.html"}  # fmt: skip
    assert names < {path.name for path in done.iterdir()}
    # the pictures have a run of their own
    svg = (done / "figures" / "sphere.svg").read_text(encoding="utf-8")
    assert "n = 80 tokens · d = 3 · β = 1 · uniform start" in svg and "n = 4 tokens" not in svg
    pictures = json.loads((done / "particles.json").read_text())["frames"]
    assert pictures["pre"][0] == pictures["geonorm"][0]  # the same start, seen along the same axes
    page = (done / "report.html").read_text(encoding="utf-8")
    assert page.count('<svg class="chart"') == 8 and "orthonormal start" in page and "t^-2" in page
    one = report.build(done, tmp_path / "one.html", schemes=["geonorm"]).read_text(encoding="utf-8")
    assert one.count("data-toggle=") == 1 and "pre: tokens" not in one


def test_the_command_prints_both_tables_and_repeats_itself_only(done: Path, capsys: Any) -> None:
    before = (done / "trace.jsonl").read_bytes()
    config = ["--config", str(done / "config.yaml")]
    assert main(["simulate", *config, "--out", str(done)]) == 0
    out = capsys.readouterr().out
    assert "s = r, r' = <θ,A>" in out and "γ'(0)" in out and "t^-2" in out and "report: " in out
    assert (done / "trace.jsonl").read_bytes() == before
    assert "delta: 0.1" in (done / "config.yaml").read_text()  # of no cone: what is not used stays its default
    assert main(["simulate", *config, "--beta", "2", "--out", str(done)]) == 2
    assert "holds a simulation with beta None, not 2.0" in capsys.readouterr().err
    assert (done / "trace.jsonl").read_bytes() == before


def test_an_interrupt_keeps_finished_schemes_and_the_same_command_goes_on(
    done: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    out, whole = tmp_path / "out", simulation.run_scheme
    ran: list[str] = []

    def stop_at(scheme: str, error: type[BaseException]) -> None:
        def one(config: Any, rule: Any, *rest: Any) -> None:
            if str(rule) == scheme:
                raise error("no more")
            ran.append(str(rule))
            whole(config, rule, *rest)

        monkeypatch.setattr(simulation, "run_scheme", one)

    stop_at("pre", KeyboardInterrupt)
    assert main(["simulate", *WORDS, str(out)]) == 130 and not out.exists()
    assert capsys.readouterr().err == "geonorm simulate: interrupted\n"
    stop_at("geonorm", KeyboardInterrupt)
    assert main(["simulate", *WORDS, str(out)]) == 130
    first, second = capsys.readouterr().err.splitlines()
    assert first == "pre: done" and "missing: geonorm; the same command goes on" in second
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["status"], summary["missing"]) == ("interrupted", ["geonorm"])
    assert [row["scheme"] for row in summary["schemes"]] == ["pre"]
    assert len((out / "trace.jsonl").read_text().splitlines()) == 10 and set(read_trajectories(out)) == {"pre"}
    page = report.build([out], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "interrupted, missing: geonorm" in page
    stop_at("geonorm", GeonormError)
    assert main(["simulate", *WORDS, str(out)]) == 2 and "no more" in capsys.readouterr().err
    stop_at("none", KeyboardInterrupt)
    assert main(["simulate", *WORDS, str(out)]) == 0 and ran == ["pre", "geonorm"]
    assert "stored: tokens, " in capsys.readouterr().out
    for name in ("trace.jsonl", "theory.json", "particles.json", "trajectories.safetensors"):
        assert (out / name).read_bytes() == (done / name).read_bytes()
    resumed, whole_run = (json.loads((folder / "summary.json").read_text()) for folder in (out, done))
    assert resumed == {**whole_run, "out": str(out)}
    (out / "trajectories.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"trajectories.safetensors cannot be read"):
        read_trajectories(out)
