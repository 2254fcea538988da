"""Pooled differences, verdicts and grades against other code."""

import numpy as np
import pytest
from scipy import optimize, stats

from geonorm.lab.statistics.moderated import Contrast, Estimate, contrast
from geonorm.lab.statistics.synthesis import GRADES, ZERO, Pooled, grade, judge, pool

from ...rows import each

EFFECTS = {
    "scattered": ([-0.05, 0.02, 0.04, -0.01, 0.09], [1e-4, 2e-4, 1e-4, 4e-4, 9e-4]),
    "alike": ([0.030, 0.031, 0.029], [1e-4, 2e-4, 3e-4]),
    "two": ([0.03, -0.05], [1e-4, 1e-4]),
}


@each("name", EFFECTS)
def test_a_pooled_mean_is_that_of_other_code(name: str) -> None:
    """The variance between settings solves Q = n - 1; the interval and the prediction are by Student's t."""
    y, v = (np.array(column) for column in EFFECTS[name])
    n = len(y)

    def moment(log_tau2: float) -> float:
        w = 1 / (v + np.exp(log_tau2))
        return float(w @ (y - w @ y / w.sum()) ** 2) - (n - 1)

    fixed = float((1 / v) @ (y - (1 / v) @ y / (1 / v).sum()) ** 2)
    tau2 = np.exp(optimize.bisect(moment, -40, 2, xtol=1e-13)) if fixed > n - 1 else 0.0
    w = 1 / (v + tau2)
    mean = w @ y / w.sum()
    error2 = max(1, w @ (y - mean) ** 2 / (n - 1)) / w.sum()
    found = pool([Estimate(a, b, 2) for a, b in zip(y, v, strict=True)])
    assert found and found.n == n and found.between == pytest.approx(tau2**0.5, abs=1e-7)
    low, high = stats.t(n - 1, mean, error2**0.5).interval(0.95)
    assert found.mean[:3] == pytest.approx((mean, low, high), abs=1e-7)
    low, high = stats.t(n - 1, mean, (error2 + tau2) ** 0.5).interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-7)


def test_intervals_hold_the_truth() -> None:
    """2,000 times six settings that differ: the mean's interval holds in 97 %, the prediction in 89 %."""
    draw = np.random.default_rng(0)
    held = expected = 0
    for _ in range(2000):
        v = draw.uniform(1e-4, 9e-4, 6)
        y = draw.normal(0.02, 0.02, 6) + draw.normal(0, v**0.5)
        found = pool([Estimate(a, b, 4) for a, b in zip(y, v, strict=True)])
        assert found
        held += found.mean.low < 0.02 < found.mean.high
        expected += found.low < draw.normal(0.02, 0.02) < found.high
    assert 0.935 < held / 2000 < 0.98 and 0.87 < expected / 2000 < 0.9


def test_one_setting_is_no_synthesis() -> None:
    assert pool([]) is None and pool([Estimate(0.1, 1e-4, 2), Estimate(0.2, 0.0, 2)]) is None


@each(
    "values, word",
    [
        ([-0.05, -0.06, -0.04], "better"),
        ([0.05, 0.06, 0.04], "worse"),
        ([0.001, -0.002, 0.002, 0.0], "equal within 0.01"),
        ([0.05, -0.06, 0.04], "not resolved"),
        ([-0.0021, -0.0019, -0.0020], "better"),  # resolved comes before equal
    ],
)
def test_the_verdict_is_that_of_the_tests(values: list[float], word: str) -> None:
    n = len(values)
    gap = contrast(Estimate(float(np.mean(values)), float(np.var(values, ddof=1)) / n, n - 1), ZERO)
    p = stats.ttest_1samp(values, 0).pvalue
    sides = (
        stats.ttest_1samp(values, side * 0.01, alternative=way).pvalue for side, way in ((-1, "greater"), (1, "less"))
    )
    expected = ("better" if np.mean(values) < 0 else "worse") if p < 0.05 else "not resolved"
    if p >= 0.05 and max(sides) < 0.05:
        expected = "equal within 0.01"
    assert judge(gap) == expected == word and judge(None) == "one run"


def test_each_doubt_costs_a_grade() -> None:
    mean = Contrast(-0.02, -0.03, -0.01, 0.001, 0.004, 6)
    sure = Pooled(mean, 0.0, -0.03, -0.01, 7)
    assert grade(sure, 0.02) == ("high", [])
    assert grade(sure._replace(n=4), 0.02) == ("moderate", ["4 settings"])
    assert grade(sure._replace(high=0.01), 0.02) == ("moderate", ["another setting may turn the sign"])
    for high, reasons in ((0.041, ["a wide interval"]), (0.039, [])):  # four margins end at 0.04
        assert grade(sure._replace(mean=mean._replace(low=-0.04, high=high), high=0.2), 0.02)[1] == reasons
    assert [grade(sure, 0.02, ["doubt"] * n)[0] for n in range(5)] == [*GRADES, "very low"]
