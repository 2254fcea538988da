"""Ladders: end to end, extension, the rule of sizes, wrong input, launchers, a planted speed-up in real training."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import geonorm
from geonorm import report
from geonorm.errors import ConfigError, GeonormError
from geonorm.lab.compare import ladder_config as rule
from geonorm.lab.compare.ladder import about, ladder_run, outline
from geonorm.lab.compare.ladder_config import LadderConfig, Size
from geonorm.lab.config import Model, Optim, TrainConfig
from geonorm.lab.plan import count_looked_up
from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.speedup import judge_ladder
from geonorm.report.style import si

from ...rows import each
from ..conftest import results

BUILD = report.build
WSD = ["--optim.schedule", "wsd"]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "LEAST_STEP_TOKENS", 32)
    monkeypatch.setattr(rule, "STEP_TOKENS_RATIO", 1e-6)


@pytest.fixture
def ladder(call: Any, tiny: list[str], small_steps: None) -> Any:
    words = tiny[tiny.index("--model.width") :]
    return lambda out, *options: call("ladder", *words, "--out", out, *options)


def test_rates_of_roles_that_do_not_depend_on_the_width_stay() -> None:
    """The rate of matrices falls as the width grows; that of the embedding is held by its multiplier."""
    config = LadderConfig(preset="nano", optim=Optim(rates=["embed=16", "head=2"]))
    width = geonorm.models.preset("nano").width
    for ratio in (0.5, 1, 2):
        size = Size(4, int(ratio * width), 4, 32, 4, (100,), 1e-2 / ratio)
        run = ladder_run(config, size, "pre", 1.0, 0, 0)
        assert run.optim.multipliers == {"embed": 16 * ratio, "head": 2}
        assert run.lr * run.optim.multipliers["embed"] == pytest.approx(0.16)
        assert run.evaluation.tokens == 65536, "the same text, however long a run is"
    assert ladder_run(replace(config, optim=Optim()), size, "pre", 1.0, 0, 0).optim.rates == []


def test_end_to_end_and_extension(
    processes: Any, ladder: Any, call: Any, losses: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "ladder", ["--budgets", "0.32k", "0.64k", "--seeds", 2, *WSD]
    with monkeypatch.context() as patch:
        patch.setattr(report, "build", BUILD)
        first = ladder(out, "--schemes", "pre", "geonorm(decay=sqrt)", "--depth", 1, *words)
    assert first.status == 0, first.err
    assert len(processes.started) == 8 and "geonorm(decay=sqrt) against pre" in first.out
    files = {p.name for p in out.iterdir()}
    assert {"config.yaml", "configs", "runs", "results.json", "report.html", "figures"} <= files
    found = results(out)
    assert set(found) == {"command", "order", "data", "runs", "baseline", "points", "speedups", "trends"}
    assert found["command"][:2] == ["geonorm", "ladder"] and found["baseline"] == "pre"
    wanted = [(tokens, scheme, 2) for tokens in (320, 640) for scheme in ("pre", "geonorm(decay=sqrt)")]
    assert [(row["tokens"], row["scheme"], row["n"]) for row in found["points"]] == wanted
    (row,) = found["speedups"]
    assert row["tokens"] == 640 and (row["speedup"] or row["bound"]) and row["along"] == "tokens"
    assert (out / "report.html").read_text().count("<svg") >= 3
    unfinished = shutil.copytree(out, tmp_path / "unfinished", ignore=shutil.ignore_patterns("results.json", "runs"))
    with pytest.raises(GeonormError, match="its ladder has not finished"):
        geonorm.load(unfinished)
    short, long = sorted(p for p in (out / "runs").iterdir() if "pre" in p.name and "seed0" in p.name)
    settings = yaml.safe_load((long / "config.yaml").read_text())
    assert settings["branch"] == str(short) and settings["optim"]["warmup_steps"] == 1
    assert "resuming" in (out / "configs" / f"{long.name}.log").read_text()
    planned = {**settings, "branch": None, "out": str(tmp_path / "planned")}
    (tmp_path / "planned.yaml").write_text(yaml.safe_dump(planned))
    assert call("train", "--config", tmp_path / "planned.yaml").status == 0
    assert [row[:5] for row in losses(long)] == [row[:5] for row in losses(tmp_path / "planned")]
    wider = ladder(out, "--schemes", "pre", "--depth", 1, 2, *words)
    assert wider.status == 0 and len(processes.started) == 8 + 4
    points = {(row["size"], row["scheme"]) for row in results(out)["points"]}
    assert points == {("d1w16", "pre"), ("d1w16", "geonorm(decay=sqrt)"), ("d2w16", "pre")}
    alone = ladder(out, "--schemes", "geonorm(decay=sqrt)", "--depth", 1, *words)
    assert "differences are to pre, as before" in alone.out and results(out)["baseline"] == "pre"
    geonorm_first = ladder(out, "--schemes", "geonorm(decay=sqrt)", "pre", "--depth", 1, *words)
    assert "as before" not in geonorm_first.out and results(out)["baseline"] == "geonorm(decay=sqrt)"

    refused = ladder(out, "--schemes", "pre", "--depth", 1, *words[:2], "0.96k", *words[3:])
    assert refused.status == 2 and "holds a ladder with budgets" in refused.err and refused.err.count("\n") == 1
    other = call("compare", "--out", out)
    assert other.status == 2 and "does not hold the settings of a comparison" in other.err


def test_an_extension_counts_the_parameters_of_the_folders_baseline(
    processes: Any, ladder: Any, tmp_path: Path
) -> None:
    """`hyper` has more of them than `pre`: alone it would get more tokens, and be refused where `pre` stands."""
    words = ["--budgets", 0.5, "--seeds", 1, *WSD]
    assert ladder(tmp_path / "pre", "--schemes", "pre", "--depth", 1, *words).status == 0
    alone = ladder(tmp_path / "alone", "--schemes", "hyper", "--depth", 1, *words)
    extended = ladder(tmp_path / "pre", "--schemes", "hyper", "--depth", 1, *words)
    assert alone.status == extended.status == 0, extended.err
    tokens = {row["scheme"]: row["tokens"] for row in results(tmp_path / "pre")["points"]}
    assert tokens["hyper"] == tokens["pre"] < results(tmp_path / "alone")["points"][0]["tokens"]


def test_one_integer_sets_a_size_and_each_part_can_be_said() -> None:
    def count(shape: dict[str, int]) -> int:
        return 12 * shape["layers"] * shape["width"] ** 2 + 2048 * shape["width"]

    size = LadderConfig().size(4, count)
    assert (size.depth, size.width, size.heads, size.hidden, size.batch_size, size.name) == (4, 64, 4, 172, 4, "d4w64")
    assert size.steps == (round(20 * count({"layers": 4, "width": 64}) / 512),)
    assert size.lr == pytest.approx(19 / (64 * size.steps[0] ** 0.5))
    wide = LadderConfig(budgets=["4M"], model=Model(width=96)).size(4, count)
    assert (wide.width, wide.heads, wide.hidden, wide.steps) == (96, 6, 258, (round(4e6 / 512),))
    assert LadderConfig(budgets=["1"]).size(2, count).lr == 0.012  # the highest there is


@each("name, tables", [("nano", 1), ("nano-gpt2", 0.125), ("modern", 3)])
def test_what_is_looked_up_is_not_computed_with(name: str, tables: float) -> None:
    """In tables of vocabulary x width: an untied embedding, positions beside a tied one, two of values besides."""
    config = TrainConfig(preset=name, scheme="pre")
    shape = config.shape("pre")
    assert about(config)["embedding"] == tables * shape.vocab_size * shape.width
    for scheme in (name for name in geonorm.names() if name != "pre"):
        assert count_looked_up(outline(replace(shape, scheme=scheme))) == about(config)["embedding"], scheme


def test_a_ladder_runs_no_scheme_of_its_folder(
    processes: Any, ladder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of schemes that are not asked for count by their numbers: their code may be a stranger's, or be gone."""
    monkeypatch.chdir(tmp_path)
    words = ["--depth", 1, "--budgets", "0.32k", "--seeds", 1]
    assert ladder(tmp_path / "out", "--schemes", "pre", *words).status == 0
    (run,) = (tmp_path / "out" / "runs").iterdir()
    for name in ("there", "gone"):
        other = shutil.copytree(run, run.with_name(run.name.replace("pre", name)))
        place = f"./{name}_rule.py:Evil"
        settings = yaml.safe_load((other / "config.yaml").read_text())
        (other / "config.yaml").write_text(yaml.safe_dump({**settings, "scheme": place}))
        summary = json.loads((other / "summary.json").read_text())
        (other / "summary.json").write_text(json.dumps({**summary, "scheme": place}))
    (tmp_path / "there_rule.py").write_text("open('it-ran', 'w').close()\n")
    again = ladder(tmp_path / "out", "--schemes", "pre", *words)
    assert again.status == 0, again.err
    names = {row["scheme"] for row in results(tmp_path / "out")["points"]}
    assert names == {"pre", "./there_rule.py:Evil", "./gone_rule.py:Evil"}
    assert not (tmp_path / "it-ran").exists()


def test_a_size_at_which_every_run_failed_is_in_the_tables(processes: Any, ladder: Any, tmp_path: Path) -> None:
    processes.fail = staticmethod(lambda name: name.startswith("d2w"))
    words = ["--schemes", "pre", "geonorm", "--depth", 1, 2, "--budgets", "0.32k", "--seeds", 1]
    found = ladder(tmp_path / "out", *words)
    assert found.status == 2, found.err
    points = [row for row in results(tmp_path / "out")["points"] if row["size"] == "d2w16"]
    assert [(row["n"], row["failed"]) for row in points] == [(0, 1), (0, 1)]
    size = points[0]["parameters"]
    assert size > 10_000 and f"pre at {si(size)} parameters, 320 tokens: 1 run did not finish." in found.out


def test_from_python(processes: Any, text: Path, tmp_path: Path, small_steps: None) -> None:
    small = {"width": 16, "heads": 2, "hidden": 16, "context": 16, "vocab_size": 257}
    settings: dict[str, Any] = {"model": small, "tokens": {"tokenizer": "byte"}}
    settings |= {"runtime": {"device": "cpu", "tensorboard": False}, "evaluation": {"tokens": 256, "trace_tokens": 0}}
    settings |= {"data": str(text), "budgets": "0.32k", "seeds": 1, "out": str(tmp_path / "out")}
    found = geonorm.ladder(["pre", "geonorm"], depth=[1, 2], **settings)
    assert len(processes.started) == 4
    assert [row["size"] for row in found.tables()["speedups"]] == ["d1w16", "d2w16"]
    assert {"speedup", "speedup_low", "parameters"} <= set(found.frame().columns)
    assert found.plot("loss").spec
    with pytest.raises(ConfigError, match="depth must be"):
        geonorm.ladder("pre", depth=["4,6"])


@pytest.mark.slow
def test_a_planted_speedup_is_recovered_in_real_training(call: Any, tmp_path: Path) -> None:
    """The baseline with 1.25 times the tokens, seed by seed, at three budgets, lies within its interval."""
    seeds, budgets = 3, {240 * factor: 300 * factor for factor in (1, 2, 4)}
    tokens = [f"{steps * 512 / 1000}k" for pair in budgets.items() for steps in pair]
    words = ["--depth", 2, "--schemes", "pre", "--seeds", seeds, "--runtime.device", "cpu"]
    words += ["--evaluation.tokens", 200000, "--evaluation.every", 9999, "--evaluation.trace_tokens", 0]
    out = tmp_path / "ladder"
    done = call("ladder", *words, "--budgets", *tokens, *WSD, "--out", out)
    assert done.status == 0, done.err
    runs = {(run["planned_tokens"] // 512, run["seed"]): run for run in results(out)["runs"]}
    assert len(runs) == seeds * 6
    base = [runs[steps, seed] for steps in budgets for seed in range(seeds)]
    planted = [
        runs[longer, seed] | {"scheme": "planted", "planned_tokens": steps * 512}
        for steps, longer in budgets.items()
        for seed in range(seeds)
    ]
    (row,) = judge_ladder(list(map(Summary.read, [*base, *planted])), "pre")["speedups"]
    assert row["speedup_low"] <= 1.25 <= row["speedup_high"], row
    assert row["speedup_low"] > 1 and row["speedup_high"] < 1.6, row
