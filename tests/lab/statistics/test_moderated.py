"""Moderated variances, Holm and equality against numbers by hand, scipy's tests and planted truths."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from geonorm.lab.runs.records import ComparisonRow
from geonorm.lab.statistics.comparison import aggregate, paired_interval
from geonorm.lab.statistics.moderated import Estimate, Prior, contrast, equal_p, find_wider, fit_prior, holm, moderate

from .test_comparison import summary


def test_the_p_of_a_paired_difference_is_scipys() -> None:
    values = [0.031, 0.052, 0.038, 0.061, 0.029]
    assert paired_interval(values).p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-12)
    assert [paired_interval(values).p for values in ([0.1, 0.1], [0.0, 0.0], [0.1])] == [0, 1, None]


def test_holm_by_hand() -> None:
    """p (m - rank), never falling: .01 x 4, .03 x 3, .04 x 2 raised to .09, .2 x 1."""
    assert holm([0.04, 0.01, None, 0.2, 0.03]) == pytest.approx([0.09, 0.04, None, 0.2, 0.09])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([None]) == [None] and holm([]) == []


def test_the_prior_matches_the_moments_of_the_logarithms() -> None:
    """Smyth 2004, section 6.2: log s^2 has the variance trigamma(d/2) + trigamma(d0/2), solved by a root finder."""
    s2, d = np.array([0.2, 1.0, 9.0, 0.05, 3.0]), 4.0
    prior = fit_prior(s2, [d] * 5)
    assert prior is not None
    logs = np.log(s2) - special.digamma(d / 2) + math.log(d / 2)
    wanted = logs.var(ddof=1) - special.polygamma(1, d / 2)
    half = optimize.brentq(lambda x: special.polygamma(1, x) - wanted, 1e-3, 1e3)
    assert prior.df == pytest.approx(2 * half, rel=1e-8)
    assert prior.variance == pytest.approx(math.exp(logs.mean() + special.digamma(half) - math.log(half)), rel=1e-8)
    assert prior.total == 20


def test_spreads_that_agree_are_pooled() -> None:
    prior = fit_prior([1.0, 1.1, 0.9], [2, 2, 6])
    assert prior is not None and (prior.df, prior.total) == (math.inf, 10)
    assert prior.variance == pytest.approx((2 * 1.0 + 2 * 1.1 + 6 * 0.9) / 10)
    assert moderate(5.0, 2, Prior(math.inf, 1.0, 10)) == (1.0, 10)
    assert moderate(4.0, 2, Prior(6.0, 1.0, 30)) == (1.75, 8)
    assert moderate(0.0, 0, Prior(6.0, 1.0, 30)) == (1.0, 6)  # one run: what the others say
    assert moderate(4.0, 2, Prior(6.0, 1.0, 5)) == (1.75, 5)  # no more than there was to learn from


def test_a_prior_needs_two_spreads() -> None:
    assert fit_prior([1.0], [2]) is None and fit_prior([], []) is None
    assert fit_prior([0.0, 0.0], [2, 2]) is None and fit_prior([1.0, 1.0], [2, 0]) is None
    mixed = fit_prior([0.0, 1.0, 1.0], [2, 2, 2])
    assert mixed is not None and math.isfinite(mixed.variance)


@pytest.mark.parametrize(("prior_df", "missing"), [(math.inf, 0.05), (4.0, 0.075)])
def test_moderated_intervals_cover_and_are_narrower_than_paired_ones(prior_df: float, missing: float) -> None:
    """Ten schemes of three seeds, all equal in truth. Where their spreads agree, 5 % miss; where spreads differ as much
    as df 4 says, ten of them know the prior badly, and 7 to 8 % miss: better than nothing said, worse than promised."""
    noise = np.random.default_rng(2)
    missed, narrow, wide = [], [], []
    for _ in range(600):
        sd = np.full(10, 0.02) if math.isinf(prior_df) else 0.02 * np.sqrt(prior_df / noise.chisquare(prior_df, 10))
        losses = 3 + sd[:, None] * noise.standard_normal((10, 3))
        variances = losses.var(axis=1, ddof=1)
        prior = fit_prior(variances, [2] * 10)
        assert prior is not None
        known = [moderate(float(v), 2, prior) for v in variances[:2]]
        means = (Estimate(float(row.mean()), v / 3, df) for row, (v, df) in zip(losses, known, strict=False))
        found = contrast(*means, most=prior.total)
        missed.append(not found.low <= 0 <= found.high)
        narrow.append(found.high - found.low)
        half = stats.t.ppf(0.975, 2) * (losses[0] - losses[1]).std(ddof=1) / math.sqrt(3)
        wide.append(2 * half)
    assert np.mean(missed) == pytest.approx(missing, abs=0.03)
    assert np.median(narrow) < 0.75 * np.median(wide)


def test_a_pooled_variance_counts_once_among_few_schemes() -> None:
    """Two schemes whose spreads agree give the classical test of two samples."""
    a, b = [3.00, 3.01, 3.03], [3.05, 3.06, 3.08]
    row = aggregate([summary("a", n, v) for n, v in enumerate(a)] + [summary("b", n, v) for n, v in enumerate(b)])[1]
    assert row.moderated_p == pytest.approx(stats.ttest_ind(a, b).pvalue, rel=1e-9)


@pytest.mark.parametrize(("schemes", "seeds"), [(6, 2), (6, 3), (19, 2)])
def test_differences_to_one_baseline_know_their_spread_less_well_than_so_many(schemes: int, seeds: int) -> None:
    """All equal in truth: each paired difference to the same runs is 0. Moderated intervals miss in 4 to 6 %; as if the
    differences were independent, their degrees of freedom added up, they would miss in 8 to 9 %."""
    noise, missed, added = np.random.default_rng(3), [], []
    for _ in range(1200):
        losses = noise.standard_normal((schemes + 1, seeds))
        pairs = losses[1:] - losses[0]
        variances, dofs = pairs.var(axis=1, ddof=1), [seeds - 1] * schemes
        for out, baselines in ((missed, ["pre"] * schemes), (added, None)):
            prior = fit_prior(variances, dofs, baselines)
            assert prior is not None
            variance, df = moderate(float(variances[0]), seeds - 1, prior)
            found = contrast(Estimate(float(pairs[0].mean()), variance / seeds, df), Estimate(0.0, 0.0, 1.0))
            out.append(not found.low <= 0 <= found.high)
    assert np.mean(missed) < 0.07 < np.mean(added)


def test_wider_is_the_f_test_of_two_variances() -> None:
    found = find_wider([9.0, 1.0], [4, 2])
    assert found[0] == pytest.approx((3.0, 2 * stats.f.sf(9.0, 4, 2)))
    assert found[1] == pytest.approx((1 / 3, stats.f.sf(1 / 9, 2, 4)))
    assert find_wider([1.0], [2]) == [None] and find_wider([1.0, 4.0], [0, 2]) == [None, None]
    assert find_wider([0.0, 0.0], [2, 2]) == [None, None] and find_wider([], []) == []


def test_spreads_of_several_baselines_add_up() -> None:
    """Two sets of five differences of 2 degrees of freedom, 10 / (1 + 4/4) each."""
    shared = fit_prior([1.0] * 10, [2] * 10, ["a"] * 5 + ["b"] * 5)
    alone = fit_prior([1.0] * 10, [2] * 10, list("abcdefghij"))
    assert shared is not None and alone is not None and (shared.total, alone.total) == (10.0, 20.0)


def test_contrast_is_welchs_test() -> None:
    a, b = [1.0, 1.3, 1.1, 1.6], [0.7, 0.9, 0.2]
    found = contrast(*(Estimate(float(np.mean(v)), float(np.var(v, ddof=1) / len(v)), len(v) - 1) for v in (a, b)))
    wanted = stats.ttest_ind(a, b, equal_var=False)
    interval = wanted.confidence_interval(0.95)
    assert (found.p, found.df) == pytest.approx((wanted.pvalue, wanted.df), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    same = contrast(Estimate(1.0, 0.0, 3), Estimate(1.0, 0.0, 3))
    assert same.p == 1 and equal_p(same) == 0 and contrast(Estimate(1.0, 0.0, 3), Estimate(0.0, 0.0, 3)).p == 0


def test_equal_is_two_one_sided_tests() -> None:
    values = np.array([0.004, -0.001, 0.002, 0.003, 0.0])
    found = contrast(Estimate(float(values.mean()), float(values.var(ddof=1) / 5), 4), Estimate(0.0, 0.0, 4))
    below = stats.ttest_1samp(values, 0.01, alternative="less").pvalue
    above = stats.ttest_1samp(values, -0.01, alternative="greater").pvalue
    assert equal_p(found) == pytest.approx(max(below, above), rel=1e-9) and equal_p(found) < 0.05
    assert equal_p(found, 0.003) > 0.05 and equal_p(found, 0.0) > 0.5
    assert equal_p(contrast(Estimate(0.02, 1e-12, 4), Estimate(0.0, 0.0, 4))) > 0.99


def test_rows_say_equal_only_with_evidence() -> None:
    noise = np.random.default_rng(3)

    def row(shift: float, seeds: int, sd: float) -> ComparisonRow:
        runs = [
            summary(s, i, 3 + shift * (s == "b") + sd * noise.standard_normal()) for s in "abc" for i in range(seeds)
        ]
        return aggregate(runs)[1]

    assert row(0.0, 6, 0.001).equal and not row(0.0, 3, 0.03).equal and not row(0.02, 6, 0.001).equal
    runs = [summary(s, i, 3.0 + i / 100 + 0.015 * (s == "b") + 1e-4 * i * (s == "b")) for s in "ab" for i in range(3)]
    assert aggregate(runs, margin=0.1)[1].equal and aggregate(runs, margin=0.1)[1].margin == 0.1
    wide = {"a": (0, 8, 4), "b": (8, 0, 4)} | dict.fromkeys("cdef", (0, 1, 2))  # others are narrow: the pairs decide
    runs = [summary(s, i, 3 + loss / 1000) for s, losses in wide.items() for i, loss in enumerate(losses)]
    assert not aggregate(runs, "a")[1].equal


def test_rows_carry_the_family() -> None:
    runs = [summary(s, i, 3 + 0.01 * i * i * (s != "a") + 0.1 * ord(s)) for s in "abcd" for i in range(3)]
    rows = aggregate([*runs, summary("e", 0, 3.0)])
    assert [row.family for row in rows] == ["3 paired differences to a"] * 5
    assert [row.p_holm for row in rows] == holm([row.p for row in rows])
    assert rows[0].p is rows[4].p is rows[4].p_holm is rows[4].difference_low is None and rows[4].moderated_p
    assert aggregate([summary("a", 0, 3.0), summary("b", 0, 3.0)])[1].moderated_p is None
