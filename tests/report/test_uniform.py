"""The course of |cos| to the uniform vector: from norms.jsonl to the page and the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geonorm.report import build, series, write_figures
from geonorm.report.comparison_charts import towards_uniform
from geonorm.report.runs import load, read_run

MakeRun = Callable[..., Path]
NORMS = [(0, "attn", "input"), (0, "mlp", "input"), (1, "attn", "input"), (1, "exit", "norm")]


def with_norms(path: Path, cosines: Callable[[int, int], float], steps: tuple[int, ...] = (100, 200)) -> Path:
    """Rows as training writes them, in an order that is not that of the stream."""
    rows: list[dict[str, Any]] = [
        {"step": step, "scheme": "pre", "layer": layer, "kind": kind, "t": layer + 1, "norm": norm,
         "cos_ones_before": cosines(step, place), "cos_null_before": 0.07, "cos_null_low_before": 0.05,
         "cos_null_high_before": 0.09}
        for step in steps
        for place, (layer, kind, norm) in reversed(list(enumerate(NORMS)))
    ]  # fmt: skip
    (path / "norms.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 2')
    return path


def test_courses_are_those_of_the_file(make_run: MakeRun) -> None:
    runs = [
        read_run(with_norms(make_run("pre", seed), lambda step, place, seed=seed: seed + place + step / 1000))
        for seed in (0, 1)
    ]
    assert runs[0].damaged == 0 and len(runs[0].norms) == 8
    courses = series.norm_courses(runs, "cos_ones_before")
    assert [str(place) for place in courses] == ["0 attn input", "0 mlp input", "1 attn input", "exit norm"]
    for place, curve in enumerate(courses.values()):
        assert curve.mean == pytest.approx([0.6 + place, 0.7 + place])
        assert curve.low == pytest.approx([0.1 + place, 0.2 + place]) and curve.x[1] == 2 * curve.x[0]
    together = series.over_norms(courses)
    assert together is not None and together.mean == pytest.approx([2.1, 2.2])
    assert together.low == pytest.approx([0.6, 0.7]) and together.high == pytest.approx([3.6, 3.7])
    assert series.over_norms({}) is None and series.norm_courses(runs, "nothing") == {}


def test_norms_of_a_kind_that_is_not_known_come_last(make_run: MakeRun) -> None:
    """A newer version, or a hand, has written them."""
    path = with_norms(make_run("pre"), lambda step, place: 0.1)
    (path / "norms.jsonl").write_text((path / "norms.jsonl").read_text().replace('"attn"', '"conv"'))
    places = [str(place) for place in series.norm_courses([read_run(path)], "cos_ones_before")]
    assert places == ["0 mlp input", "0 conv input", "1 conv input", "exit norm"]


def test_page_and_figure_show_it_where_norms_were_measured(make_run: MakeRun, tmp_path: Path) -> None:
    plain = make_run("post")
    assert towards_uniform(load(plain)) == []
    path = with_norms(make_run("pre"), lambda step, place: 0.1 + 0.01 * place)
    mean, each = towards_uniform(load(path.parent))
    assert "random directions, 0.07 to 0.07 by scheme" in mean.note and len(mean.rows["mark"]) == 2
    assert [look for look in each.looks if look != "random"] == [
        "0 attn input",
        "0 mlp input",
        "1 attn input",
        "exit norm",
    ]
    page = build(path.parent, tmp_path / "report.html").read_text()
    assert "Towards the uniform vector" in page
    names = {file.stem for file in write_figures(path.parent, tmp_path / "figures")}
    assert "uniform" in names and "uniform" not in {file.stem for file in write_figures(plain, tmp_path / "plain")}


def test_one_evaluation_is_no_course(make_run: MakeRun, tmp_path: Path) -> None:
    path = with_norms(make_run("pre"), lambda step, place: 0.1, steps=(200,))
    assert towards_uniform(load(path)) == []
    assert "uniform" not in {file.stem for file in write_figures(path, tmp_path)}
