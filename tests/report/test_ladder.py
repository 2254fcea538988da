"""The report of a ladder, from a results.json that nothing was trained for."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from geonorm import report
from geonorm.errors import GeonormError
from geonorm.lab.load import Ladder
from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.speedup import judge_ladder
from geonorm.report.checks import list_other_sizes
from geonorm.report.ladder import SavedLadder

SPEED = {"pre": 1.0, "geonorm": 1.3, "./mine.py:Soft<Post": 0.8, "far": 100.0}


def judge(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return judge_ladder(list(map(Summary.read, runs)), "pre")


def write(folder: Path, sizes: dict[str, int], budgets: list[int], seeds: int = 3) -> Path:
    """Losses of a law in compute, a little apart by seed and scheme."""
    runs = []
    for scheme, speed in SPEED.items():
        for size, parameters in sizes.items():
            for tokens in [budget * parameters for budget in budgets]:
                for seed in range(seeds):
                    loss = 2 + 50 * (parameters * tokens * speed) ** -0.15 + 1e-3 * math.sin(7 * seed + len(scheme))
                    about = {"size": size, "planned_tokens": tokens, "embedding": 1000, "parameters": parameters}
                    ended = {"status": "finished", "phase": "final", "lr": 1e-3, "tokens": tokens, "spikes": 0}
                    name = {"run": f"{size}-{tokens}-{scheme}-{seed}", "scheme": scheme, "seed": seed}
                    runs.append({**about, **ended, **name, "val_loss": loss, "tokens_per_second": 1e4 / speed})
    folder.mkdir()
    found = {"command": ["geonorm", "ladder"], "data": "books", "runs": runs, **judge(runs)}
    (folder / "results.json").write_text(json.dumps(found, allow_nan=False))
    (folder / "config.yaml").write_text(yaml.safe_dump({"schemes": ["pre"], "depth": ["3"], "budgets": ["20"]}))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ladder") / "<b>", {"d3w48": 180_000, "d4w64": 330_000}, [5, 10, 20, 40])


def test_the_page_begins_with_what_was_found(saved: Path, comparison_dir: Path, tmp_path: Path) -> None:
    page = report.build([saved], tmp_path / "page.html", figures=tmp_path / "figures").read_text()
    head, body = page.split("<nav", 1)
    assert "geonorm against pre at 330k parameters and 13.2M tokens: speed-up 1.28 (1.27 to 1.30) in tokens" in head
    assert "Soft&lt;Post" in page and "Soft<Post" not in page
    assert "<b>" not in page + report.build([saved, comparison_dir], tmp_path / "both.html").read_text()
    assert "far against pre at 330k parameters and 13.2M tokens: a speed-up of more than 8" in head
    assert head.count("geonorm against pre") == 1 and "; 1.29 (1.27 to 1.30) at 180k." in head
    for section in ("Effective speed-up", "Slope of the difference", "What limits this ladder"):
        assert section in page, section
    assert body.count('<svg class="chart"') == body.count("<em>") == 5  # two sizes, over sizes, loss, difference
    assert {p.name for p in (tmp_path / "figures").glob("*.png")} == {"speedup.png", "loss.png", "difference.png"}
    assert "geonorm ladder --config" in page


def test_sizes_are_pooled(saved: Path, tmp_path: Path) -> None:
    study = SavedLadder.load(saved)
    _, rows = study.tables()["Over sizes"]
    points = [row for row in study.ladder.points if row.scheme == "geonorm"]
    gaps = [row.difference for row in points if row.tokens == 40 * row.parameters]
    row = next(row for row in rows if row[0] == "geonorm")
    assert len(gaps) == 2 and row[1] == "2"
    assert min(gaps) - 1e-3 < float(row[2].partition(" ")[0].replace("−", "-")) < max(gaps) + 1e-3
    assert row[4] in ("better", "not resolved") and " to " in row[3]
    assert "Over sizes" not in SavedLadder.load(write(tmp_path / "one", {"d4w64": 330_000}, [3, 6])).tables()


def test_one_size_is_drawn_over_tokens(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"d4w64": 330_000}, [3, 6, 12, 24, 48])
    drawn = report.draw(folder)
    assert '"title": "tokens"' in json.dumps(drawn["loss"].spec)
    (part,) = drawn["difference"].spec["concat"]
    bands = [row for layer in part["layer"] for row in layer["data"]["values"] if "y2" in row]
    assert all(row["y"] <= row["y2"] for row in bands) and any(row["y"] < row["y2"] for row in bands)


def test_other_forms_and_an_order_of_ones_own(saved: Path, tmp_path: Path) -> None:
    tex = report.build([saved], tmp_path / "a.tex", format="latex", schemes=["geonorm", "pre"]).read_text()
    assert tex.count(r"\begin{tabular}") == 4 and "far" not in tex
    rows = list(csv.DictReader(report.build([saved], tmp_path / "a.csv", format="csv").read_text().splitlines()))
    assert len(rows) == 4 * 2 * 4 and 0 < sum(row["speedup"] != "" for row in rows) < len(rows)
    read = SavedLadder.load(saved)
    for row in read.ladder.speedups:
        row.n = 99  # seeds that have a speed-up are others than those of a point
    rows = read.records()
    assert all(row["n"] < 99 for row in rows) and {row.get("speedup_n") for row in rows} == {None, 99}


def test_one_seed_and_one_point_are_stated(tmp_path: Path) -> None:
    folder = write(tmp_path / "alone", {"d4w64": 330_000}, [20], seeds=1)
    text = " ".join(" ".join(report.summarize(folder)).split())
    assert "is not resolved: one size and one budget are no curve" in text and "1 seed at the least" in text
    report.build([folder], tmp_path / "page.html")
    seeds = write(tmp_path / "seeds", {"d4w64": 330_000}, [10, 20, 40], seeds=1)
    assert "one seed gives no interval" in " ".join(" ".join(report.summarize(seeds)).split())
    for damage in ("{", "{}", '{"points": 3}'):
        (seeds / "results.json").write_text(damage)
        with pytest.raises(GeonormError, match=r"is damaged: .*; the same geonorm ladder writes it anew"):
            report.build([seeds], tmp_path / "page.html")


def test_sizes_are_ordered_and_compared_by_parameters(saved: Path, tmp_path: Path) -> None:
    """A small model may have the longer runs. Compute is the baseline's: twice the matrices cost nothing there."""
    folder = write(tmp_path / "sizes", {"d2w32": 50_000, "d4w64": 330_000}, [20])
    results = json.loads((folder / "results.json").read_text())
    for row in results["points"]:
        row["tokens"] = 2_000_000 if row["size"] == "d2w32" else 1_000_000
    ladder = SavedLadder(folder, Ladder(folder, results), chosen=["pre", "geonorm"])
    assert list(ladder.sizes) == ["d2w32", "d4w64"] and ladder.rows("points")[0].size == "d2w32"
    ladder = SavedLadder.load(saved)
    larger = "has up to 100 % more parameters than the baseline, by whose compute it is judged."
    assert not any(larger in limit for limit in ladder.limits())
    for row in ladder.ladder.points:
        row.own_parameters = row.parameters * (2 if row.scheme == "geonorm" else 1)
    assert f"geonorm {larger}" in ladder.limits()
    assert list_other_sizes([("a", 99, 100), ("a", 95, 100)], "b") == ["a has up to 5 % fewer parameters than b."]


def test_limits_of_a_ladder_are_those_of_runs_too(tmp_path: Path) -> None:
    """Seeds that scatter, steps that were rewound, runs that diverged, which are no seeds."""
    folder = write(tmp_path / "mine", {"d4w64": 330_000}, [10, 20, 40], seeds=5)
    results = json.loads((folder / "results.json").read_text())
    for run in results["runs"]:
        if run["scheme"] == "geonorm":
            run["val_loss"] += 0.02 * (-1) ** run["seed"]
    results |= judge(results["runs"])
    results["runs"][-1]["events"] = [{"step": 3, "action": "skip"}]
    ladder = SavedLadder(folder, Ladder(folder, results))
    limits = ladder.limits()
    assert any(limit.startswith("geonorm at 330k: its speed-ups scatter ") for limit in limits)
    (skipped,) = [limit for limit in limits if limit.endswith("by the pair: d4w64-13200000-far-4.")]
    assert skipped not in replace(ladder, chosen=["geonorm"]).limits()
    assert not any("scatter" in limit for limit in replace(ladder, chosen=["far"]).limits())
    for run in results["runs"]:
        if run["scheme"] == "far":
            run |= {"status": "diverged", "val_loss": None}
    results |= judge(results["runs"])
    limits = SavedLadder(folder, Ladder(folder, results)).limits()
    assert any("far at 330k parameters" in limit and "5 runs did not finish" in limit for limit in limits)
    assert not any("at the least" in limit for limit in limits)
