"""Effective speed-ups: a planted one is recovered, what lies outside a curve is only bounded, and points of a prefix
are one observation."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.speedup import LossCurve, estimate, judge_ladder, read_speedup

from ...rows import each

BUDGETS = [1e6, 2e6, 4e6, 8e6, 16e6]
SIZES = {"d3w48": 180_000, "d4w64": 330_000, "d6w96": 860_000}
Law = Callable[[float, float], float]


def law(size: float, tokens: float) -> float:
    return 2.0 + 30 * size**-0.34 + 50 * tokens**-0.28


def runs(
    schemes: dict[str, Law], budgets: list[float] = BUDGETS, sizes: dict[str, int] | None = None, seeds: int = 3,
    noise: float = 0.005, generator: int = 0,
) -> list[Summary]:  # fmt: skip
    """A noise for each shared prefix, which all of its points share, and a smaller one for each point."""
    random = np.random.default_rng(generator)
    found = []
    for scheme, loss in schemes.items():
        for name, size in (sizes or {"d4w64": 330_000}).items():
            for seed in range(seeds):
                shared = random.normal(0, noise)
                for tokens in budgets:
                    value = loss(size, tokens) + shared + random.normal(0, noise / 3)
                    about = {"size": name, "planned_tokens": int(tokens), "embedding": 0, "parameters": size}
                    ended = {"status": "finished", "phase": "final", "lr": 1e-3, "tokens": int(tokens), "spikes": 0}
                    known = {"scheme": scheme, "seed": seed, "val_loss": value}
                    found.append(Summary.read(known | about | ended))
    return found


def planted(factor: float) -> dict[str, Law]:
    return {"pre": law, "planted": lambda size, tokens: law(size, factor * tokens)}


def test_a_planted_speedup_lies_within_its_interval_as_often_as_it_should() -> None:
    held, widths = 0, []
    for generator in range(200):
        (row,) = judge_ladder(runs(planted(1.25), generator=generator), "pre")["speedups"]
        held += row["speedup_low"] <= 1.25 <= row["speedup_high"]
        widths.append(row["speedup_high"] / row["speedup_low"])
    assert 182 <= held <= 198  # 95 % of 200, within three standard errors
    assert np.median(widths) < 1.5


@each("factor", [0.6, 0.8, 1.25, 1.8])
@each("budgets", [BUDGETS, BUDGETS[::2], [4e6, 8e6]])
def test_without_noise_it_is_read_off_exactly(factor: float, budgets: list[float]) -> None:
    """But for what curves do between points a factor of two or four apart; through two points they are straight."""
    (row,) = judge_ladder(runs(planted(factor), budgets, noise=1e-9), "pre")["speedups"]
    assert row["speedup"] == pytest.approx(factor, rel={5: 0.002, 3: 0.006, 2: 0.03}[len(budgets)])
    assert row["bound"] is None and row["along"] == "tokens" and row["n"] == 3


def test_one_budget_at_several_sizes_is_read_along_compute() -> None:
    """Twenty tokens for each parameter, a loss that depends on their product: at the sizes, which are unevenly apart,
    and at both ends, where nothing may be extrapolated."""

    def of_compute(size: float, tokens: float) -> float:
        return 2 + 50 * (size * tokens) ** -0.15

    for factor in (0.8, 1.02, 1.25):
        schemes = {"pre": of_compute, "other": lambda size, tokens, by=factor: of_compute(size, by * tokens)}
        found = [run for name, n in SIZES.items() for run in runs(schemes, [20 * n], {name: n}, noise=1e-9)]
        rows = judge_ladder(found, "pre")["speedups"]
        assert [row["size"] for row in rows] == list(SIZES) and {row["along"] for row in rows} == {"compute"}
        assert [row["speedup"] for row in rows] == pytest.approx([factor] * 3, rel=0.01)


def test_what_lies_outside_is_a_bound_and_said() -> None:
    better = {"pre": law, "other": lambda size, tokens: law(size, tokens) - 1.0}
    worse = {"pre": law, "other": lambda size, tokens: law(size, tokens) + 1.0}
    (row,) = judge_ladder(runs(better, [4e6, 8e6]), "pre")["speedups"]
    assert (row["bound"], row["limit"], row["speedup"]) == (">", pytest.approx(2.0), None)
    (row,) = judge_ladder(runs(worse, [4e6, 8e6]), "pre")["speedups"]
    assert (row["bound"], row["limit"], row["speedup_p"]) == ("<", pytest.approx(0.5), None)
    lost = [run for run in runs(better, [2e6, 4e6, 8e6]) if (run.scheme, run.seed) != ("other", 1) or run.tokens > 2e6]
    (row,) = judge_ladder(lost, "pre")["speedups"]
    assert (row["bound"], row["limit"], row["n"]) == (">", pytest.approx(2.0), 3), "the bound that all seeds keep"
    (row,) = judge_ladder(runs(better, [4e6]), "pre")["speedups"]
    assert row["speedup"] is None and "no curve" in row["problem"]


def test_sizes_are_counted_by_runs_of_the_baseline_that_ended() -> None:
    """Of one that failed before it counted its parameters they are estimated."""
    lost, *found = runs(planted(1.25))
    rows = judge_ladder([replace(lost, status="failed", val_loss=None, parameters=329_000), *found], "pre")["points"]
    assert {row["parameters"] for row in rows} == {330_000}
    looked_up = judge_ladder([replace(run, embedding=30_000) for run in found], "pre")["points"][0]
    assert looked_up["compute"] == 6 * 300_000 * looked_up["tokens"]


def test_a_run_that_is_lost_is_said_and_one_seed_gives_no_interval() -> None:
    found = runs(planted(1.25), seeds=1)
    (row,) = judge_ladder(found, "pre")["speedups"]
    assert row["speedup"] is not None and row["speedup_low"] is None and row["n"] == 1
    found[-1] = replace(found[-1], status="diverged", val_loss=None)
    (row,) = judge_ladder(found, "pre")["speedups"]
    assert row["speedup"] is None and row["problem"] == "no seed has the runs that it needs"


def test_points_of_one_trunk_are_one_observation() -> None:
    """Ten budgets of a prefix say no more about its level than two: the interval must not shrink with them."""
    many = list(np.geomspace(1e6, 16e6, 10))
    widths = []
    for budgets in (BUDGETS, many):
        rows = [judge_ladder(runs(planted(1.25), budgets, generator=g), "pre")["speedups"][0] for g in range(40)]
        widths.append(np.median([math.log(row["speedup_high"] / row["speedup_low"]) for row in rows]))
    assert 0.7 < widths[1] / widths[0] < 1.4


def test_the_slope_of_a_difference_is_tested_over_seeds() -> None:
    """A difference that grows by 0.02 nats in a decade of tokens, and one that does not."""
    schemes = {
        "pre": law,
        "level": lambda size, tokens: law(size, tokens) - 0.03,
        "grows": lambda size, tokens: law(size, tokens) + 0.02 * math.log10(tokens / 1e6),
    }
    held = {"level": 0, "grows": 0}
    for generator in range(100):
        for row in judge_ladder(runs(schemes, generator=generator), "pre")["trends"]:
            truth = 0.02 if row["scheme"] == "grows" else 0.0
            held[row["scheme"]] += row["slope_low"] <= truth <= row["slope_high"]
    assert all(88 <= count < 100 for count in held.values()), held


def test_differences_to_one_baseline_at_one_size_are_no_independent_spreads() -> None:
    samples = [[0.1, 0.3], [0.2, 0.4], [0.1, 0.31]]
    one, apart = (estimate(samples, ["tokens"] * 3, sizes)[0] for sizes in ("aaa", "abc"))
    assert one.value == apart.value and one.p > apart.p and one.high > apart.high


def test_a_point_without_the_baseline_has_no_difference_to_another_scheme() -> None:
    schemes = {"pre": law, "geonorm": lambda n, t: law(n, t) - 0.05, "peri": lambda n, t: law(n, t) - 0.08}
    found = [run for run in runs(schemes) if (run.scheme, run.tokens) != ("pre", int(BUDGETS[-1]))]
    last = [row for row in judge_ladder(found, "pre")["points"] if row["tokens"] == BUDGETS[-1]]
    assert [row["scheme"] for row in last] == ["geonorm", "peri"]
    assert all(row["baseline"] == "pre" and row["difference"] is None for row in last)


def test_a_seed_with_fewer_sizes_has_no_slope_of_its_own() -> None:
    """The difference bends, so that two of three sizes have another slope: the reported one goes through all."""
    bends = {"pre": law, "bends": lambda n, t: law(n, t) + 0.1 * math.log10(n / 180_000) ** 2}
    found = runs(bends, [4e6], SIZES, noise=0.0)
    (whole,) = [row for row in judge_ladder(found, "pre")["trends"] if row["along"] == "parameters"]
    fewer = [run for run in found if (run.seed, run.size) != (2, "d6w96")]
    (row,) = [row for row in judge_ladder(fewer, "pre")["trends"] if row["along"] == "parameters"]
    assert row["seeds"] == whole["seeds"][:2] and (whole["n"], row["n"]) == (9, 8)
    gaps = [bends.val_loss - pre.val_loss for pre, bends in zip(found[:9], found[9:], strict=True)]
    line = stats.linregress([math.log10(run.parameters) for run in found[:9]], gaps)
    assert whole["slope_p"] == pytest.approx(line.pvalue)
    assert whole["slope"] == pytest.approx(whole["seeds"][0]) and row["slope"] != pytest.approx(whole["slope"])


@each("loss, place", [(4.0, 0.0), (3.0, 1.0), (4.1, -math.inf), (2.9, math.inf)])
def test_a_loss_is_found_on_the_curve_or_outside(loss: float, place: float) -> None:
    curve = LossCurve(np.array([0.0, 1.0]), np.array([4.0, 3.0]))
    assert curve.find(loss) == place
    assert read_speedup(curve, curve, 0.5) is None
    curve = LossCurve(np.array([0.0, 1.0, 2.0, 3.0]), np.array([4.0, 3.0, 3.5, 2.5]))
    assert 2.0 < curve.find(3.2) < 3.0
