"""Simulations against the laws of docs/theory.md, and the command around them."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from typing import Any

import pytest

import geonorm
from geonorm import report
from geonorm.cli.main import main
from geonorm.dynamics import simulate as simulation
from geonorm.dynamics.config import SimulateConfig
from geonorm.errors import ConfigError, GeonormError
from geonorm.report.simulation import caption, headline, load, text_lines

# scheme: (kind, exponent, time that shows it), worked out by hand in docs/theory.md
LAWS: dict[str, tuple[str, float, float]] = {
    "post": ("exponential", 2.0, 14),
    "ngpt(alpha=0.5)": ("exponential", 1.0, 25),
    "sqrt": ("stretched", 4.0, 120),
    "geonorm(decay=sqrt)": ("stretched", 4.0, 120),
    "pre": ("polynomial", 2.0, 3e4),
    "peri": ("polynomial", 2.0, 1e4),
    "mix(share=0.1)": ("polynomial", 2.0, 1e4),
    "geonorm(alpha=0.5)": ("polynomial", 1.0, 1e6),
    "geonorm": ("polynomial", 2.0, 1e4),
    "geonorm(alpha=1.5)": ("polynomial", 3.0, 1e4),
}


@pytest.mark.parametrize("scheme", LAWS)
def test_the_terminal_law_is_found(scheme: str) -> None:
    """Theorem 4.1 at its end (1 - cos is one power slower than its derivative), and GeoNorm's t^(-2 alpha)."""
    kind, exponent, time = LAWS[scheme]
    found = geonorm.simulate(schemes=[scheme], tokens=8, dim=8, beta=1.0, time=time, seeds=1, points=24, depth=20)
    (row,) = found.summary["schemes"]
    assert row["terminal_law"] == row["terminal_law_predicted"] == kind
    assert isclose(row["terminal_exponent"], exponent, rel_tol=0.01)
    assert isclose(row["terminal_exponent_predicted"], exponent, rel_tol=1e-6)
    low, high = row["terminal_exponent_interval"]
    assert low <= row["terminal_exponent"] <= high
    assert isclose(row["initial_velocity"], row["initial_velocity_predicted"], rel_tol=1e-9)
    assert row["collapse_time"] is not None and 0 < row["collapse_time"] < time
    assert isclose(row["speed_final"], row["speed_final_predicted"], rel_tol=1e-4)
    assert isclose(row["radius_final"], row["radius_final_predicted"], rel_tol=1e-4)
    growing = scheme in ("pre", "peri", "mix(share=0.1)")
    assert abs(row["radius_exponent"] - growing) < 0.02


def small(**settings: Any) -> Any:
    base = {"schemes": ["pre", "geonorm"], "tokens": 4, "dim": 4, "time": 3.0, "points": 8, "seeds": 2}
    return geonorm.simulate(**{**base, **settings})


@pytest.mark.parametrize("mlp", [None, "gelu"])
def test_slots_that_nobody_writes_change_nothing(mlp: str | None) -> None:
    """Attention residuals begin with the mean of all that was written, whose direction is Pre-Norm's stream."""
    schemes = ["pre", *(f"attnres(blocks={blocks})" for blocks in (2, 5, 12, 20))]
    found = small(schemes=schemes, mlp=mlp, method="layers", time=6.0, seeds=1)
    gaps = [[row["gap"] for row in found.trace if row["scheme"] == scheme] for scheme in schemes]
    assert gaps[0][0] > 2 * gaps[0][-1]
    for of_scheme in gaps[1:]:
        assert of_scheme == pytest.approx(gaps[0], rel=1e-12)


def test_no_law_is_stated_before_the_end() -> None:
    """A run that has not come together has a slope, not a law."""
    schemes = ["post", "pre", "peri", "geonorm"]
    for time in (2.0, 20.0):
        found = geonorm.simulate(schemes=schemes, time=time, seeds=1)
        for row in found.summary["schemes"]:
            if row["scheme"] == "post" and time > 2:
                assert row["terminal_law"] == "exponential" and isclose(row["terminal_exponent"], 2.0, rel_tol=0.01)
            else:
                assert (row["terminal_law"], row["terminal_exponent"]) == ("early", None), row
        text = "\n".join(text_lines(found.summary))
        for row in found.summary["schemes"]:
            said = f"not at its end (cos {row['cos_pair_final']:.4g})"
            assert (said in text) == (row["terminal_law"] == "early")


def test_predictions_are_of_this_system_or_none() -> None:
    """Unequal radii, no temperature, whole layers; random weights have none, and the reason stands below the table."""
    layers = {"method": "layers", "time": 16.0, "points": 17, "log_time": False}
    rows = small(schemes=["post", "pre"], init="cone", seeds=1, **layers).summary["schemes"]
    assert isclose(rows[0]["terminal_exponent"], rows[0]["terminal_exponent_predicted"], rel_tol=0.01)
    (row,) = small(schemes=["olmo2"], beta=0.0, dim=8, time=1000.0, seeds=1, points=40).summary["schemes"]
    assert row["terminal_law_predicted"] == row["terminal_law"] == "polynomial"
    assert isclose(row["terminal_exponent"], 2.0, rel_tol=0.01)
    settings = {"init": "gaussian", "beta": 0.1, "tokens": 3, "dim": 3, "points": 40}
    (row,) = small(schemes=["geonorm(entry=embedding)"], time=1e5, **settings).summary["schemes"]
    assert isclose(row["terminal_exponent"], row["terminal_exponent_predicted"], rel_tol=0.05)
    assert abs(row["terminal_exponent_predicted"] - 2) > 1e-3  # what equal radii have
    for wrong, why in (
        ({"weights": "kaiming"}, "these weights are random"),
        ({"schemes": ["residual_dual"]}, ""),
        ({"schemes": ["geonorm(entry=embedding)"], "init": "gaussian", "heads": 2}, "radii differ"),
    ):
        found = small(**wrong)
        row = found.summary["schemes"][0]
        assert row["terminal_law_predicted"] is None and row["terminal_exponent_predicted"] is None
        assert row["terminal_law_unpredicted"] and why in row["terminal_law_unpredicted"]
        text = "\n".join(text_lines(found.summary))
        assert f"no prediction of the last law of {row['scheme']}" in text


def test_times_of_a_simulation_are_depth_times_wherever_they_are_told() -> None:
    """t = tau + 1, as in every chart and law: post begins at t = 1."""
    found = small(schemes=["post"], time=40.0)
    (row,) = found.summary["schemes"]
    told = f"{row['collapse_time'] + 1:.4g}"
    assert f"t = {told}" in "\n".join(text_lines(found.summary)) and f"depth-time {told} " in headline(row)
    (early,) = small(schemes=["post"], init="cone", delta=1e-6, time=40.0).summary["schemes"]
    assert early["collapse_time"] == 0 and "depth-time 1 " in headline(early)


def test_where_theory_has_no_last_law_it_says_what_becomes_of_the_tokens() -> None:
    """olmo2 follows t^-2 until it freezes, a linear decay an exponential until its steps end: on the way only."""
    found = small(schemes=["olmo2", "geonorm(decay=linear)"], beta=0.05, time=300.0, points=40, seeds=1)
    cold, ends = found.summary["schemes"]
    assert cold["terminal_law"] == "polynomial" and cold["terminal_law_predicted"] == "none"
    assert "grows colder" in cold["terminal_law_unpredicted"] and "come to an end" in ends["terminal_law_unpredicted"]
    assert headline(cold).endswith("falls like t^-1.98 (theory: not for ever)")
    assert "theory foresees no last law of olmo2: attention grows colder" in "\n".join(text_lines(found.summary))
    network = {"weights": "network", "per": "layer", "method": "layers", "init": "cone", "delta": 1e-6, "time": 8.0}
    found = small(schemes=["geonorm", "lns", "peri"], mlp="swiglu", causal=True, tokens=3, dim=8, seeds=1, **network)
    harmonic, logarithm, apart = found.summary["schemes"]
    assert "finite sum" in harmonic["terminal_law_unpredicted"]
    assert "no power of t" in logarithm["terminal_law_unpredicted"]
    assert apart["terminal_exponent_predicted"] < 0 and apart["terminal_law_unpredicted"] is None
    assert "t^0.158" in "\n".join(text_lines(found.summary)) and headline(apart).endswith("(theory: t^0.158)")


def test_speed_is_told_from_the_sphere_where_a_scheme_with_one_takes_over() -> None:
    found = small(schemes=["mix(pre, post, share=0.5)"], method="layers", time=4.0, depth=4)
    speeds = {row["time"]: (row["radius"], row["speed"]) for row in found.trace if row["seed"] == 0}
    assert speeds[1.0][1] == pytest.approx(speeds[1.0][0])  # pre: s = r
    radius, speed = speeds[2.0]
    assert radius > 1.5 and speed == pytest.approx(radius)  # N(x + h u) turns by h u / r
    assert speeds[3.0] == pytest.approx((1.0, 1.0))


def test_clusters_of_many_tokens_are_counted_among_some(monkeypatch: Any) -> None:
    monkeypatch.setattr(simulation, "CLUSTERED", 8)
    seen: list[int] = []
    whole = simulation.clusters
    monkeypatch.setattr(simulation, "clusters", lambda theta: seen.append(theta.shape[-2]) or whole(theta))
    found = small(tokens=20, dim=20, schemes=["post"])
    assert set(seen) == {7} and found.trace[0]["clusters"] == 7 and len(repr(found)) < 200
    small(tokens=8, dim=8, schemes=["post"])
    assert seen[-1] == 8


def test_a_causal_mask_halves_the_rate() -> None:
    found = small(schemes=["post"], causal=True, time=45.0, points=30, seeds=1, log_time=False)
    (row,) = found.summary["schemes"]
    assert row["terminal_law"] == "exponential" and isclose(row["terminal_exponent"], 1.0, rel_tol=0.02)
    assert isclose(row["terminal_exponent_predicted"], 1.0, rel_tol=1e-9)
    assert row["initial_velocity_predicted"] is None and not found.theory


def test_trace_rows() -> None:
    found = small()
    assert len(found.trace) == 2 * 2 * 8
    first, last = found.trace[0], found.trace[-1]
    assert (first["scheme"], first["time"], first["t"], first["layer"], first["kind"]) == ("pre", 0.0, 1.0, 0.0, "attn")
    assert (last["scheme"], last["time"], last["seed"], last["step"]) == ("geonorm", 3.0, 1, 7)
    assert first["radius"] == pytest.approx(1) and abs(first["cos_pair"]) < 1e-12 and first["gap"] == pytest.approx(1)
    assert first["clamped"] is None and last["clamped"] == 0.0
    assert first["step_norm"] == pytest.approx((first["radial"] ** 2 + first["tangential"] ** 2) ** 0.5)
    assert first["grad_norm"] is None and first["rotation"] is None
    written = {"step", "scheme", "layer", "kind", "t", "radius", "radius_cv", "step_norm", "radial", "tangential",
               "ratio", "ratio_p99", "angle", "off_plane", "update_norm", "clamped", "cos_ones", "angle_ones",
               "cos_null", "rotation", "cos_pair", "grad_norm"}  # fmt: skip
    assert written < set(first)


@pytest.mark.parametrize(
    "settings",
    [
        {"init": "uniform", "dtype": "float32"},
        {"init": "gaussian", "schemes": ["pre(entry=embedding)", "residual_dual"]},
        {"init": "cone", "method": "rk4"},
        {"init": "uniform", "weights": "kaiming", "heads": 2},
        {"init": "uniform", "weights": "gaussian", "per": "layer", "method": "layers"},
        {"init": "uniform", "dim": 2, "log_time": False, "method": "euler"},
    ],
    ids=str,
)
def test_every_kind_of_simulation_ends_in_finite_json(settings: dict[str, Any]) -> None:
    found = small(**settings)
    for content in found.files().values():
        json.dumps(content, allow_nan=False)
    for row in found.summary["schemes"]:
        assert -1 <= row["cos_pair_final"] <= 1 and row["radius_final"] > 0
    first = found.summary["schemes"][0]["scheme"]
    radii = {row["seed"]: row["radius"] for row in found.trace if row["step"] == 0 and row["scheme"] == first}
    assert len(radii) == 2
    if settings["init"] == "gaussian":
        assert radii[0] != radii[1] and found.summary["schemes"][1]["terminal_exponent_predicted"] is None


def test_seeds_and_weights_are_repeatable_and_differ() -> None:
    one, two = (small(init="uniform", weights="kaiming", per="layer", method="layers") for _ in range(2))
    assert one.trace == two.trace
    by_seed = [[row["gap"] for row in one.trace if row["seed"] == seed] for seed in (0, 1)]
    assert by_seed[0] != by_seed[1]


BAD = [
    ("--schemes geonrom", "did you mean 'geonorm'?"),
    ("--schemes pre pre()", "--schemes names pre twice"),
    ("--tokens 1", "tokens must be at least 2"),
    ("--dim 1", "dim must be at least 2"),
    ("--tokens 9 --dim 8", "equiangular needs tokens <= dim, got 9 > 8"),
    ("--beta -1", "beta must be finite and at least 0"),
    ("--time 0", "time must be positive"),
    ("--seeds 0", "seeds must be at least 1"),
    ("--points 2", "points must be at least 8"),
    ("--heads 3", "dim 8 is not divisible by heads 3"),
    ("--delta 1 --init cone", "delta must be below 1"),
    ("--per layer", "--per layer needs random weights"),
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
    ("--schemes post per_kind --mlp tanh", "do not put the stream on one sphere"),
    ("--schemes mix(ngpt,pre,share=0.5) --weights network", "mixes streams of radius 1 (ngpt) and 2.828 (pre)"),
    ("--out text.txt/x", "cannot write to text.txt/x: Not a directory"),
    ("--out /proc/x/y", "cannot write to /proc/x/y"),
]


@pytest.mark.parametrize(("line", "said"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_line_and_leaves_nothing(
    line: str, said: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulation, "one", lambda *_: pytest.fail("computed before everything was checked"))
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
    assert main(["simulate", *config, "--beta", "2", "--out", str(done)]) == 2
    assert "holds a simulation with beta None, not 2.0" in capsys.readouterr().err
    assert (done / "trace.jsonl").read_bytes() == before


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "conclude", stop)
    words = "--schemes pre --tokens 4 --dim 4 --time 2 --points 8 --seeds 1".split()
    assert main(["simulate", *words, "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "geonorm simulate: interrupted\n" and not (tmp_path / "out").exists()


def test_an_interrupt_keeps_finished_schemes_and_the_same_command_goes_on(
    done: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    words = "--schemes pre geonorm --tokens 4 --dim 4 --time 4 --points 10 --seeds 1 --out".split()
    command, ran, whole = ["simulate", *words, str(tmp_path)], [], simulation.one

    def stop_at(scheme: str, error: type[BaseException]) -> None:
        def one(config: Any, rule: Any, *rest: Any) -> Any:
            if str(rule) == scheme:
                raise error("no more")
            ran.append(str(rule))
            return whole(config, rule, *rest)

        monkeypatch.setattr(simulation, "one", one)

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


def test_a_mean_over_seeds_is_of_all_seeds() -> None:
    """A seed whose tokens have come together has no further rows: no mean there is of the others alone."""
    found = small(schemes=["post"], dim=6, weights="kaiming", init="uniform", time=300.0, points=40)
    ends = [max(row["time"] for row in found.trace if row["seed"] == seed) for seed in range(2)]
    assert ends[1] < ends[0] < 300
    with found.folder() as place:
        times, gaps = load(place).mean("post", "gap")
    assert times[-1] == ends[1]
    last = [row["gap"] for row in found.trace if row["time"] == ends[1]]
    assert gaps[-1] == pytest.approx(sum(last) / 2)


def test_the_caption_says_what_a_layer_has() -> None:
    plain, whole = small().summary, small(mlp="swiglu", rope=100.0, causal=True).summary
    assert "MLP" not in caption(plain) and "rotary" not in caption(plain)
    assert "Q = K = V = I · MLP swiglu · causal · rotary positions · 2 seeds" in caption(whole)


def test_pictures_state_their_own_run(done: Path) -> None:
    svg = (done / "figures" / "sphere.svg").read_text(encoding="utf-8")
    assert "n = 80 tokens · d = 3 · β = 1 · uniform start" in svg and "n = 4 tokens" not in svg
    pictures = json.loads((done / "particles.json").read_text())["schemes"]
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
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["out", "out-2", "out-3"]


def test_one_page_holds_runs_and_simulations(done: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("scheme: geonorm\nseed: 0\n")
    page = report.build([done, tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "run: geonorm" in page and "Simulation: out" in page
    assert page.count("data-toggle=") == 2  # geonorm is one entry, of one colour, for both


def test_settings_are_checked_without_the_command_line() -> None:
    with pytest.raises(ConfigError, match="schemes is empty"):
        SimulateConfig(schemes=[])
    with pytest.raises(ConfigError, match="unknown setting 'token': did you mean 'tokens'"):
        geonorm.simulate(token=3)
    with pytest.raises(ConfigError, match="unknown init 'unifrom': did you mean 'uniform'"):
        geonorm.simulate(init="unifrom")
    with pytest.raises(ConfigError, match="tokens must be a whole number"):
        geonorm.simulate(tokens=None)
    with pytest.raises(ConfigError, match="either a SimulateConfig or settings by name"):
        geonorm.simulate("pre")
    assert SimulateConfig(schemes="pre").schemes == ["pre"]  # type: ignore[arg-type]
    assert SimulateConfig(time=3, beta=None).time == 3
