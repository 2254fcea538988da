"""The parts of a report: reading, curves, words, axes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from geonorm.lab.runs.folder import RunFolder
from geonorm.lab.statistics.comparison import SEED_CAP, aggregate
from geonorm.report import series
from geonorm.report.checks import limits
from geonorm.report.runs import load, read_run
from geonorm.report.style import COLOURS, figures, looks, memory, rate, si, signed
from geonorm.report.tables import fitted_minimum, headline, markdown, text_lines, verdict
from geonorm.report.vega import Axis, Chart, figure

from ..rows import each

MakeRun = Callable[..., Path]


def rows(pre: list[float], other: list[float], scheme: str = "geonorm") -> list[dict[str, Any]]:
    losses = {"pre": pre, scheme: other}
    return aggregate(
        [
            {"scheme": name, "seed": seed, "lr": 1e-3, "status": "finished", "val_loss": loss}
            for name, values in losses.items()
            for seed, loss in enumerate(values)
        ]
    )


def test_a_half_written_last_line_is_normal_and_an_earlier_one_is_counted(make_run: MakeRun) -> None:
    path = make_run("pre", parts={"cut": True})
    complete = read_run(path)
    assert complete.damaged == 0 and len(complete.metrics) == 199
    (path / "metrics.jsonl").write_text('{"step": 1, "lo\n{"step": 2, "loss": 3.0}\n{"step": 3')
    broken = read_run(path)
    assert broken.damaged == 1 and [row["step"] for row in broken.metrics] == [2]


def test_a_run_without_a_summary_was_interrupted(make_run: MakeRun) -> None:
    run = read_run(make_run("geonorm", seed=4, status="interrupted"))
    assert run.summary["status"] == "interrupted"
    assert (run.scheme, run.summary["seed"], run.summary["lr"]) == ("geonorm", 4, 0.003)


@each("wrong", [{"val_loss": "3.5"}, {"lr": [0.003]}, {"seed": True}, {"scheme": 7}, {"status": 1}])
def test_a_summary_with_values_of_another_kind_is_damaged(make_run: MakeRun, wrong: dict[str, Any]) -> None:
    """It ended a report in a traceback."""
    path = make_run("geonorm", seed=4)
    file = path / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    found = read_run(path)
    assert found.damaged == 1 and found.summary["status"] == "interrupted" and found.summary["seed"] == 4
    assert RunFolder(path).summary() is None  # so that a comparison ends it again
    assert "Unreadable lines or files were skipped" in "".join(limits(load(path)))


def test_files_that_are_not_what_they_should_be_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("{unclosed: [")
    (path / "summary.json").write_text('{"status": "fin')
    (path / "metrics.jsonl").write_bytes(b'[1, 2]\n"text"\n\xff\xfe')
    run = read_run(path)
    assert run.config == {} and run.metrics == [] and run.scheme == "run"


def test_a_resumed_run_keeps_the_last_record_of_each_step(make_run: MakeRun) -> None:
    path = make_run("pre", parts={"trace": False})
    lines = [
        {"step": 1, "seconds": 1},
        {"step": 2, "seconds": 2},
        {"step": 2, "seconds": 0.5},
        {"step": 3, "seconds": 1},
    ]
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = read_run(path)
    assert [row["seconds"] for row in run.metrics] == [1, 0.5, 1]
    assert series.clock(run) == {1: 1.0, 2: 1.5, 3: 2.0}


def test_order_and_baseline_come_from_the_results(comparison_dir: Path) -> None:
    comparison = load(comparison_dir)
    assert comparison.names == ["pre", "geonorm", "post", "peri"] and comparison.baseline == "pre"
    assert comparison.depth == 4 and comparison.data == "books-small"
    assert [len(comparison.counted(scheme)) for scheme in comparison.names] == [5, 5, 5, 5]
    assert len(comparison.of("peri")) == 10


def test_pre_leads_where_nothing_else_is_on_record(make_run: MakeRun, tmp_path: Path) -> None:
    for scheme in ("geonorm", "pre", "deepnorm"):
        make_run(scheme, parts={"metrics": False, "trace": False})
    assert load([tmp_path]).names == ["pre", "deepnorm", "geonorm"]
    both = load([tmp_path / "runs" / "000", tmp_path / "runs" / "001", tmp_path])
    assert len(both.runs) == 3 and both.source == tmp_path.name


def test_runs_given_one_by_one_keep_the_baseline_of_their_comparison(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All differences would have the other sign."""
    for scheme in ("geonorm", "pre"):
        make_run(scheme, parts={"metrics": False, "trace": False})
    (tmp_path / "config.yaml").write_text("schemes: [geonorm, pre]\n")
    rows = [{"scheme": scheme, "baseline": "geonorm"} for scheme in ("geonorm", "pre")]
    (tmp_path / "results.json").write_text(json.dumps({"schemes": rows, "command": ["geonorm", "compare"]}))
    found = load(sorted((tmp_path / "runs").iterdir()))
    assert found.names == ["geonorm", "pre"] and found.baseline == "geonorm" and found.command is None
    monkeypatch.chdir(tmp_path / "runs")
    assert load(["001", "000"]).baseline == load(".").baseline == "geonorm"
    (tmp_path / "config.yaml").unlink()  # a run's folder may lie in a folder runs that is no comparison's
    (tmp_path / "results.json").write_text("[]")
    assert load(["001", "000"]).baseline == "pre"


def test_curves_are_means_over_the_steps_all_seeds_share(make_run: MakeRun) -> None:
    paths = [make_run("pre", seed) for seed in range(2)]
    for path, values in zip(paths, ([1.0, 2.0], [3.0, 4.0, 9.0]), strict=True):
        lines = [{"step": s, "tokens": 10 * s, "loss": v, "seconds": s} for s, v in enumerate(values, 1)]
        (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    curve = series.curve([read_run(path) for path in paths], "loss")
    assert curve is not None
    np.testing.assert_array_equal(curve, [[10, 20], [2, 3], [1, 2], [3, 4]])


def test_gap_pairs_the_seeds(make_run: MakeRun) -> None:
    values = {("pre", 0): 3.0, ("pre", 1): 5.0, ("geonorm", 0): 2.5, ("geonorm", 1): 4.4}
    runs = {}
    for (scheme, seed), loss in values.items():
        path = make_run(scheme, seed)
        rows = [{"step": step, "tokens": 10 * step, "val_loss": loss - step / 10} for step in (1, 2)]
        (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
        runs[scheme, seed] = read_run(path)
    gap = series.paired_gap([runs["geonorm", 1], runs["geonorm", 0]], [runs["pre", 0], runs["pre", 1]])
    assert gap is not None and gap.mean == pytest.approx([-0.55] * 2) and list(gap.x) == [10, 20]
    assert gap.high[0] - gap.mean[0] == pytest.approx(12.7062 * 0.05, rel=1e-3)  # t(0.975, 1) * std / sqrt(2)


def test_profiles_take_the_last_evaluation_and_leave_nulls_out(make_run: MakeRun) -> None:
    run = read_run(make_run("pre"))
    radius = series.profile([run], "radius")
    places = [site[:2] for site in series.all_sites([radius])]
    assert places == [(layer, k) for layer in range(4) for k in ("attn", "mlp")]
    assert radius[series.SiteKey(0, "attn")][0] == pytest.approx(11.3)
    last = [row["radius"] for row in run.trace if (row["step"], row["layer"], row["kind"]) == (400, 3, "mlp")]
    assert radius[series.SiteKey(3, "mlp")] == (last[0],) * 3
    assert series.profile([run], "clamped") == {}


def test_thinning_keeps_the_mean_and_the_number_of_points_asked_for() -> None:
    values = np.arange(1000.0)
    thin = series.Curve(values, values, values, values).thinned(10)
    assert len(thin.x) == 10 and thin.mean.mean() == pytest.approx(values.mean())


def test_a_wide_range_asks_for_a_logarithm() -> None:
    assert (
        series.spans_decades([1.0, 31.0])
        and not series.spans_decades([1.0, 29.0])
        and not series.spans_decades([0.0, 1e3])
    )
    assert not series.spans_decades([])


def test_sentences_say_what_was_and_was_not_found() -> None:
    assert headline(rows([3.0, 3.1, 3.2], [2.98, 3.079, 3.178])[1]) == (
        "geonorm is 0.0210 (0.0185 to 0.0235) nats below pre at 3 seeds"
    )
    unclear = headline(rows([3.0, 3.1, 3.2], [2.99, 3.11, 3.17])[1])
    assert unclear.startswith("geonorm against pre is not resolved at 3 seeds: the interval of −0.010 (")
    assert "seeds would resolve a difference of this size" in unclear and "holds 0" in unclear
    assert "no interval" in headline(rows([3.0], [2.9])[1])
    tiny = rows([3.0, 3.1], [3.1, 3.0001])[1]
    assert tiny["seeds_needed"] == SEED_CAP + 1 and "more than 1000 seeds" in headline(tiny)


@pytest.mark.parametrize("width", [100, 80])
def test_terminal_lines_are_no_wider_than_the_terminal(width: int) -> None:
    found = rows([3.0, 3.1, 3.2], [2.99, 3.11, 3.17], "geonorm(decay=sqrt, max_angle=pi/8, " + "x" * 90)
    lines = text_lines(found, ["only one learning rate was tried, and more words than a narrow terminal has"], width)
    assert max(map(len, lines)) <= width
    assert "geonorm(decay" in lines[3] and any("not resolved" in line for line in lines)
    assert ("p, Holm" in lines[0]) is (width == 100) and "difference (95 %)" in lines[0]


def test_markdown_cells_cannot_break_the_table() -> None:
    table = markdown(rows([3.0, 3.1], [3.0, 3.2], "a|b<script>")).splitlines()
    columns = table[0].count("|")
    assert all(line.replace("\\|", "").count("|") == columns for line in table[:4])
    assert "a\\|b&lt;script>" in table[3] and "bits/byte" not in table[0]
    assert all(line.startswith("- ") for line in table[5:])


def test_looks_are_distinct_and_stay_with_their_scheme() -> None:
    names = ["pre", "geonorm", *(f"x{i}" for i in range(20))]
    found = looks(names)
    assert found["pre"].light == COLOURS["ink"][0] and [s for s in names if found[s].light == COLOURS["ink"][0]] == [
        "pre"
    ]
    assert len({(look.light, look.dash) for look in found.values()}) == len(names)
    assert len({look.light for look in list(found.values())[:8]}) == 8
    assert looks(["geonorm", "pre"])["geonorm"].light == found["geonorm"].light


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.booleans())
def test_ticks_are_few_and_inside(low: float, span: float, log: bool) -> None:
    axis = Axis(abs(low) + 1e-3, abs(low) + 1e-3 + span, True) if log else Axis(low, low + span)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12 and ticks == sorted(set(ticks))
    slack = 1e-9 * (abs(axis.low) + abs(axis.high))
    assert all(axis.low - slack <= tick <= axis.high + slack for tick in ticks)


def test_lines_break_where_a_value_is_missing_and_marks_outside_are_left_out() -> None:
    chart = Chart("test", Axis(0, 4), Axis(0, 1), looks(["pre"]))
    chart.line("pre", enumerate([0.1, 0.2, math.nan, 0.4, 0.5]))
    chart.mark("pre", 1, 50.0, "far above")
    chart.mark("pre", 1, math.nan, "nowhere")
    assert len({row["part"] for row in chart.rows["line"]}) == 2 and list(chart.rows) == ["line"]


@each(
    "text, expected",
    [
        (si(1_050_000), "1.05M"),
        (si(999.9), "1k"),
        (si(None), "–"),
        (si(12), "12"),
        (memory(3 * 2**30), "3 GiB"),
        (memory(None), "–"),
        (rate(3e-4), "3e-4"),
        (rate(None), "–"),
        (rate(0.00125), "1.25e-3"),
        (signed(-0.0210), "−0.021"),
        (signed(-1e-9), "0.000"),
        (signed(0.5), "+0.500"),
        (figures(math.nan), "–"),
        (figures(0.0), "0"),
        (figures(1e-7), "1e−07"),
        (figures(3.14159), "3.142"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected


def test_the_inverse_of_a_column_is_nan_where_there_is_none() -> None:
    measured = series.read_measure
    assert measured({"speed": -4.0}, "1/speed") == -0.25 and measured({"speed": 3}, "speed") == 3
    assert all(math.isnan(measured(record, "1/speed")) for record in ({"speed": None}, {}, {"speed": 0.0}))


def test_a_curve_stays_on_the_text_that_every_evaluation_sees(make_run: MakeRun) -> None:
    folder = make_run("pre", parts={})
    rows = [{"step": 1, "tokens": 10, "val_loss": 3.0}, {"step": 2, "tokens": 20, "val_loss": 2.0}]
    rows[1] |= {"val_loss_part": 2.5}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = series.curve([read_run(folder)], "val_loss")
    assert found is not None and list(found.mean) == [3.0, 2.5]


def test_no_table_makes_a_cost_of_speeds(comparison_dir: Path) -> None:
    """Runs that share a machine slow one another, so their tokens per second compare nothing."""
    rows = load(comparison_dir).rows
    assert all(row["tokens_per_second"] for row in rows)
    text = markdown(rows) + "\n".join(text_lines(rows))
    assert "tokens/s" not in text and "cost" not in text and "×" not in text


def test_words_for_p_holm_moderation_and_fits() -> None:
    alone = rows([3.0, 3.1, 3.2], [2.98, 3.079, 3.178])[1]
    lost = alone | {"p_holm": 0.2, "family_size": 12}
    assert verdict(alone) == "resolved" and verdict(lost) == "resolved, not after Holm"
    assert "not among all 12 (Holm: p = 0.2)" in headline(lost) and "Holm" not in headline(alone)
    same = rows([3.0, 3.0002, 3.0001, 3.0003], [3.0001, 3.0, 3.0003, 3.0002])[1]
    assert verdict(same) == "equal within 0.01" and "equal within 0.01" in headline(same)
    fit = {"loss": 3.1, "loss_error": 0.004, "lr": 0.0061, "problem": None}
    assert fitted_minimum(alone | {"fit": fit}) == "3.1000 ± 0.0040 at 0.0061" and fitted_minimum(alone) == "–"
    outside = fit | {"loss": None, "problem": "the minimum lies above the highest, 0.012"}
    assert fitted_minimum(alone | {"fit": outside}) == "the minimum lies above the highest, 0.012"


def test_a_series_looks_the_same_in_all_charts_of_a_figure_and_like_no_other() -> None:
    """Vega has one scale of colours for all charts, that of the first: a series that is not in it took another's."""
    charts = []
    for names in (["pre", "a"], ["b", "a"]):
        chart = Chart("", Axis(0, 1), Axis(0, 1), looks(names))
        for name in names:
            chart.line(name, [(0.0, 0.0), (1.0, 1.0)])
        charts.append(chart)
    scales = [part["layer"][0]["encoding"]["color"]["scale"] for part in figure(charts)["concat"]]
    assert scales[0] == scales[1] and scales[0]["domain"] == ["pre", "a", "b"]
    assert len(set(scales[0]["range"])) == 3 and looks(["pre", "a"])["a"].light == looks(["b", "a"])["b"].light


def test_an_outline_alone_is_not_in_the_legend() -> None:
    """The ring around a sphere is no series."""
    chart = Chart("A sphere", Axis(0, 1), Axis(0, 1), looks(["ring", "pre"]))
    chart.outline("ring", [(0.0, 0.0), (1.0, 1.0)], "ring")
    chart.mark("pre", 0.5, 0.5, "pre")
    assert chart.shown == ["pre"]
