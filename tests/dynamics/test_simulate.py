"""Simulations against the laws of docs/theory-clustering.md."""

import json
from math import isclose
from typing import Any

import pytest
import torch

import geonorm
from geonorm.dynamics import Attention, Flow, gap, simulate as module
from geonorm.errors import ConfigError
from geonorm.report import summarize
from geonorm.report.simulation import SavedSimulation, describe_ending

from ..rows import each


def text_of(simulation: Any) -> str:
    """The summary of the terminal, as one line."""
    with simulation.folder() as place:
        return " ".join(" ".join(summarize(place)).split())


# scheme: (kind, exponent, time that shows it), worked out by hand in docs/theory-clustering.md
LAWS: dict[str, tuple[str, float, float]] = {
    "post": ("exponential", 2.0, 14),
    "sqrt": ("stretched", 4.0, 120),
    "peri": ("polynomial", 2.0, 1e4),
    "mix(share=0.1)": ("polynomial", 2.0, 1e4),
    "geonorm(alpha=0.5)": ("polynomial", 1.0, 1e6),
}


@each("scheme", LAWS)
def test_the_terminal_law_is_found(scheme: str) -> None:
    """Theorem 4.1 at its end (1 - cos is one power slower than its derivative), and GeoNorm's t^(-2 alpha)."""
    kind, exponent, time = LAWS[scheme]
    simulation = geonorm.simulate(schemes=[scheme], tokens=8, dim=8, beta=1.0, time=time, seeds=1, points=24, depth=20)
    (row,) = simulation.summary["schemes"]
    assert row["terminal_law"] == row["terminal_law_predicted"] == kind
    assert isclose(row["terminal_exponent"], exponent, rel_tol=0.01)
    assert isclose(row["terminal_exponent_predicted"], exponent, rel_tol=1e-6)
    low, high = row["terminal_exponent_interval"]
    assert low <= row["terminal_exponent"] <= high
    assert isclose(row["initial_velocity"], row["initial_velocity_predicted"], rel_tol=1e-9)
    assert row["collapse_time"] is not None and 0 < row["collapse_time"] < time
    assert isclose(row["speed_final"], row["speed_final_predicted"], rel_tol=1e-4)
    assert isclose(row["radius_final"], row["radius_final_predicted"], rel_tol=1e-4)
    growing = scheme in ("peri", "mix(share=0.1)")
    assert abs(row["radius_exponent"] - growing) < 0.02


def small(**settings: Any) -> Any:
    base = {"schemes": ["pre", "geonorm"], "tokens": 4, "dim": 4, "time": 3.0, "points": 8, "seeds": 2}
    return geonorm.simulate(**{**base, **settings})


def test_no_law_is_stated_before_the_end() -> None:
    """A run that has not come together has a slope, not a law."""
    simulation = geonorm.simulate(schemes=["post", "pre", "peri", "geonorm"], time=20.0, seeds=1)
    laws = [(row["terminal_law"], row["terminal_exponent"]) for row in simulation.summary["schemes"]]
    assert laws == [("exponential", pytest.approx(2.0, rel=0.01)), *[("early", None)] * 3]
    assert text_of(simulation).count("not at its end (cos ") == 3


def test_a_law_is_read_off_the_part_that_reached_it() -> None:
    """Tokens of post are together after a hundredth of the decades that pre needs: those are measured again."""
    simulation = geonorm.simulate(schemes=["post", "pre"], tokens=4, dim=4, time=1e9, seeds=1, keep=["tokens"])
    for row, (kind, rate) in zip(simulation.summary["schemes"], (("exponential", 2), ("polynomial", 2)), strict=True):
        assert row["terminal_law"] == kind and isclose(row["terminal_exponent"], rate, rel_tol=0.01)
        trace = [each["time"] for each in simulation.trace if each["scheme"] == row["scheme"]]
        assert trace == simulation.trajectories[row["scheme"]]["time"].tolist() and len(trace) > 50
    assert simulation.summary["schemes"][0]["time_final"] < 50


def test_how_fast_uniform_tokens_turn_at_first_stands_beside_theory() -> None:
    schemes = ["geonorm", "geonorm(update=norm)"]
    simulation = small(schemes=schemes, init="uniform", tokens=64, dim=64, seeds=4)
    for row in simulation.summary["schemes"]:
        assert row["initial_turn"] == pytest.approx(row["initial_turn_predicted"], rel=0.05)
    assert "|θ'|(0)" in text_of(simulation)
    for few in ({}, {"dim": 64, "beta": 8.0}):  # dimensions, for this temperature too
        assert small(init="uniform", **few).summary["schemes"][0]["initial_turn_predicted"] is None


def test_a_collapse_time_is_of_all_seeds_or_none() -> None:
    same = dict.fromkeys(("angle", "cos_pair", "speed", "radius"), 1.0)
    seeds = [[{"time": float(t), "gap": gap**t, **same} for t in range(3)] for gap in (0.9, 0.05)]
    rows = [module.summarize_scheme(by_seed, {}, module.Law("early")) for by_seed in (seeds, seeds[1:])]
    assert [(row["collapse_time"] is None, row["collapsed"]) for row in rows] == [(True, 1), (False, 1)]


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
    for wrong, why in (({"weights": "kaiming"}, "these weights are random"), ({"schemes": ["residual_dual"]}, "")):
        simulation = small(**wrong)
        row = simulation.summary["schemes"][0]
        assert row["terminal_law_predicted"] is None and row["terminal_exponent_predicted"] is None
        assert row["terminal_law_unpredicted"] and why in row["terminal_law_unpredicted"]
        text = text_of(simulation)
        assert f"no prediction of the terminal law of {row['scheme']}" in text


def test_where_theory_has_no_last_law_it_says_what_becomes_of_the_tokens() -> None:
    """olmo2 follows t^-2 until it freezes, a linear decay an exponential until its steps end: on the way only."""
    simulation = small(schemes=["olmo2", "geonorm(decay=linear)"], beta=0.05, time=300.0, points=40, seeds=1)
    cold, ends = simulation.summary["schemes"]
    assert cold["terminal_law"] == "polynomial" and cold["terminal_law_predicted"] == "none"
    assert "grows colder" in cold["terminal_law_unpredicted"] and "come to an end" in ends["terminal_law_unpredicted"]
    assert describe_ending(cold).endswith("falls like t^-1.98 (theory: not for ever)")
    assert "theory predicts no terminal law for olmo2: attention grows colder" in text_of(simulation)
    network = {"weights": "network", "per": "layer", "method": "layers", "init": "cone", "delta": 1e-6, "time": 8.0}
    simulation = small(
        schemes=["geonorm", "lns", "peri"], mlp="swiglu", causal=True, tokens=3, dim=8, seeds=1, **network
    )
    harmonic, logarithm, apart = simulation.summary["schemes"]
    assert "finite sum" in harmonic["terminal_law_unpredicted"]
    assert "no power of t" in logarithm["terminal_law_unpredicted"]
    assert apart["terminal_exponent_predicted"] < 0 and apart["terminal_law_unpredicted"] is None
    assert "t^0.158" in text_of(simulation) and describe_ending(apart).endswith("(theory: t^0.158)")


def test_speed_is_told_from_the_sphere_where_a_scheme_with_one_takes_over() -> None:
    simulation = small(schemes=["mix(pre, post, share=0.5)"], method="layers", time=4.0, depth=4)
    speeds = {row["time"]: (row["radius"], row["speed"]) for row in simulation.trace if row["seed"] == 0}
    assert speeds[1.0][1] == pytest.approx(speeds[1.0][0])  # pre: s = r
    radius, speed = speeds[2.0]
    assert radius > 1.5 and speed == pytest.approx(radius)  # N(x + h u) turns by h u / r
    assert speeds[3.0] == pytest.approx((1.0, 1.0))


def test_clusters_of_many_tokens_are_counted_among_some(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "CLUSTERED", 8)
    seen: list[int] = []
    whole = module.clusters
    monkeypatch.setattr(module, "clusters", lambda theta: seen.append(theta.shape[-2]) or whole(theta))
    simulation = small(tokens=20, dim=20, schemes=["post"])
    assert set(seen) == {7} and simulation.trace[0]["clusters"] == 7
    small(tokens=8, dim=8, schemes=["post"])
    assert seen[-1] == 8


def test_a_causal_mask_halves_the_rate() -> None:
    simulation = small(schemes=["post"], causal=True, time=45.0, points=30, seeds=1, log_time=False)
    (row,) = simulation.summary["schemes"]
    assert row["terminal_law"] == "exponential" and isclose(row["terminal_exponent"], 1.0, rel_tol=0.02)
    assert isclose(row["terminal_exponent_predicted"], 1.0, rel_tol=1e-9)
    assert row["initial_velocity_predicted"] is None and not simulation.theory


def test_trace_rows() -> None:
    simulation = small()
    assert len(simulation.trace) == 2 * 2 * 8
    first, last = simulation.trace[0], simulation.trace[-1]
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


@each(
    "settings",
    [
        {"init": "uniform", "dtype": "float32"},
        {"init": "gaussian", "schemes": ["pre(entry=embedding)", "residual_dual"]},
        {"init": "cone"},
        {"init": "uniform", "weights": "gaussian", "per": "layer", "method": "layers"},
        {"init": "uniform", "dim": 2, "log_time": False},
    ],
)
def test_every_kind_of_simulation_ends_in_finite_json(settings: dict[str, Any]) -> None:
    simulation = small(**settings)
    for content in simulation.files().values():
        json.dumps(content, allow_nan=False)
    for row in simulation.summary["schemes"]:
        assert -1 <= row["cos_pair_final"] <= 1 and row["radius_final"] > 0
    first = simulation.summary["schemes"][0]["scheme"]
    radii = {row["seed"]: row["radius"] for row in simulation.trace if row["step"] == 0 and row["scheme"] == first}
    assert len(radii) == 2
    if settings["init"] == "gaussian":
        assert radii[0] != radii[1] and simulation.summary["schemes"][1]["terminal_exponent_predicted"] is None


def test_a_mean_over_seeds_is_of_all_seeds() -> None:
    """A seed whose tokens have come together has no further rows: no mean there is of the others alone."""
    simulation = small(schemes=["post"], dim=6, weights="kaiming", init="uniform", time=300.0, points=40)
    ends = [max(row["time"] for row in simulation.trace if row["seed"] == seed) for seed in range(2)]
    assert ends[1] < ends[0] < 300
    with simulation.folder() as place:
        course = SavedSimulation.load(place).mean("post", "gap")
    assert course[-1][0] == ends[1] + 1
    last = [row["gap"] for row in simulation.trace if row["time"] == ends[1]]
    assert course[-1][1] == pytest.approx(sum(last) / 2)


@each(
    "settings, message",
    [
        ({"schemes": []}, "schemes is empty"),
        ({"token": 3}, "unknown setting 'token': did you mean 'tokens'"),
        ({"mlp": "gelu"}, "--mlp does nothing here, it needs --weights network"),
        # particles have no steps of an optimizer
        ({"schemes": ["prores(geonorm)"]}, r"does not move particles, its steps begin at 0.*the scheme inside"),
        ({"schemes": ["mix(pre, prores, share=0.5)"], "depth": 4}, "does not move particles"),
        # layer 12 of 10 has a step of -0.2
        *[({"schemes": ["geonorm(decay=linear)"], "depth": 10, "time": 13.0, "method": method},
           r"decay=linear\) runs backwards after its last layer: depth 10, time") for method in ("layers", "adaptive")],
    ],
)  # fmt: skip
def test_settings_are_checked_without_the_command_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**settings)


def test_what_is_stored_is_what_was_measured() -> None:
    settings = {"schemes": ["pre", "siamese"], "dim": 6}
    simulation = small(**settings, keep=["tokens", "stream"])
    assert set(simulation.trajectories) == {"pre", "siamese"} and small(**settings).trajectories == {}
    for scheme, course in simulation.trajectories.items():
        rows = [row for row in simulation.trace if row["scheme"] == scheme and row["seed"] == 1]
        assert course["time"].tolist() == [row["time"] for row in rows]
        assert course["tokens"].shape == (2, 8, 4, 6)
        assert course["stream"].shape == ((2, 8, 4, 6) if scheme == "pre" else (2, 8, 4, 2, 6))
        assert gap(course["tokens"][1]).tolist() == pytest.approx([row["gap"] for row in rows], rel=1e-12)
        flow = Flow(scheme, Attention(), simulation.config.layers)
        for place in range(8):
            tokens = flow.tokens(course["stream"][:, place])
            torch.testing.assert_close(tokens, course["tokens"][:, place], rtol=0, atol=0)


def test_a_seed_that_ends_earlier_is_filled_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.TOGETHER, "float64", 0.3)
    settings = {"weights": "gaussian", "init": "uniform", "time": 40.0, "keep": ["tokens"], "points": 20, "seeds": 4}
    simulation = small(schemes=["post"], dim=6, **settings)
    tokens, ends = simulation.trajectories["post"]["tokens"], []
    for seed in range(4):
        measured = sum(row["seed"] == seed for row in simulation.trace)
        assert tokens[seed, :measured].isfinite().all() and tokens[seed, measured:].isnan().all()
        ends.append(measured)
    assert tokens.shape[1] == max(ends) and len(set(ends)) > 1
