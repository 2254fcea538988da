"""A comparison: reading of runs, curves, sentences, and what limits it."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from geonorm.lab.load import read_run
from geonorm.lab.runs.folder import read_summary
from geonorm.lab.runs.records import ComparisonRow, Summary
from geonorm.lab.statistics.comparison import SEED_CAP, aggregate
from geonorm.report import comparison_charts as charts, curves
from geonorm.report.charts import BETWEEN, Chart
from geonorm.report.comparison import headline, load_comparison
from geonorm.report.tables import pool_table, verdict

MakeRun = Callable[..., Path]
BARE = {"metrics": False, "trace": False}
NOISE = (-0.01, -0.005, 0.0, 0.005, 0.01)


def rows(pre: list[float], other: list[float], scheme: str = "geonorm") -> list[ComparisonRow]:
    losses = [(name, seed, loss) for name, each in (("pre", pre), (scheme, other)) for seed, loss in enumerate(each)]
    about = {"lr": 1e-3, "status": "finished"}
    return aggregate([Summary.read(about | {"scheme": n, "seed": s, "val_loss": loss}) for n, s, loss in losses])


def labels(chart: Chart, *kinds: str) -> list[str]:
    return [row["d"].partition(BETWEEN)[2] for kind in kinds for row in chart.rows.get(kind, ())]


def test_runs_are_read_as_they_are(make_run: MakeRun, tmp_path: Path) -> None:
    """A last line that is cut is normal, an earlier one is counted; of a repeated step the last row stays."""
    path = make_run("pre", parts={"cut": True})
    run = read_run(path)
    assert run.damaged == 0 and len(run.metrics) == 199
    (path / "metrics.jsonl").write_text('{"step": 1, "lo\n{"step": 2, "loss": 3.0}\n{"step": 2, "loss": 4.0}\n{"st')
    run = read_run(path)
    assert run.damaged == 1 and [(row.step, row.loss) for row in run.metrics] == [(2, 4.0)]
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("{unclosed: [")
    (path / "summary.json").write_text('{"status": "fin')
    (path / "metrics.jsonl").write_bytes(b'[1, 2]\n"text"\n\xff\xfe')
    run = read_run(path)
    assert run.config == {} and run.metrics == [] and run.scheme == "run"


def test_a_summary_with_values_of_another_kind_is_damaged(make_run: MakeRun) -> None:
    path = make_run("geonorm", seed=4)
    file = path / "summary.json"
    whole = json.loads(file.read_text())
    for wrong in ({"val_loss": "3.5"}, {"lr": [0.003]}, {"seed": True}, {"scheme": 7}, {"status": 1}):
        file.write_text(json.dumps(whole | wrong))
        run = read_run(path)
        assert run.damaged == 1 and run.summary.status == "interrupted" and run.summary.seed == 4
        assert read_summary(path) is None  # so that a comparison ends it again
    assert "Unreadable or missing lines" in "".join(load_comparison([path]).limits())


def test_runs_named_one_by_one_have_the_baseline_of_their_comparison(make_run: MakeRun, tmp_path: Path) -> None:
    """All differences would have the other sign."""
    for scheme in ("geonorm", "pre"):
        make_run(scheme, parts=BARE)
    (tmp_path / "config.yaml").write_text("schemes: [geonorm, pre]\n")
    (tmp_path / "results.json").write_text(json.dumps({"order": ["geonorm", "pre"], "command": ["geonorm", "compare"]}))
    study = load_comparison(sorted((tmp_path / "runs").iterdir()))
    assert study.names == ["geonorm", "pre"] and study.baseline == "geonorm" and study.command is None
    (tmp_path / "config.yaml").unlink()  # a run's folder may lie in a folder runs that is no comparison's
    (tmp_path / "results.json").write_text("[]")
    assert load_comparison(sorted((tmp_path / "runs").iterdir())).baseline == "pre"


def test_curves_are_means_over_the_steps_all_seeds_share_and_gaps_pair_the_seeds(make_run: MakeRun) -> None:
    losses = {("pre", 0): 3.0, ("pre", 1): 5.0, ("geonorm", 0): 2.5, ("geonorm", 1): 4.4}
    runs = {}
    for (scheme, seed), loss in losses.items():
        path = make_run(scheme, seed)
        metrics = [{"step": step, "tokens": 10 * step, "val_loss": loss - step / 10} for step in (1, 2, 3)]
        metrics[1] |= {"val_loss": 0.0, "val_loss_part": loss - 0.2}  # the text that every evaluation reads
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics[: 2 + seed]))
        runs[scheme, seed] = read_run(path)
    curve = curves.metric_curve([runs["pre", 0], runs["pre", 1]], "val_loss")
    assert curve is not None
    np.testing.assert_allclose(curve, [[10, 20], [3.9, 3.8], [2.9, 2.8], [4.9, 4.8]])
    gap = curves.paired_gap([runs["geonorm", 1], runs["geonorm", 0]], [runs["pre", 0], runs["pre", 1]])
    assert gap is not None and gap.mean == pytest.approx([-0.55] * 2) and list(gap.x) == [10, 20]
    assert gap.high[0] - gap.mean[0] == pytest.approx(12.7062 * 0.05, rel=1e-3)  # t(0.975, 1) * std / sqrt(2)
    thin = curves.Curve(*[np.arange(1000.0)] * 4).thinned(10)
    assert len(thin.x) == 10 and thin.mean.mean() == pytest.approx(499.5)


def test_profiles_take_the_last_evaluation_and_leave_nulls_out(make_run: MakeRun) -> None:
    run = read_run(make_run("pre"))
    radius = curves.profile([run], "radius")
    assert [place[:2] for place in radius] == [(layer, k) for layer in range(4) for k in ("attn", "mlp")]
    assert radius[0].value == pytest.approx(11.3)
    last = [row.radius for row in run.trace if (row.step, row.layer, row.kind) == (400, 3, "mlp")]
    assert radius[-1][2:] == (last[0],) * 3 and curves.profile([run], "clamped") == []


def test_sentences_and_cells() -> None:
    alone = rows([3.0, 3.1, 3.2], [2.98, 3.079, 3.178])[1]
    assert headline(alone) == "geonorm is 0.0210 (0.0185 to 0.0235) nats below pre at 3 seeds"
    unclear = headline(rows([3.0, 3.1, 3.2], [2.99, 3.11, 3.17])[1])
    assert unclear.startswith("geonorm against pre is not resolved at 3 seeds: the interval of −0.010 (")
    assert "seeds would resolve a difference of this size" in unclear and "holds 0" in unclear
    assert "no interval" in headline(rows([3.0], [2.9])[1])
    tiny = rows([3.0, 3.1], [3.1, 3.0001])[1]
    assert tiny.seeds_needed == SEED_CAP + 1 and "more than 1000 seeds" in headline(tiny)
    lost = replace(alone, p_holm=0.2, family_size=12)
    assert verdict(alone) == "resolved" and verdict(lost) == "resolved, not after Holm"
    assert "not among all 12 (Holm: p = 0.2)" in headline(lost) and "Holm" not in headline(alone)
    same = rows([3.0, 3.0002, 3.0001, 3.0003], [3.0001, 3.0, 3.0003, 3.0002])[1]
    assert verdict(same) == "equal within 0.01" and "equal within 0.01" in headline(same)


def test_rates_tuned_on_another_length_are_a_limit(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in range(5):
        make_run("pre", seed, phase="final", parts=BARE)
    tuned = [make_run("pre", 9, lr=lr, phase="tune", tokens=409_600, parts=BARE) for lr in (1e-3, 3e-3, 1e-2)]
    assert any("tuned on 410k tokens, and 819k" in limit for limit in load_comparison([tmp_path]).limits())
    for path in tuned:
        file = path / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"tokens": 1_638_400}))
    study = load_comparison([tmp_path])
    assert any("tuned on 1.64M tokens" in limit and "too low" in limit for limit in study.limits())


def test_what_was_left_out_or_passed_over_is_a_limit(make_run: MakeRun, tmp_path: Path) -> None:
    """Shorter runs, other parameter counts within a scheme, rewound steps; early divergence says nothing of length."""
    for seed in range(5):
        folder = make_run("pre", seed, tokens=30_000_000)
        make_run("post", seed, tokens=40_960, status="diverged", val_loss=None, parts=BARE)
        summary = json.loads((folder / "summary.json").read_text())
        if seed == 1:
            summary |= {"parameters": 2 * summary["parameters"]}
        if seed == 2:
            summary["events"] = [{"step": 3, "action": "skip"}]
        (folder / "summary.json").write_text(json.dumps(summary))
    make_run("pre", 7, tokens=409_600, parts=BARE)
    limits = load_comparison([tmp_path]).limits()
    assert "pre: 1 shorter run left out, for lengths do not mix in a mean." in limits
    for start in ("The numbers of parameters differ by 100 %", "pre · seed 2 · lr 0.003: 1 step rewound"):
        assert any(limit.startswith(start) for limit in limits), start
    assert not any("tokens per parameter" in limit for limit in limits)
    longer = [make_run("peri", seed, tokens=60_000_000, matmul_parameters=797_000, parts=BARE) for seed in range(5)]
    limits = load_comparison([tmp_path, *longer]).limits()
    assert "The budgets differ, from 30M to 60M tokens: these are not one comparison." in limits
    assert any(limit.startswith("The numbers of matmul parameters differ by 1.27 %") for limit in limits)


def test_runs_that_were_not_trained_alike_are_a_limit(make_run: MakeRun, tmp_path: Path) -> None:
    for scheme, optimizer, decay in (("pre", "adamw", 0.1), ("pre", "muon", 0.1), ("post", "adamw", 0.0)):
        folder = make_run(scheme, int(optimizer == "muon"), parts=BARE)
        config = {"optim": {"name": optimizer, "weight_decay": decay}, "log": {"to": [optimizer]}}
        (folder / "config.yaml").write_text(json.dumps({**config, "scheme": scheme}))
    limits = [limit for limit in load_comparison([tmp_path]).limits() if "differ in" in limit]
    assert limits == ["pre: its mean is over runs that differ in optim.name (adamw and muon): report them separately."]
    for file in tmp_path.rglob("config.yaml"):
        other = json.loads((file.parent / "summary.json").read_text())["scheme"] == "post"
        file.write_text(json.dumps({"optim": {"weight_decay": float(other)}} | ({} if other else {"new": 1})))
    limits = [limit for limit in load_comparison([tmp_path]).limits() if "differ in" in limit]
    assert limits == ["The schemes were not trained alike: they differ in optim.weight_decay (0 and 1)."]


def test_some_schemes_have_the_statistics_of_the_whole_and_the_limits_of_their_baseline(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Leaving schemes out makes no difference more significant; whether one scatters is a question to all."""
    for lr, loss in ((3e-3, 3.0), (1e-3, 3.2)):
        make_run("pre", 0, lr=lr, val_loss=loss, parameters=2_000_000, parts=BARE)
    for scheme, width in (("peri", 1), ("post", 5), ("geonorm", 1)):
        for seed, off in enumerate(NOISE):
            make_run(scheme, seed, val_loss=3 + width * off, parts=BARE)
    whole = load_comparison([tmp_path])
    part = replace(whole, chosen=["post", "geonorm"])
    assert part.rows == [whole.row("post"), whole.row("geonorm")] and part.baseline == "pre"
    assert {run.scheme for run in part.runs} == {"pre", "post", "geonorm"}
    limits = replace(whole, chosen=["post"]).limits()
    for start in ("1 seed: a claim", "pre: the best learning rate, 3e-3, is an edge", "The numbers of parameters",
                  "post: only 1 of 5 seeds", "post: its seeds scatter 5 times as far as those of"):  # fmt: skip
        assert any(limit.startswith(start) for limit in limits), start
    assert not any("geonorm" in limit or "peri" in limit for limit in limits)


def test_losses_of_tuning_and_final_runs_are_not_on_one_axis(make_run: MakeRun, tmp_path: Path) -> None:
    """Tuning runs may be shorter, so that a scheme which its recipe gave a rate would lie far below the others."""
    for lr, loss in ((1e-3, 4.3), (3e-3, 4.2), (1e-2, 4.4)):
        make_run("pre", 9, lr=lr, phase="tune", val_loss=loss, parts=BARE)
    for seed in range(3):
        make_run("pre", seed, lr=3e-3, phase="final", val_loss=3.5, parts=BARE)
        make_run("ngpt", seed, lr=15e-3, phase="final", val_loss=3.6, parts=BARE)
    make_run("pre", 3, lr=3e-3, phase="final", status="diverged", val_loss=None, parts=BARE)
    (chart,) = charts.learning_rates(load_comparison([tmp_path]))
    assert chart.note.startswith("The validation loss of the tuning runs.")
    assert labels(chart, "mark", "best") == [
        "pre · lr 1e-3: 4.3000, 1 run", "pre · lr 1e-2: 4.4000, 1 run", "pre · lr 3e-3: 4.2000, 1 run",
    ]  # fmt: skip
    assert labels(chart, "fail") == ["pre · lr 3e-3: 1 of 5 runs did not finish"]
    for seed in range(3):  # a rate added after the tuning is judged by final runs
        make_run("pre", seed, lr=12e-3, phase="final", val_loss=3.4 + seed / 100, parts=BARE)
    (chart,) = charts.learning_rates(load_comparison([tmp_path]))
    assert chart.note.startswith("The final validation loss.")
    assert labels(chart, "mark", "best")[:2] == ["pre · lr 3e-3: 3.5000, 3 runs", "pre · lr 1.2e-2: 3.4100, 3 runs"]


def test_several_settings_are_pooled(make_run: MakeRun) -> None:
    """Planted: −0.02 at one width, −0.04 at the other, each with a scatter of 0.001 over seeds."""
    folders = []
    for width, gap in ((64, -0.02), (128, -0.04)):
        for scheme, seed in product(("pre", "geonorm"), range(3)):
            loss = 3.0 + 0.1 * seed + (scheme == "geonorm") * (gap + 0.001 * (seed - 1))
            folders.append(make_run(scheme, seed, val_loss=loss, parts=BARE))
            config = folders[-1] / "config.yaml"
            config.write_text(config.read_text().replace("width: 128", f"width: {width}"))
    study = load_comparison(folders)
    ((scheme, settings, pooled, _, verdict_),) = study.tables()["Over settings"][1]
    assert (scheme, settings, pooled[:6], verdict_) == ("geonorm", "2", "−0.030", "not resolved")
    alike = [replace(row, difference=-0.03) for rows in study.settings.values() for row in rows]
    assert pool_table(["geonorm"], alike, "setting")[1][0][2] == "−0.030 (−0.035 to −0.025)"
    (chart,) = charts.by_setting(study, study.settings)
    assert set(chart.looks) == {"geonorm: model.width 128", "geonorm: model.width 64"}
    assert "Over settings" in [section.title for section in study.sections({})]
    assert "Over settings" not in load_comparison(folders[:6]).tables()


def test_the_first_order_of_an_angle_is_drawn_where_it_is_valid(make_run: MakeRun, tmp_path: Path) -> None:
    """Beside a measured 0.9 it may predict 2.3."""
    make_run("pre")
    chart = load_comparison([tmp_path]).charts()["geometry"][1]
    dotted, line = ({row["x"]: row["y"] for row in chart.rows[kind]} for kind in ("dotted", "line"))
    assert set(dotted) < set(line) and 0 < max(dotted.values()) <= charts.SECOND < max(line.values())


def test_a_course_has_views_with_flops_and_single_seeds(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in range(2):
        make_run("pre", seed)
        make_run("post", seed, matmul_parameters=2_000_000)
    (chart, _) = load_comparison([tmp_path]).charts()["loss_curves"]
    views = {view.view: view for view in (chart, *chart.views)}
    assert list(views) == ["tokens", "tokens, log", "last part", "FLOPs", "single seeds"]
    assert len({view.name for view in views.values()}) == 5 and views["tokens, log"].x.log
    ends = [max(row["x"] for row in views[name].rows["mark"] if row["s"] == "post") for name in ("tokens", "FLOPs")]
    assert ends[1] == pytest.approx(6 * 2_000_000 * ends[0])
    assert len({row["part"] for row in views["single seeds"].rows["line"]}) == 4
