"""The report of a grid, from a folder that nothing was trained for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from geonorm import report
from geonorm.lab.runs.statistics import aggregate
from geonorm.report import grid

CELLS = ["optim.weight_decay=0", "optim.weight_decay=0.1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two schemes in two cells with three seeds; of geonorm, lower without decay, two seeds diverged there."""
    runs: list[dict[str, Any]] = []
    for cell in CELLS:
        for scheme, loss in (("pre", 3.3), ("geonorm", 3.2 if cell == CELLS[0] else 3.25)):
            for seed in range(3):
                bad = scheme == "geonorm" and cell == CELLS[0] and seed > 0
                run = {"scheme": scheme, "seed": seed, "lr": 5e-3, "phase": "final", "cell": [cell], "spikes": 0}
                run |= {"status": "diverged" if bad else "finished", "val_loss": None if bad else loss + seed / 1000}
                runs.append({**run, "run": f"{scheme}-{cell}-{seed}", "tokens": 1000, "parameters": 1000})
    rows = []
    for cell in CELLS:
        found = aggregate([run for run in runs if run["cell"] == [cell]])
        rows += [{**row, "cell": [cell], "curve": row["scheme"]} for row in found]
    for run in runs:
        path = tmp_path / "runs" / run["run"]
        path.mkdir(parents=True)
        (path / "config.yaml").touch()
        (path / "summary.json").write_text(json.dumps(run))
    (tmp_path / "results.json").write_text(json.dumps({"command": ["geonorm"], "runs": runs, "schemes": rows}))
    grid = ["optim.weight_decay=0,0.1"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"schemes": ["pre", "geonorm"], "grid": grid}))
    return tmp_path


def test_survivors_of_runs_that_diverged_are_not_the_best(folder: Path) -> None:
    """As a learning rate at which a run diverged is not."""
    found = grid.load(folder)
    said = grid.headline(found, "geonorm")
    assert "geonorm is lowest at optim.weight_decay=0.1: 3.2510" in said and "3 seeds" in said
    assert "of 2 cells, of which 1 with diverged runs comes last" in said
    assert found.rank() == {"pre": pytest.approx(3.301), "geonorm": pytest.approx(3.251)}
    (alone,) = [row for row in found.results["schemes"] if row["scheme"] == "geonorm" and row["cell"] == CELLS[:1]]
    found.results["schemes"][:] = [alone]
    assert "1 seed (2 diverged), of 1 cell" in grid.headline(found, "geonorm")


def test_terminal_and_page_have_the_limits_of_a_grid(folder: Path, tmp_path: Path) -> None:
    found = grid.load(folder)
    lines = grid.text_lines(found)
    page = report.build(folder, tmp_path / "page.html").read_text().partition("<body>")[2]
    assert "What limits this comparison:" in lines and 'class="limits"' in page and max(map(len, lines)) <= 100
    for said in (
        "geonorm at optim.weight_decay=0: 2 diverged (2 at its learning rate, which may flatter the mean).",
        "1 seed at the least: a claim needs 5.",
        "1 tokens per parameter: below 10 this is a ranking of early training.",
    ):
        assert f"- {said}" in " ".join(" ".join(lines).split()) and said in page


def test_an_interrupted_extension_is_said(folder: Path) -> None:
    """results.json is that of the command before."""
    assert not any("results.json" in line for line in grid.caveats(grid.load(folder)))
    (folder / "runs" / "new").mkdir()
    (folder / "runs" / "new" / "config.yaml").touch()
    assert (
        grid.caveats(grid.load(folder))[0] == "Not counted: 1 run that began or ended after results.json was written."
    )


def test_limits_of_a_grid_are_those_of_its_baselines_and_runs(folder: Path) -> None:
    """Shown or not: their rates, other numbers of parameters, losses that were null, steps that were skipped."""
    found = grid.load(folder).only(["geonorm"])
    assert not any("parameters than" in text or text.startswith("1 run with") for text in grid.caveats(found))
    for row in found.results["schemes"]:
        row["parameters"] = 1020 if row["scheme"] == "geonorm" else 1000
        row["lr_interior"] = row["scheme"] == "geonorm"
    found.results["runs"][0]["null_losses"] = 1
    found.results["runs"][-1]["events"] = [{"step": 3, "action": "skip"}]
    said = grid.caveats(found)
    assert "geonorm has up to 2 % more parameters than the baseline of its cell." in said
    assert "In 2 of 4 rows the best learning rate is an edge of those tried." in said
    assert any(text.startswith("1 run with a training loss that was not finite") for text in said)
    assert any(text.startswith("1 run with steps skipped") for text in said)
