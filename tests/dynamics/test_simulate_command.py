"""The command `geonorm simulate`: what it refuses, its directory, interrupts, its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geonorm import report
from geonorm.cli.main import main
from geonorm.dynamics import simulate as simulation
from geonorm.errors import GeonormError

from ..rows import each

BAD = [
    ("--schemes geonrom", "did you mean 'geonorm'?"),
    ("--schemes pre pre()", "--schemes names pre twice"),
    ("--tokens 1", "tokens must be at least 2"),
    ("--dim 1", "dim must be at least 2"),
    ("--tokens 9 --dim 8", "9 equiangular particles need dim >= 9, got 8"),
    ("--beta -1", "beta must be at least 0"),
    ("--time 0", "time must be positive"),
    ("--seeds 0", "seeds must be at least 1"),
    ("--points 2", "points must be at least 8"),
    ("--heads 3 --weights network", "model.width 8 must be a multiple of model.heads 3"),
    ("--delta 3 --init cone", "delta must lie in (0, 2], got 3"),
    ("--delta 0.2", "--delta does nothing here, it needs --init cone"),
    ("--per layer", "--per does nothing here, it needs --weights kaiming"),
    ("--mlp gelu", "--mlp does nothing here, it needs --weights network"),
    ("--hidden 3 --weights network", "--hidden does nothing here, it needs --mlp"),
    ("--beta 2 --weights network", "--beta does nothing here"),
    ("--method layers --time 2.5", "time must be a whole number"),
    ("--init everywhere", "--init takes equiangular or uniform"),
    ("--device tpu", "unknown device 'tpu'"),
    ("--out=", "out is empty"),
    ("--out text.txt", "out is a file"),
    ("--out .", "is not empty and holds no simulation"),
    ("--schemes geonorm(decay=linear) --depth 2 --time 9", "runs backwards after its last layer"),
    ("--depth 0", "depth must be at least 1"),
    ("--schemes post polar", "keeps a token as direction and log-radius"),
    ("--schemes post hybrid", "hybrid changes v inside attention"),
    ("--schemes post first(pre,hybrid,blocks=1)", "(its block 1: hybrid)"),
    ("--schemes post geonorm(decay=linear) --depth 1", "runs backwards after its last layer"),
    ("--schemes post per_kind --weights network --mlp gelu", "do not put the stream on one sphere"),
    ("--schemes mix(ngpt,pre,share=0.5) --weights network", "mixes streams of radius 1 (ngpt) and 2.828 (pre)"),
    ("--out text.txt/x", "cannot write to text.txt/x: Not a directory"),
    ("--out /proc/x/y", "cannot write to /proc/x/y"),
]


@each("line, said", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    line: str, said: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulation, "run_scheme", lambda *_: pytest.fail("computed before everything was checked"))
    (tmp_path / "text.txt").write_text("here")
    words = line.split(" ")
    for name, value in (("--tokens", "4"), ("--dim", "8"), ("--time", "2"), ("--out", "out"), ("--points", "8")):
        if not any(word.partition("=")[0] == name for word in words):
            words += [name, value]
    assert main(["simulate", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and err.startswith("geonorm simulate: "), err
    assert out == "" and [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_comparison_is_no_simulation(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.yaml").write_text("schemes: [pre]\nsteps: 4\n")
    assert main(["simulate", "--schemes", "pre", "--out", str(tmp_path)]) == 2
    assert "is not empty and holds no simulation" in capsys.readouterr().err


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulate") / "out"
    words = "--schemes pre geonorm --tokens 4 --dim 4 --time 4 --points 10 --seeds 1".split()
    assert main(["simulate", *words, "--out", str(out)]) == 0
    return out


def test_the_directory(done: Path) -> None:
    figures = {f"{name}.{kind}" for name in ("cosine", "collapse", "speed", "sphere") for kind in ("png", "svg", "pdf")}
    assert {path.name for path in (done / "figures").iterdir()} == figures
    names = {"config.yaml", "environment.json", "trace.jsonl", "summary.json", "theory.json", "particles.json",
             "report.html"}  # fmt: skip
    assert names < {path.name for path in done.iterdir()}
    summary = json.loads((done / "summary.json").read_text())
    wanted = {"scheme", "initial_velocity", "initial_velocity_predicted", "terminal_law", "terminal_exponent",
              "terminal_exponent_interval", "terminal_exponent_predicted", "collapse_time"}  # fmt: skip
    assert all(wanted <= set(row) for row in summary["schemes"])
    assert len((done / "trace.jsonl").read_text().splitlines()) == 2 * 10


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


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "summarize", stop)
    words = "--schemes pre --tokens 4 --dim 4 --time 2 --points 8 --seeds 1".split()
    assert main(["simulate", *words, "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "geonorm simulate: interrupted\n" and not (tmp_path / "out").exists()


def test_an_interrupt_keeps_finished_schemes_and_the_same_command_goes_on(
    done: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    words = "--schemes pre geonorm --tokens 4 --dim 4 --time 4 --points 10 --seeds 1 --out".split()
    command, ran, whole = ["simulate", *words, str(tmp_path)], [], simulation.run_scheme

    def stop_at(scheme: str, error: type[BaseException]) -> None:
        def one(config: Any, rule: Any, *rest: Any) -> Any:
            if str(rule) == scheme:
                raise error("no more")
            ran.append(str(rule))
            return whole(config, rule, *rest)

        monkeypatch.setattr(simulation, "run_scheme", one)

    stop_at("geonorm", KeyboardInterrupt)
    assert main(command) == 130
    first, second = capsys.readouterr().err.splitlines()
    assert first == "pre: done" and "missing: geonorm; the same command goes on" in second
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["missing"]) == ("interrupted", ["geonorm"])
    assert [row["scheme"] for row in summary["schemes"]] == ["pre"]
    assert len((tmp_path / "trace.jsonl").read_text().splitlines()) == 10
    page = report.build([tmp_path], tmp_path.parent / "page.html").read_text(encoding="utf-8")
    assert "interrupted, missing: geonorm" in page
    stop_at("geonorm", GeonormError)
    assert main(command) == 2 and "no more" in capsys.readouterr().err
    stop_at("none", KeyboardInterrupt)
    assert main(command) == 0 and ran == ["pre", "geonorm"]
    for name in ("trace.jsonl", "theory.json", "particles.json"):
        assert (tmp_path / name).read_bytes() == (done / name).read_bytes()
    resumed, whole_run = (json.loads((folder / "summary.json").read_text()) for folder in (tmp_path, done))
    assert resumed == {**whole_run, "out": str(tmp_path)}


def test_pictures_state_their_own_run(done: Path) -> None:
    svg = (done / "figures" / "sphere.svg").read_text(encoding="utf-8")
    assert "n = 80 tokens · d = 3 · β = 1 · uniform start" in svg and "n = 4 tokens" not in svg
    pictures = json.loads((done / "particles.json").read_text())["frames"]
    assert pictures["pre"][0] == pictures["geonorm"][0]  # the same start, seen along the same axes


def test_report_of_a_simulation(done: Path, tmp_path: Path) -> None:
    page = report.build([done], tmp_path / "page.html", figures=tmp_path / "figures").read_text(encoding="utf-8")
    assert page.count('<svg class="chart"') == 7 and "orthonormal start" in page and "t^-2" in page
    assert "pre: tokens" in page[: page.index("<nav")] and page.count("data-toggle=") == 2  # the result comes first
    assert "://" not in page.replace("http://www.w3.org", "") and (tmp_path / "figures" / "cosine.png").stat().st_size
    one = report.build(done, tmp_path / "one.html", schemes=["geonorm"]).read_text(encoding="utf-8")
    assert one.count("data-toggle=") == 1 and "pre: tokens" not in one


def test_simulations_of_one_name_get_a_folder_each(done: Path, tmp_path: Path) -> None:
    copies = []
    for parent in ("a", "b", "c"):
        copies.append(tmp_path / parent / ("out" if parent != "c" else "out-2"))
        copies[-1].mkdir(parents=True)
        for name in ("summary.json", "theory.json", "particles.json", "trace.jsonl"):
            (copies[-1] / name).write_bytes((done / name).read_bytes())
    written = report.write_figures(copies, tmp_path / "figures")
    assert len(written) == len(set(written))
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["1-out", "2-out", "3-out-2"]


def test_one_page_holds_runs_and_simulations(done: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("scheme: geonorm\nseed: 0\n")
    page = report.build([done, tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "run: geonorm" in page and "Simulation: out" in page
    assert page.count("data-toggle=") == 2  # geonorm is one entry, of one colour, for both
