"""What the charts of a comparison show, and what their notes say is not shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from geonorm.report import comparison_charts as charts
from geonorm.report.runs import load
from geonorm.report.vega import BETWEEN, Chart

MakeRun = Callable[..., Path]
BARE = {"metrics": False, "trace": False}


def labels(chart: Chart, *kinds: str) -> list[str]:
    return [row["d"].partition(BETWEEN)[2] for kind in kinds for row in chart.rows.get(kind, ())]


def test_losses_of_tuning_and_final_runs_are_not_on_one_axis(make_run: MakeRun, tmp_path: Path) -> None:
    """Tuning runs may be shorter, so that a scheme which its recipe gave a rate would lie far below the others."""
    for lr, loss in ((1e-3, 4.3), (3e-3, 4.2), (1e-2, 4.4)):
        make_run("pre", 9, lr=lr, phase="tune", val_loss=loss, parts=BARE)
    for seed in range(3):
        make_run("pre", seed, lr=3e-3, phase="final", val_loss=3.5, parts=BARE)
        make_run("ngpt", seed, lr=15e-3, phase="final", val_loss=3.6, parts=BARE)
    (chart,) = charts.learning_rates(load(tmp_path))
    assert chart.y and chart.y.title == "validation loss of the tuning runs (nats per token)"
    assert labels(chart, "mark", "best") == [
        "pre · lr 1e-3: 4.3000, 1 run", "pre · lr 1e-2: 4.4000, 1 run", "pre · lr 3e-3: 4.2000, 1 run",
    ]  # fmt: skip
    assert "Schemes that other runs decided on are not here: ngpt." in chart.note


def test_a_rate_added_after_the_tuning_is_judged_by_final_runs(make_run: MakeRun, tmp_path: Path) -> None:
    for lr in (3e-3, 6e-3):
        make_run("pre", 9, lr=lr, phase="tune", val_loss=4.2, parts=BARE)
    for seed in range(3):
        make_run("pre", seed, lr=6e-3, phase="final", val_loss=3.5 + seed / 100, parts=BARE)
        make_run("pre", seed, lr=12e-3, phase="final", val_loss=3.4 + seed / 100, parts=BARE)
    (chart,) = charts.learning_rates(load(tmp_path))
    assert chart.y and chart.y.title.startswith("final validation loss")
    assert labels(chart, "mark", "best") == ["pre · lr 6e-3: 3.5100, 3 runs", "pre · lr 1.2e-2: 3.4100, 3 runs"]


def test_a_final_run_that_diverged_is_a_cross(make_run: MakeRun, tmp_path: Path) -> None:
    for lr in (1e-3, 3e-3, 1e-2):
        make_run("pre", 9, lr=lr, phase="tune", val_loss=4.2 + abs(lr - 3e-3), parts=BARE)
        make_run("pre", 0, lr=lr, phase="final", parts=BARE)
    make_run("pre", 1, lr=3e-3, phase="final", status="diverged", val_loss=None, parts=BARE)
    (chart,) = charts.learning_rates(load(tmp_path))
    assert labels(chart, "fail") == ["pre · lr 3e-3: 1 of 3 runs did not finish"]


def test_what_leaves_the_frame_of_the_rates_is_said(make_run: MakeRun, tmp_path: Path) -> None:
    for scheme, best in {"pre": 3.5, "geonorm": 3.55, "post": 6.9}.items():
        for lr, more in ((1e-3, 0.1), (3e-3, 0.0), (1e-2, 0.2)):
            make_run(scheme, lr=lr, val_loss=best + more, parts=BARE)
    (chart,) = charts.learning_rates(load(tmp_path))
    assert len(labels(chart, "best")) == 2
    assert chart.note.endswith("Higher losses leave the frame, with the rings of post (6.9000).")


def test_a_difference_whose_start_is_cut_says_so(make_run: MakeRun, tmp_path: Path) -> None:
    for start in (0.0, 9.0):
        for scheme in ("pre", "geonorm"):
            rows = [{"step": step, "tokens": step, "val_loss": 3.0 + step / 1000} for step in range(1, 21)]
            rows[0]["val_loss"] += start * (scheme == "geonorm")
            path = make_run(scheme, parts=BARE) / "metrics.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (chart,) = charts.gaps(load(sorted((tmp_path / "runs").iterdir())[-2:]))
        assert ("The start leaves the frame." in chart.note) is (start > 0)


def test_crosses_are_spikes_of_the_runs_that_the_table_counts(make_run: MakeRun, tmp_path: Path) -> None:
    """Seed 1 has a spike of the gradient norm."""
    make_run("pre", 1, phase="tune", parts={"trace": False})
    make_run("pre", 0, phase="final", parts={"trace": False})
    (chart,) = charts.gradient_course(load(tmp_path))
    assert not labels(chart, "fail")
    make_run("pre", 1, phase="final", parts={"trace": False})
    (chart,) = charts.gradient_course(load(tmp_path))
    assert len(labels(chart, "fail")) == 1
