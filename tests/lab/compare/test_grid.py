"""Grids: what they are made of, what is refused before anything is written, and one from end to end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from geonorm import report
from geonorm.errors import CheckpointError, ConfigError
from geonorm.lab.compare import compare as lab
from geonorm.lab.compare.grid import curve_of, describe_grid, make_cells
from geonorm.lab.config import CompareConfig, TrainConfig
from geonorm.lab.options import Evaluation, Optim
from geonorm.lab.runs.run import write_json
from geonorm.report.runs import load as load_runs
from geonorm.settings import to_dict

BUILD = report.build


def config(*grid: str, **more: Any) -> CompareConfig:
    return CompareConfig(**{"schemes": ["pre", "geonorm"], "grid": list(grid), "out": "runs/x", **more})


def test_what_a_recipe_leaves_alone_can_be_a_grid() -> None:
    assert len(make_cells(config("optim.clip=1,2", schemes=["pre", "ngpt"], recipe="own"))) == 2
    assert len(make_cells(config("optim.weight_decay=0,0.1", recipe="own"))) == 2


def test_a_cell_for_each_combination() -> None:
    cells = make_cells(config("model.width=64,128", "optim.weight_decay=0, 0.1", "scheme.alpha=0.5,2"))
    assert len(cells) == 8
    first, last = cells[0], cells[-1]
    assert first.grid == ["model.width=64", "optim.weight_decay=0", "scheme.alpha=0.5"]
    assert (last.model.width, last.optim.weight_decay) == (128, 0.1) and first.optim.weight_decay == 0.0  # type: ignore[attr-defined]
    assert first.schemes == ["pre(alpha=0.5)", "geonorm(alpha=0.5)"] and last.schemes[1] == "geonorm(alpha=2)"
    runs = [lab.run_config(cell, s, 5e-3, 0) for cell in cells for s in cell.schemes]
    assert len({run.out for run in runs}) == 16 and all(run.cell for run in runs)
    name = Path(lab.run_config(first, "pre", 5e-3, 1).out).name
    assert name == "pre-model.width-64-optim.weight_decay-0-lr0.005-seed1"
    assert curve_of("geonorm(alpha=0.5)", first.grid) == "geonorm" and curve_of("pre", ["model.width=64"]) == "pre"


@pytest.mark.parametrize(
    ("scheme", "grid", "curve"),
    [
        ("mix(geonorm, share=0.5)", "scheme.share=0.25,0.5,1", "mix(a=geonorm)"),
        ("mix(post, geonorm)", "scheme.a=post,peri,deepnorm", "mix(b=geonorm)"),
        ("mix(hyper, hyper)", "scheme.b=hyper,hyper(n=4)", "mix(a=hyper)"),  # which alone could not be combined
        ("per_kind(mlp=peri)", "scheme.attn=pre,geonorm", "per_kind(mlp=peri)"),
        ("prores(post, steps=10)", "scheme.scheme=post,pre", "prores(steps=10)"),
    ],
)
def test_fields_of_combinators_are_on_one_curve_too(scheme: str, grid: str, curve: str) -> None:
    cells = make_cells(config(grid, schemes=[scheme]))
    assert {curve_of(cell.schemes[0], cell.grid) for cell in cells} == {curve} and len(cells) > 1


def test_schemes_of_runs_that_may_not_run_are_curves_of_their_own(tmp_path: Path) -> None:
    (file := tmp_path / "never.py").write_text("raise SystemExit('it ran')")
    for scheme in (f"{file}:Half(b=1)", f"{tmp_path / 'gone.py'}:Half(b=1)"):
        assert curve_of(scheme, ["scheme.b=1"]) == scheme


def test_without_a_grid_nothing_changes() -> None:
    plain = config()
    (cell,) = make_cells(plain)
    assert cell == plain
    run = lab.run_config(cell, "pre", 5e-3, 0)
    assert run.out == "runs/x/runs/pre-lr0.005-seed0" and run.cell == []


def test_words_and_empty_values_stand_on_a_grid_too() -> None:
    cells = make_cells(config("optim.schedule=cosine,wsd", "optim.warmup_steps=null,3", "scheme.decay=sqrt,0.75"))
    assert [cell.optim.warmup_steps for cell in cells[::2]] == [None, 3, None, 3]
    assert cells[0].schemes[1] == "geonorm(decay=sqrt)" and cells[1].schemes[1] == "geonorm(decay=0.75)"


def test_a_preset_on_the_grid_does_not_lose_its_optimizer_unseen() -> None:
    with pytest.raises(ConfigError, match=r"preset=modern comes with muon, .* with adamw: .*\(optim.name=adamw\)"):
        make_cells(config("preset=nano,modern"))
    with pytest.raises(ConfigError, match=r"preset=nano comes with adamw, .* with muon"):
        make_cells(config("preset=nano,modern", preset="modern"))
    cells = make_cells(config("preset=nano,modern", "optim.name=adamw"))
    assert [(cell.preset, cell.optim.name) for cell in cells] == [("nano", "adamw"), ("modern", "adamw")]
    cells = make_cells(config("preset=nano,modern", optim=Optim(name="muon")))
    assert {cell.optim.name for cell in cells} == {"muon"}
    assert len(make_cells(config("preset=nano,mini"))) == 2


@pytest.mark.parametrize(
    ("grid", "more", "said"),
    [
        (["model.widht=1,2"], {}, "unknown setting of --grid 'model.widht': did you mean 'model.width'?"),
        (["model.width"], {}, "--grid model.width needs values"),
        (["model.width=64,"], {}, "needs values with commas between"),
        (["model.width=64,x"], {}, "--model.width takes"),
        (["model.width=0,64"], {}, "model.width must be at least 1"),
        (["model.width=64,064"], {}, "has a value twice"),
        (["scheme.alpha=1,1.0"], {}, "--grid scheme.alpha has a value twice"),
        (["scheme.alpha=.5,0.5"], {}, "--grid scheme.alpha has a value twice"),
        (["scheme.mlp=post,post()"], {"schemes": ["per_kind(attention=pre, mlp=peri)"]}, "has a value twice"),
        (["scheme.max_angle=pi/4,0.7853981633974483"], {"schemes": ["geonorm"]}, "has a value twice"),
        (["model.width=64", "model.width=128"], {}, "names a setting twice"),
        (["scheme.alpa=1,2"], {}, "unknown field of pre 'alpa': did you mean 'alpha'?"),
        (["scheme.max_angle=1,2"], {}, "unknown field of pre 'max_angle'"),
        (["scheme.alpha=-1,2"], {"schemes": ["geonorm"]}, "alpha"),
        (["scheme.alpha=1 2"], {"schemes": ["geonorm"]}, "after the end"),
        (["scheme.alpha=1,2"], {"schemes": ["geonorm", "geonorm(alpha=3)"]}, "two --schemes are the same"),
        (["data=a,b"], {}, "cannot change data"),
        (["evaluation.tokens=64,4096"], {}, "cannot change evaluation.tokens: cells are compared on one held-out text"),
        (["model.vocab_size=300,400"], {}, "cannot change model.vocab_size"),
        (["runtime.parallel=none,ddp"], {}, "changes no number"),
        (["runtime.threads=1,2"], {}, "changes no number"),
        (["optim.momentum=0.8,0.9"], {}, "optim.momentum compares a run with itself: it needs optim.name sgd"),
        (["optim.cooldown=0.1,0.2", "optim.schedule=wsd,cosine"], {}, "it needs optim.schedule wsd"),
        (["guard.limit=5,10"], {}, "it needs guard.nan or guard.spike to skip or rewind"),
        (["model.norm_bias=true,false"], {}, "it needs norms with gains and a bias, model.norm layer, dyt or derf"),
        (["model.init_depth=2,4"], {}, "it needs model.init neox or gpt2"),
        (["model.rope_theta=1e3,1e4"], {"preset": "nano-gpt2"}, "it needs model.positions rope"),
        (["optim.weight_decay=0,0.1"], {"schemes": ["pre", "ngpt"], "recipe": "own"}, "compares ngpt with itself"),
        (
            ["optim.warmup_steps=0,9"],
            {"schemes": ["ngpt"], "recipe": "own"},
            "its recipe sets it; take --recipe shared",
        ),
        (["optim.betas=0.9,0.95"], {}, "--grid cannot hold optim.betas, whose values are lists"),
        (["optim.hold_norms=o,down"], {}, "--grid cannot hold optim.hold_norms, whose values are lists"),
        (["log.project=a,b"], {}, "changes no number"),
        (["seed=1,2"], {}, "--grid cannot hold seed: every cell has those that --seeds names"),
        (["optim.lr=1,2"], {}, "--grid cannot hold optim.lr: every cell has those that --lrs names"),
        (["model.width=64,128", "steps=10,20"], {"max_runs": 23}, "--grid makes 24 runs, more than --max-runs 23"),
        ([], {"max_runs": 23}, "--max-runs is of a grid, and there is none"),
    ],
)
def test_what_is_refused(grid: list[str], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_cells(config(*grid, **more))
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("grid", "whole"),
    [
        ("steps=10,20", False),
        ("batch_size=2,4", False),
        ("preset=nano,nano-gpt2", False),  # of one context
        ("preset=nano,mini", True),  # of two, whose parts would be different text
        ("model.context=64,128", True),
        ("model.context=64", True),  # 128 may follow
        ("model.width=64,128", None),
    ],
)
def test_cells_of_several_lengths_are_judged_on_one_text(grid: str, whole: bool | None) -> None:
    """The longer ones alone would be long enough for the whole held-out text, whose loss is another."""
    assert {cell.evaluation.whole for cell in make_cells(config(grid))} == {whole}
    asked = config(grid, evaluation=Evaluation(whole=True))
    assert {cell.evaluation.whole for cell in make_cells(asked)} == {True}
    part = config(grid, evaluation=Evaluation(whole=False))
    if whole:
        with pytest.raises(ConfigError, match=r"--evaluation.whole false would judge cells of several contexts"):
            make_cells(part)
    else:
        assert {cell.evaluation.whole for cell in make_cells(part)} == {False}


def test_cells_of_other_contexts_extend_no_grid_that_was_judged_on_a_part(tmp_path: Path) -> None:
    def ask(presets: str) -> list[TrainConfig]:
        asked = config(f"preset={presets}", out=str(tmp_path), schemes=["pre"])
        runs = [lab.run_config(cell, "pre", 5e-3, 0) for cell in make_cells(asked)]
        lab.check_directory(tmp_path, asked, runs)
        for folder, settings in ((tmp_path, asked), *((Path(run.out), run) for run in runs)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(settings)))
        return runs

    ask("nano")
    ask("nano-gpt2")
    for presets in ("mini", "nano,mini"):
        with pytest.raises(CheckpointError, match=r"on other held-out text \(a part in windows of 128 tokens, not"):
            ask(presets)


def test_what_a_grid_comes_to() -> None:
    asked = config("model.width=64,128", lrs=[1e-3, 2e-3, 4e-3], tune=True)
    assert describe_grid(asked, make_cells(asked)) == (
        "grid: 2 cells x 2 schemes, 24 runs and those that --tune adds (--max-runs 200)"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lrs": [0.00123456, 0.001234561]}, "pre-lr0.00123456-seed0, with lr 0.00123456, not 0.001234561: name only"),
        (
            {"schemes": ["mix(post, pre)"], "grid": ["scheme.b=geonorm(alpha=2),geonorm(alpha=2.0)"]},
            "with cell ['scheme.b=geonorm(alpha=2)'], not ['scheme.b=geonorm(alpha=2.0)']",
        ),
    ],
)
def test_two_runs_of_one_folder_are_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    """The second was told as finished, with the loss of the first."""
    out = tmp_path / "out"
    with pytest.raises(ConfigError) as refused:
        lab.compare(CompareConfig(**{"schemes": ["pre"], "out": str(out), **more}))
    assert said in str(refused.value) and "\n" not in str(refused.value) and not out.exists()


@pytest.mark.parametrize(
    ("axis", "values", "other"),
    [
        ("optim.clip", ("1", "2"), "1.0"),
        ("scheme.alpha", ("0.5", "2"), ".5"),
        ("scheme.b", ("peri", "sandwich"), "peri()"),
        ("steps", ("20", "2"), "020"),
    ],
)
def test_a_value_of_an_earlier_command_is_known_by_its_runs(
    tmp_path: Path, axis: str, values: tuple[str, str], other: str
) -> None:
    """The settings of the folder are those of the last command, which named other values."""
    schemes = ["mix(post, pre)"] if axis == "scheme.b" else ["pre", "geonorm"]
    for value in values:
        asked = config(f"{axis}={value}", out=str(tmp_path), schemes=schemes)
        lab.check_directory(tmp_path, asked)
        (cell,) = make_cells(asked)
        run = lab.run_config(cell, cell.schemes[0], 5e-3, 0)
        Path(run.out).mkdir(parents=True)
        for folder, settings in ((tmp_path, asked), (Path(run.out), run)):
            (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(settings)))
    lab.check_directory(tmp_path, config(f"{axis}={','.join(values)}", out=str(tmp_path), schemes=schemes))
    with pytest.raises(CheckpointError, match=rf"with {axis}={values[0]} on its grid, not {re.escape(other)}; choose"):
        lab.check_directory(tmp_path, config(f"{axis}={other}", out=str(tmp_path), schemes=schemes))


def test_presets_with_other_tokens_write_nothing(call: Any, tiny: list[str], tmp_path: Path) -> None:
    at = tiny.index("--model.vocab_size")
    words = [*tiny[:at], *tiny[at + 2 :]]
    refused = call("compare", *words, "--grid", "preset=nano,125m", "--out", tmp_path / "out")
    assert refused.status == 2 and "give --model.vocab_size" in refused.err and not (tmp_path / "out").exists()


def test_new_values_alone_turn_no_sign_and_tear_no_curve(tmp_path: Path) -> None:
    """Cells that are not asked for this time keep their order, their baseline and their curves."""
    schemes = ["geonorm(decay=sqrt)", "geonorm"]
    for values in ("0.5,1", "2"):
        asked = [
            lab.run_config(cell, scheme, 5e-3, seed)
            for cell in make_cells(config(f"scheme.alpha={values}", schemes=schemes, out=str(tmp_path)))
            for scheme in cell.schemes
            for seed in range(2)
        ]
        for run in asked:
            loss = 3.4 if "decay" in run.scheme else 3.5
            summary = {"status": "finished", "scheme": run.scheme, "seed": run.seed, "lr": run.lr, "cell": run.cell}
            Path(run.out).mkdir(parents=True)
            write_json(Path(run.out) / "summary.json", {**summary, "val_loss": loss + run.seed / 100})
            (Path(run.out) / "config.yaml").write_text(yaml.safe_dump(to_dict(run)))
        team: Any = SimpleNamespace(out=tmp_path, asked=asked, order=schemes)
        rows = lab.write_results(team, [])["schemes"]
        assert len(rows) == (4 if "," in values else 6)
        assert [row["curve"] for row in rows] == schemes * (len(rows) // 2)
        assert all(row["difference"] == pytest.approx(0.1) for row in rows[1::2]), rows


def test_the_baseline_of_a_folder_stays_unless_it_is_named_behind_another(tmp_path: Path) -> None:
    def finish(*schemes: str, status: str = "finished") -> None:
        for scheme in schemes:
            (folder := tmp_path / "runs" / scheme).mkdir(parents=True)
            cell = ["scheme.alpha=2"] if "alpha" in scheme else []
            write_json(folder / "summary.json", {"scheme": scheme, "status": status, "cell": cell})

    assert lab.order_schemes(tmp_path, ["post", "pre"]) == ["post", "pre"]
    (tmp_path / "config.yaml").write_text("schemes: [pre, 'geonorm(alpha=1, decay=sqrt)']")  # stopped before results
    assert lab.order_schemes(tmp_path, ["post"]) == ["post"]  # and before a run: nothing to be compared with
    finish("pre", status="diverged")
    assert lab.order_schemes(tmp_path, ["post"]) == ["post"]
    write_json(tmp_path / "runs" / "pre" / "summary.json", {"scheme": "pre", "status": "finished"})
    finish("geonorm(decay=sqrt)")
    assert lab.order_schemes(tmp_path, ["post"]) == ["pre", "geonorm(decay=sqrt)", "post"]
    assert lab.order_schemes(tmp_path, ["post", "pre"]) == ["post", "pre", "geonorm(decay=sqrt)"]
    (tmp_path / "config.yaml").write_text("schemes: [post]")
    finish("peri", "post")
    write_json(tmp_path / "results.json", {"schemes": [{"scheme": "pre"}, {"scheme": "peri"}]})
    assert lab.order_schemes(tmp_path, ["nag"]) == ["pre", "peri", "post", "nag"]
    for damaged in ("[]", '{"schemes": 1}', '{"schemes": [1]}', '{"order": [[1]]}', "{"):
        (tmp_path / "results.json").write_text(damaged)
        assert lab.order_schemes(tmp_path, ["peri"]) == ["post", "peri"]
    rows = [{"scheme": f"{name}(alpha=2)", "curve": name} for name in ("geonorm", "pre")]
    write_json(tmp_path / "results.json", {"schemes": rows, "order": ["pre", "geonorm"]})
    finish("pre(alpha=2)", "geonorm(alpha=2)")
    assert lab.order_schemes(tmp_path, ["polar(alpha=2)"], ["scheme.alpha=2,3"]) == ["pre", "geonorm", "post", "polar"]


def test_from_end_to_end(processes: Any, call: Any, tiny: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    """Two schemes in four cells; stopped half-way and gone on with; more values; a page with a curve a scheme."""
    monkeypatch.setattr(report, "build", BUILD)
    out = tmp_path / "out"
    fast = ["--steps", "3", "--evaluation.every", "3", "--seeds", "1", "--schemes", "pre", "geonorm", "--out", out]
    grid = ["--grid", "optim.weight_decay=0,0.1", "scheme.alpha=0.5,1"]
    processes.fail = staticmethod(lambda name: "weight_decay-0.1" in name)
    assert call("compare", *tiny, *fast, *grid).status == 2
    processes.fail = staticmethod(lambda name: False)
    second = call("compare", *tiny, *fast, *grid)
    assert second.status == 0 and "4 of 8 runs are finished already" in second.out, second
    assert "grid: 4 cells x 2 schemes, 8 runs (--max-runs 200)" in second.out
    assert "scheme   weight_decay  alpha  n" in second.out  # settings by their last names
    results = json.loads((out / "results.json").read_text())
    assert len(results["runs"]) == 8 and len(results["schemes"]) == 8
    losses = {(run["scheme"], *run["cell"]): run["val_loss"] for run in results["runs"]}
    assert len(set(losses.values())) == 8  # each setting reached its runs
    for row in results["schemes"]:
        own = losses[row["scheme"], *row["cell"]]
        alpha = row["cell"][1].removeprefix("scheme.alpha=")
        base = losses["pre(alpha=0.5)" if alpha == "0.5" else "pre", *row["cell"]]
        assert row["val_loss_mean"] == own and row["difference"] == pytest.approx(own - base)
        assert row["curve"] == row["scheme"].partition("(")[0] and row["n"] == 1
    page = (out / "report.html").read_text()
    assert "Loss against optim.weight_decay at scheme.alpha=0.5" in page and "Grid: out" in page
    assert (out / "figures" / "grid.svg").exists() and "geonorm is lowest at optim.weight_decay=" in second.out
    wider = call("compare", *tiny, *fast, "--grid", "optim.weight_decay=0.1", "scheme.alpha=1,2")
    assert wider.status == 0 and "2 of 4 runs are finished already" in wider.out
    assert len(json.loads((out / "results.json").read_text())["schemes"]) == 10
    for words, cells in (
        (["--grid", "optim.weight_decay=0,0.1", "scheme.alpha=1"], 12),
        (["--grid", "optim.weight_decay=0,0.1", "scheme.alpha=1", "--config", out / "config.yaml"], 12),
    ):
        alone = call("compare", *tiny, *fast[:6], "--out", out, "--schemes", "geonorm(decay=sqrt)", *words)
        assert alone.status == 0 and "differences are to pre, as before" in alone.out, alone
        rows = json.loads((out / "results.json").read_text())["schemes"]
        assert len(rows) == cells and {row["baseline"].partition("(")[0] for row in rows} == {"pre"}
        assert rows[2]["scheme"] == "geonorm(decay=sqrt)" and rows[2]["difference"] is not None
    one_by_one = load_runs(sorted(path for path in (out / "runs").iterdir() if "weight_decay-0-" in path.name))
    assert one_by_one.baseline.partition("(")[0] == "pre"
    for words in ([], ["--grid", "optim.clip=1,2"]):
        refused = call("compare", *tiny, *fast, *words)
        assert refused.status == 2 and "a grid over optim.weight_decay scheme.alpha, not" in refused.err
    turned = call("compare", *tiny, *fast, "--grid", "scheme.alpha=1,2", "optim.weight_decay=0.1")  # other names
    assert "a grid over optim.weight_decay scheme.alpha, not scheme.alpha optim.weight_decay" in turned.err
    spelled = call("compare", *tiny, *fast, "--grid", "optim.weight_decay=0.10", "scheme.alpha=1,2")
    assert "optim.weight_decay=0.1 on its grid, not 0.10" in spelled.err and turned.status == spelled.status == 2
